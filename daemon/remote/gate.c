#include "daemon/remote/gate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/transport/socket.h"
#include "proto/remote.h"
#include "proto/retry.h"

#define GATE_MAX_OWNERS 1024u
#define GATE_QUESTIONS 16u /* answered per iteration */
#define GATE_LINGER_MS 200 /* time for last words */
#define GATE_QUIET_MS 20
#define GATE_HANDSHAKE_MS 5000
#define GATE_PENDING_CONNECTIONS 128
#define GATE_ALLOWANCE 1024 /* bytes per second, more than the heartbeats of ZMTP */
#define GATE_PARTS 4096u    /* dropped per iteration, of a message with too many parts: 1 ms */

static enum adtopk_status gate_failed(const char *what, const char *endpoint, struct error *err)
{
    const int reason = errno;
    const bool argument = reason == EINVAL || reason == EPROTONOSUPPORT;

    return error_set(err, argument ? ADTOPK_ERR_ARGUMENT : ADTOPK_ERR_SYSTEM,
        "cannot listen for remote trainers on %.120s: %s: %s", endpoint, what,
        zmq_strerror(reason));
}

static bool gate_set(struct gate *gate, const struct remote_config *config)
{
    const int64_t longest = REMOTE_OP_SIZE;
    const struct {
        int name, value;
    } options[] = {
        {ZMQ_ROUTER_MANDATORY, 1},
        {ZMQ_LINGER, GATE_LINGER_MS},
        {ZMQ_SNDHWM, REMOTE_QUEUE},
        {ZMQ_RCVHWM, REMOTE_QUEUE},
        {ZMQ_IPV6, strchr(config->listen, '[') != NULL},
        {ZMQ_BACKLOG, GATE_PENDING_CONNECTIONS},
        {ZMQ_HANDSHAKE_IVL, GATE_HANDSHAKE_MS},
        {ZMQ_HEARTBEAT_IVL, (int)config->heartbeat_ms},
        {ZMQ_HEARTBEAT_TIMEOUT, (int)(config->timeout_ms - config->heartbeat_ms)},
        {ZMQ_TCP_MAXRT, (int)config->timeout_ms},
    };

    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (zmq_setsockopt(gate->router, options[i].name, &options[i].value, sizeof(int)) != 0) {
            return false;
        }
    }
    return zmq_setsockopt(gate->router, ZMQ_MAXMSGSIZE, &longest, sizeof longest) == 0;
}

/* ---- keys ---- */

/* Fills an empty list. */
static enum adtopk_status gate_allow(struct allow *allow, uint32_t **uid,
    const struct remote_owner *owners, size_t count, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    if (count > GATE_MAX_OWNERS) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "%zu keys of trainers; %u are possible", count,
            GATE_MAX_OWNERS);
    }
    *uid = malloc((count + 1) * sizeof **uid);
    if (*uid == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the keys of trainers");
    }
    for (size_t i = 0; status == ADTOPK_OK && i < count; i++) {
        (*uid)[i] = owners[i].uid;
        status = allow_add(allow, owners[i].key, (uint16_t)i, err);
    }
    return status;
}

static bool gate_protect(struct gate *gate, const struct keyfile_pair *pair)
{
    const int server = 1;

    return zmq_setsockopt(gate->router, ZMQ_CURVE_SERVER, &server, sizeof server) == 0 &&
           zmq_setsockopt(gate->router, ZMQ_CURVE_SECRETKEY, pair->secret_key,
               strlen(pair->secret_key)) == 0 &&
           zmq_setsockopt(gate->router, ZMQ_ZAP_DOMAIN, SOCKET_DOMAIN_CONTROL,
               strlen(SOCKET_DOMAIN_CONTROL)) == 0;
}

