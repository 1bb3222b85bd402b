/*
 * Sockets to a daemon on another machine: a DEALER and its monitor. The monitor reports how the
 * handshake ended and when the connection broke. libzmq would reconnect silently; a session does
 * not survive that, because the messages on their way are lost. A rank that comes back makes new
 * sockets.
 *
 * The monitor does not ask for ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL. With that event, libzmq neither
 * reads nor closes a connection on which one bit was flipped (daemon/transport/visitors.h). Without
 * it the monitor cannot say whether a daemon hung up because only one side has a key.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "client/src/clock.h"
#include "client/src/remote.h"
#include "proto/keyfile.h"
#include "proto/remote.h"
#include "proto/retry.h"

#define GATE_MONITOR "inproc://adtopk-monitor"
#define GATE_HEARTBEAT_MS 1000
/* After a heartbeat without an answer for so long, the daemon counts as gone. */
#define GATE_SILENCE_MS 4000
#define GATE_HANDSHAKE_MS 5000
#define GATE_RETRY_MS 50
#define GATE_RETRY_MAX_MS 500
#define GATE_BROKEN_HANDSHAKES 3 /* so many failures are no accident */

#define GATE_EVENTS                                                                                \
    (ZMQ_EVENT_CLOSED | ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_DISCONNECTED |                       \
        ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)

/* ---- opening ---- */

static enum adtopk_status remote_gate_failed(
    const struct client_remote *remote, const char *what, const char *address, struct error *err)
{
    const int reason = errno;

    return error_set(err, reason == EINVAL ? ADTOPK_ERR_ARGUMENT : ADTOPK_ERR_SYSTEM,
        "cannot connect to %.150s: %s: %s", address, what, remote->zmq->strerror(reason));
}

static bool gate_set_text(const struct client_remote *remote, int option, const char *text)
{
    return remote->zmq->setsockopt(remote->dealer, option, text, strlen(text)) == 0;
}

static enum adtopk_status gate_set_keys(
    struct client_remote *remote, const struct client_options *options, struct error *err)
{
    struct keyfile_pair pair;
    enum adtopk_status status;
    bool set;

    if (options->key_file == NULL && options->server_key == NULL) {
        return ADTOPK_OK;
    }
    if (options->key_file == NULL || options->server_key == NULL) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "%s is given without %s",
            options->key_file != NULL ? "key_file" : "server_key",
            options->key_file != NULL ? "server_key" : "key_file");
    }
    if (!keyfile_is_key(options->server_key)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "server_key \"%.50s\" is no key: 40 characters (Z85)", options->server_key);
    }
    status = keyfile_load_with(options->key_file, remote->zmq->curve_public, &pair, err);
    if (status != ADTOPK_OK) {
        return status;
    }
    if (pair.secret_key[0] == '\0') {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "the key file %.150s has no secret key", options->key_file);
    }
    set = gate_set_text(remote, ZMQ_CURVE_SERVERKEY, options->server_key) &&
          gate_set_text(remote, ZMQ_CURVE_PUBLICKEY, pair.public_key) &&
          gate_set_text(remote, ZMQ_CURVE_SECRETKEY, pair.secret_key);
    keyfile_wipe(&pair);
    return set ? ADTOPK_OK : remote_gate_failed(remote, "keys", options->address, err);
}

static bool remote_gate_set(struct client_remote *remote, const struct client_options *options)
{
    const int64_t longest = REMOTE_OP_SIZE;
    const struct {
        int name, value;
    } settings[] = {
        {ZMQ_LINGER, 0},
        {ZMQ_IMMEDIATE, 1},
        {ZMQ_SNDHWM, REMOTE_QUEUE},
        {ZMQ_RCVHWM, 0}, /* a full queue would stop heartbeats; the window limits the queue */
        {ZMQ_IPV6, strchr(options->address, '[') != NULL},
        {ZMQ_HANDSHAKE_IVL, GATE_HANDSHAKE_MS},
        {ZMQ_RECONNECT_IVL, GATE_RETRY_MS},
        {ZMQ_RECONNECT_IVL_MAX, GATE_RETRY_MAX_MS},
        {ZMQ_HEARTBEAT_IVL, GATE_HEARTBEAT_MS},
        {ZMQ_HEARTBEAT_TIMEOUT, GATE_SILENCE_MS},
    };

    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (remote->zmq->setsockopt(
                remote->dealer, settings[i].name, &settings[i].value, sizeof(int)) != 0) {
            return false;
        }
    }
    return remote->zmq->setsockopt(remote->dealer, ZMQ_MAXMSGSIZE, &longest, sizeof longest) == 0;
}