/* Opens the doorkeeper, before any trainer can connect. */
static enum adtopk_status gate_guard(
    struct gate *gate, const struct remote_config *config, struct error *err)
{
    const enum adtopk_status status =
        gate_allow(&gate->allow, &gate->uid, config->owners, config->owner_count, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    gate->zap = (struct zap){
        .allow = &gate->allow, .tokens = &gate->tokens, .refusals = &gate->refusals, .final = true};
    return gate_protect(gate, config->pair) && zap_open(&gate->zap, gate->zmq)
               ? ADTOPK_OK
               : gate_failed("keys", config->listen, err);
}

uint16_t gate_who(const struct gate *gate, struct gate_message *message)
{
    return allow_find(&gate->allow, zmq_msg_gets(&message->header, "User-Id"));
}

bool gate_knows(const struct gate *gate, const char *key, uint32_t uid)
{
    const uint16_t who = allow_find(&gate->allow, key);

    return who != GATE_NOBODY && gate->uid[who] == uid;
}

static bool gate_has_pair(struct gate *gate, const struct keyfile_pair *pair)
{
    char secret[KEYFILE_KEY_SIZE] = "";
    size_t size = sizeof secret;
    const bool same = zmq_getsockopt(gate->router, ZMQ_CURVE_SECRETKEY, secret, &size) == 0 &&
                      strcmp(secret, pair->secret_key) == 0;

    explicit_bzero(secret, sizeof secret);
    return same;
}

static bool gate_unbind(struct gate *gate)
{
    int failed;

    do {
        failed = zmq_unbind(gate->router, gate->endpoint);
    } while (failed != 0 && errno == EINTR);
    return failed == 0;
}

enum adtopk_status gate_reload(struct gate *gate, const struct keyfile_pair *pair,
    const struct remote_owner *owners, size_t count, struct error *err)
{
    struct allow allow = {.entries = NULL};
    uint32_t *uid = NULL;
    const enum adtopk_status status = gate_allow(&allow, &uid, owners, count, err);

    if (status != ADTOPK_OK) {
        allow_clear(&allow);
        free(uid);
        return status;
    }
    allow_clear(&gate->allow);
    free(gate->uid);
    gate->allow = allow;
    gate->uid = uid;
    if (gate->listening && gate_has_pair(gate, pair)) {
        return ADTOPK_OK;
    }
    /* A listening socket keeps the keys with which it was bound. Unbinding cuts its connections. */
    gate->listening = gate->listening && !gate_unbind(gate);
    if (gate->listening || !gate_protect(gate, pair)) {
        return gate_failed("new keys", gate->endpoint, err);
    }
    gate->listening = socket_bind(gate->router, gate->endpoint, true, gate->endpoint);
    return gate->listening ? ADTOPK_OK : gate_failed("bind again", gate->endpoint, err);
}

/* ---- opening, closing ---- */

static int gate_descriptor(void *socket)
{
    int descriptor = -1;
    size_t size = sizeof descriptor;

    return socket != NULL && zmq_getsockopt(socket, ZMQ_FD, &descriptor, &size) == 0 ? descriptor
                                                                                     : -1;
}

static enum adtopk_status gate_listen(
    struct gate *gate, const struct remote_config *config, struct error *err)
{
    if (strncmp(config->listen, "tcp://", 6) != 0) { /* see transport/zmq.c: ipc:// aborts */
        errno = EPROTONOSUPPORT;
        return gate_failed("only tcp:// is possible", config->listen, err);
    }
    gate->zmq = zmq_ctx_new();
    if (gate->zmq == NULL || (gate->router = zmq_socket(gate->zmq, ZMQ_ROUTER)) == NULL ||
        !gate_set(gate, config)) {
        return gate_failed("ROUTER socket", config->listen, err);
    }
    if (config->pair != NULL && gate_guard(gate, config, err) != ADTOPK_OK) {
        return err->code;
    }
    if (!visitors_open(&gate->visitors, gate->zmq, gate->router, GATE_ALLOWANCE)) {
        return gate_failed("monitor", config->listen, err);
    }
    if (!socket_bind(gate->router, config->listen, false, gate->endpoint)) {
        return gate_failed("bind", config->listen, err);
    }
    gate->listening = true;
    gate->descriptor[0] = gate_descriptor(gate->router);
    gate->descriptor[1] = gate_descriptor(gate->visitors.monitor.pair);
    gate->descriptor[2] = gate->visitors.inflow.epoll;
    gate->descriptor[3] = gate_descriptor(gate->zap.socket);
    inflow_bound(&gate->visitors.inflow, gate->endpoint);
    return ADTOPK_OK;
}

enum adtopk_status gate_open(
    struct gate *gate, const struct remote_config *config, void *context, struct error *err)
{
    enum adtopk_status status;