static bool gate_reach(const struct client_remote *remote, void *socket, const char *endpoint)
{
    int reached;

    RETRY(reached, remote->zmq->connect(socket, endpoint));
    return reached == 0;
}

static bool gate_find_descriptors(struct client_remote *remote)
{
    void *const socket[] = {remote->dealer, remote->monitor};

    for (int i = 0; i < 2; i++) {
        size_t size = sizeof remote->descriptor[i];

        if (remote->zmq->getsockopt(socket[i], ZMQ_FD, &remote->descriptor[i], &size) != 0) {
            return false;
        }
    }
    if (remote->end < 0) {
        remote->end = fcntl(remote->descriptor[1], F_DUPFD_CLOEXEC, 0);
        return remote->end >= 0;
    }
    return dup3(remote->descriptor[1], remote->end, O_CLOEXEC) >= 0;
}

enum adtopk_status client_gate_begin(
    struct client_remote *remote, const struct client_options *options, struct error *err)
{
    const int none = 0; /* a full queue would stop libzmq's thread */
    enum adtopk_status status;

    remote->attempt = (struct client_attempt){0};

    remote->sockets = remote->zmq->ctx_new();
    if (remote->sockets == NULL ||
        (remote->dealer = remote->zmq->socket(remote->sockets, ZMQ_DEALER)) == NULL ||
        !remote_gate_set(remote, options)) {
        return remote_gate_failed(remote, "socket", options->address, err);
    }
    status = gate_set_keys(remote, options, err);
    if (status != ADTOPK_OK) {
        return status;
    }
    if (remote->zmq->socket_monitor(remote->dealer, GATE_MONITOR, GATE_EVENTS) != 0 ||
        (remote->monitor = remote->zmq->socket(remote->sockets, ZMQ_PAIR)) == NULL ||
        remote->zmq->setsockopt(remote->monitor, ZMQ_RCVHWM, &none, sizeof none) != 0 ||
        !gate_reach(remote, remote->monitor, GATE_MONITOR)) {
        return remote_gate_failed(remote, "monitor", options->address, err);
    }
    return gate_reach(remote, remote->dealer, options->address) && gate_find_descriptors(remote)
               ? ADTOPK_OK
               : remote_gate_failed(remote, "address", options->address, err);
}

/* ---- the handshake ---- */

/* The next event of the monitor and its value; 0 if there is none. */
static unsigned gate_event(struct client_remote *remote, uint32_t *value)
{
    uint8_t bytes[6] = {0};
    char address[8];
    uint16_t event;
    int size;

    RETRY(size, remote->zmq->recv(remote->monitor, bytes, sizeof bytes, ZMQ_DONTWAIT));
    if (size < 0) {
        return 0;
    }
    RETRY(size, remote->zmq->recv(remote->monitor, address, sizeof address, ZMQ_DONTWAIT));
    memcpy(&event, bytes, sizeof event);
    memcpy(value, bytes + sizeof event, sizeof *value);
    return event;
}

static enum adtopk_status gate_give_up(
    const struct client_attempt *attempt, const struct client_options *options, struct error *err)
{
    if (attempt->broken > 0) {
        return error_set(err, ADTOPK_ERR_DENIED,
            "whoever listens at %.100s hung up during the handshake: %s", options->address,
            options->server_key != NULL
                ? "is server_key its key, and is the port its trainers_listen, not its listen?"
                : "does it want a key, is it adtopkd, and is the port its trainers_listen, not "
                  "its listen?");
    }
    return error_set(err, ADTOPK_ERR_UNREACHABLE,
        "no daemon at %.150s: nothing answers there. Is it running, with trainers_listen at this "
        "port, "
        "and does no firewall stand between? ($ADTOPK_ADDRESS or an option says where one is)",
        options->address);
}