    gate->refusals = (struct refusals){.warn = config->warn, .context = context};
    status = gate_listen(gate, config, err);
    if (status != ADTOPK_OK) {
        gate_close(gate);
    }
    return status;
}

void gate_settle(struct gate *gate)
{
    const uint64_t end = uv_hrtime() + GATE_LINGER_MS * UINT64_C(1000000);
    zmq_pollitem_t item = {.socket = gate->router, .events = ZMQ_POLLIN};
    struct gate_message message;

    while (uv_hrtime() < end && zmq_poll(&item, 1, GATE_QUIET_MS) > 0) {
        while (uv_hrtime() < end && gate_receive(gate, &message)) {
            gate_drop(&message);
        }
    }
}

void gate_close(struct gate *gate)
{
    visitors_close(&gate->visitors);
    if (gate->router != NULL) {
        (void)zmq_close(gate->router);
    }
    zap_close(&gate->zap);
    while (gate->zmq != NULL && zmq_ctx_term(gate->zmq) != 0 && errno == EINTR) {
    }
    allow_clear(&gate->allow);
    free(gate->uid);
    memset(gate, 0, sizeof *gate);
}

/* ---- receiving ---- */

bool gate_readable(struct gate *gate)
{
    return (socket_events(gate->router) & ZMQ_POLLIN) != 0 ||
           (gate->zap.socket != NULL && (socket_events(gate->zap.socket) & ZMQ_POLLIN) != 0);
}

/* Receives the next part, which is there as soon as the first is. False if there is none. */
static bool gate_next_part(struct gate *gate, zmq_msg_t *before, zmq_msg_t *part)
{
    return zmq_msg_more(before) != 0 && socket_receive_part(gate->router, part);
}

static void gate_tell_cut(struct gate *gate, const char *who)
{
    char line[GATE_ENDPOINT_SIZE + 192];

    (void)snprintf(line, sizeof line,
        "cut off a remote trainer at %s: %s sends a message that is too long or does not end",
        gate->endpoint, who);
    refusals_add(&gate->refusals, REFUSAL_PACKET, line);
}

/* Ends connections that send a message without an end. */
static void gate_judge(struct gate *gate, bool drained)
{
    char who[INFLOW_WHO_SIZE];

    while (inflow_judge(&gate->visitors.inflow, drained, who)) {
        gate_tell_cut(gate, who);
    }
}

/* Drops the rest of a message with too many parts. False if the rest is more than an iteration's
 * share. */
static bool gate_skip(struct gate *gate)
{
    gate->skipping = gate->skipping && !socket_drop_parts(gate->router, GATE_PARTS);
    return !gate->skipping;
}

/* The message has too many parts. Whoever sends very many gets no answer. */
static void gate_begin_to_skip(struct gate *gate, struct gate_message *message)
{
    char who[INFLOW_WHO_SIZE];

    gate->skipping = true;
    if (!gate_skip(gate) && inflow_end(&gate->visitors.inflow, &message->header, who)) {
        gate_tell_cut(gate, who);
    }
}

bool gate_receive(struct gate *gate, struct gate_message *message)
{
    /* These calls only fill in the structures. */
    (void)zmq_msg_init(&message->route);
    (void)zmq_msg_init(&message->header);
    (void)zmq_msg_init(&message->part);
    message->has_header = message->has_part = message->whole = false;
    if (!gate_skip(gate)) {
        return false;
    }
    while (zmq_msg_recv(&message->route, gate->router, ZMQ_DONTWAIT) < 0) {
        if (errno != EINTR) {
            gate_judge(gate, true);
            return false;
        }
    }
    inflow_took(&gate->visitors.inflow, zmq_msg_get(&message->route, ZMQ_SRCFD));
    message->has_header = gate_next_part(gate, &message->route, &message->header);
    if (message->has_header) {
        message->has_part = gate_next_part(gate, &message->header, &message->part);
        message->whole = !message->has_part || zmq_msg_more(&message->part) == 0;
        if (!message->whole) {
            gate_begin_to_skip(gate, message);
        }
    }
    return true;
}

void gate_drop(struct gate_message *message)
{
    (void)zmq_msg_close(&message->route);
    (void)zmq_msg_close(&message->header);
    (void)zmq_msg_close(&message->part);
}

static void gate_warn_of_handshake(struct gate *gate)
{
    refusals_add(&gate->refusals, REFUSAL_HANDSHAKE,
        gate->zap.socket != NULL ? "refused a remote trainer that has no key, or not this daemon's"
                                 : "a remote trainer went away in its handshake, or speaks another "
                                   "protocol, or has a key");
}

bool gate_look(struct gate *gate)
{
    enum visitors_report report;
    bool gone = false;

    if (gate->zap.socket != NULL) {
        (void)zap_serve(&gate->zap, GATE_QUESTIONS);
    }
    inflow_look(&gate->visitors.inflow);
    gate_judge(gate, false);
    while (visitors_next(&gate->visitors, &report)) {
        gone = gone || report != VISITORS_NOTHING;
        if (report == VISITORS_REFUSED || report == VISITORS_SILENT) {
            gate_warn_of_handshake(gate);
        }
    }
    return gone;
}

/* ---- sending ---- */

enum gate_sent gate_send(struct gate *gate, const uint8_t *route, size_t route_size,
    const uint8_t *header, size_t header_size, zmq_msg_t *part)
{
    enum gate_sent sent = GATE_SENT;
    int taken;

    RETRY(taken, zmq_send(gate->router, route, route_size, ZMQ_SNDMORE | ZMQ_DONTWAIT));
    if (taken < 0) {
        sent = errno == EHOSTUNREACH ? GATE_GONE : GATE_FULL;
    } else {
        /* libzmq takes a whole message, or drops all of it if its connection breaks. */
        RETRY(taken, zmq_send(gate->router, header, header_size,
                         ZMQ_DONTWAIT | (part != NULL ? ZMQ_SNDMORE : 0)));
        if (part != NULL) {
            RETRY(taken, zmq_msg_send(part, gate->router, ZMQ_DONTWAIT));
            if (taken >= 0) {
                return GATE_SENT; /* libzmq owns the part now */
            }
        }
    }
    if (part != NULL) {
        (void)zmq_msg_close(part);
    }
    return sent;
}