/* Judges an event. OK: connected, or not decided yet. */
static enum adtopk_status gate_decide(struct client_attempt *attempt, unsigned event,
    uint32_t value, const struct client_options *options, struct error *err)
{
    switch (event) {
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        return error_set(err, ADTOPK_ERR_DENIED,
            "the daemon at %.100s does not know this trainer's key (code %u): is it in its "
            "`trainers`?",
            options->address, value);
    case ZMQ_EVENT_DISCONNECTED: attempt->broken++; break; /* for whatever reason */
    case ZMQ_EVENT_CLOSED:
    case ZMQ_EVENT_CONNECT_RETRIED: attempt->refused++; break;
    default: break;
    }
    /* While a rank comes back (no time-out), whoever forwards its connection may have no daemon. */
    if ((options->connect_timeout_ms != 0 && attempt->broken >= GATE_BROKEN_HANDSHAKES) ||
        (options->connect_timeout_ms < 0 && attempt->broken + attempt->refused > 0)) {
        return gate_give_up(attempt, options, err);
    }
    return ADTOPK_OK;
}

enum adtopk_status client_gate_try(
    struct client_remote *remote, const struct client_options *options, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;
    uint32_t value = 0;
    unsigned event;

    while (status == ADTOPK_OK && (event = gate_event(remote, &value)) != 0) {
        if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
            return ADTOPK_OK;
        }
        status = gate_decide(&remote->attempt, event, value, options, err);
    }
    return status == ADTOPK_OK ? ADTOPK_PENDING : status;
}

static enum adtopk_status gate_handshake(
    struct client_remote *remote, const struct client_options *options, struct error *err)
{
    const int limit_ms =
        options->connect_timeout_ms > 0 ? options->connect_timeout_ms : GATE_HANDSHAKE_MS;
    const uint64_t deadline = client_now_ns() + (uint64_t)limit_ms * 1000000u;

    for (;;) {
        const uint64_t now = client_now_ns();
        zmq_pollitem_t item = {.socket = remote->monitor, .events = ZMQ_POLLIN};
        enum adtopk_status status;

        if (now >= deadline) {
            return gate_give_up(&remote->attempt, options, err);
        }
        if (remote->zmq->poll(&item, 1, (long)((deadline - now) / 1000000) + 1) < 0 &&
            errno == EINTR && options->interruptible) {
            return error_set(err, ADTOPK_INTERRUPTED, "a signal ended adtopk_open()");
        }
        status = client_gate_try(remote, options, err);
        if (status != ADTOPK_PENDING) {
            return status;
        }
    }
}

enum adtopk_status client_gate_connect(
    struct client_remote *remote, const struct client_options *options, struct error *err)
{
    enum adtopk_status status;

    remote->zmq = client_libzmq(err);
    if (remote->zmq == NULL) {
        return err->code;
    }
    status = client_gate_begin(remote, options, err);
    return status == ADTOPK_OK ? gate_handshake(remote, options, err) : status;
}

/* ---- while it lasts ---- */

enum adtopk_status client_gate_wait(adtopk_context *context, const struct client_patience *patience)
{
    struct pollfd readable[] = {{.fd = -1},
        {.fd = context->remote->descriptor[0], .events = POLLIN},
        {.fd = context->remote->descriptor[1], .events = POLLIN}};

    return client_sleep(context, readable, 3, patience);
}

void client_gate_look(struct client_remote *remote)
{
    uint32_t value;
    unsigned event;

    while ((event = gate_event(remote, &value)) != 0) {
        remote->broken |= event == ZMQ_EVENT_DISCONNECTED;
    }
}

void client_gate_close(struct client_remote *remote)
{
    if (remote->monitor != NULL) {
        (void)remote->zmq->socket_monitor(remote->dealer, NULL, 0);
        (void)remote->zmq->close(remote->monitor);
    }
    if (remote->dealer != NULL) {
        (void)remote->zmq->close(remote->dealer);
    }
    while (
        remote->sockets != NULL && remote->zmq->ctx_term(remote->sockets) != 0 && errno == EINTR) {
    }
    remote->monitor = remote->dealer = remote->sockets = NULL;
}
