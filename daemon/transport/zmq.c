/*
 * Packets over ZeroMQ, TCP only.
 *
 * One PULL socket receives from all peers (receiver.h). To each peer there are two PUSH sockets,
 * one per lane (sender.h). A packet is one message, whose header names the lane. A long body is a
 * part of its own (parts.h): it is sent from where it lies, and stays where it was received.
 *
 * With keys, every connection is under CURVE and the ZAP handler (zap.h) accepts only keys of
 * peers. The key of the connection decides which node a packet is from; the present allow-list has
 * it. A header that names another node is refused here. If bulk goes in the clear, a second PULL
 * socket receives it, from connections that presented a token (token.h).
 *
 * A packet is refused (send returns false) while the peer is not connected or its queue is full. It
 * is lost without a report when a connection breaks. A packet longer than allowed makes libzmq
 * close the connection that brought it. Listening on ipc:// is refused: out of descriptors,
 * libzmq's ipc listener aborts the process.
 *
 * transport_zmq_pump() receives everything that has arrived, to the end or until its budget is used
 * up (then it says so). Call it when the descriptor is readable and after sending: see waiter.h.
 * Not thread-safe, like the sockets.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "daemon/link/packet.h"
#include "daemon/transport/clock.h"
#include "daemon/transport/parts.h"
#include "daemon/transport/zmq_state.h"

#define TRANSPORT_ZMQ_DROPS 64u /* parts that are dropped in the time of a message */

enum adtopk_status transport_zmq_check_endpoint(const char *endpoint, struct error *err)
{
    if (strncmp(endpoint, "tcp://", 6) != 0 || strlen(endpoint) >= SOCKET_ENDPOINT_SIZE) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "endpoint \"%.160s\": only tcp://address:port is supported between nodes", endpoint);
    }
    return ADTOPK_OK;
}

enum adtopk_status transport_zmq_failed(struct error *err, const char *what, const char *endpoint)
{
    int reason = errno;
    bool argument = reason == EINVAL || reason == EPROTONOSUPPORT;

    return error_set(err, argument ? ADTOPK_ERR_ARGUMENT : ADTOPK_ERR_SYSTEM, "%s \"%s\": %s", what,
        endpoint, zmq_strerror(reason));
}

/* ------------------------------------------------------------------ opening and closing */

static bool transport_zmq_watch_receiver(
    struct transport_zmq *transport, const struct receiver *receiver, enum transport_zmq_source at)
{
    return waiter_add_descriptor(&transport->waiter, at, receiver->visitors.inflow.epoll) &&
           waiter_add(&transport->waiter, at + 1, receiver->pull) &&
           waiter_add(&transport->waiter, at + 2, receiver->visitors.monitor.pair);
}

void transport_zmq_close_receivers(struct transport_zmq *transport)
{
    for (unsigned at = SOURCE_INFLOW; at < WAITER_SOURCES; at++) {
        waiter_remove(&transport->waiter, at);
    }
    receiver_close(&transport->receiver);
    receiver_close(&transport->bulk);
}

/* again: where this transport listened until now. bulk: NULL if it is encrypted. */
enum adtopk_status transport_zmq_listen(struct transport_zmq *transport, const char *listen,
    const char *bulk, bool again, struct error *err)
{
    const struct keyfile_pair *pair = transport->home.pair;
    enum receiver_door door = pair != NULL ? RECEIVER_KEY : RECEIVER_OPEN;
    enum adtopk_status status;

    if (!receiver_open(&transport->receiver, transport->zmq, listen, door, pair, again) ||
        !transport_zmq_watch_receiver(transport, &transport->receiver, SOURCE_INFLOW)) {
        status = transport_zmq_failed(err, "cannot listen on", listen);
    } else if (bulk != NULL && (!receiver_open(&transport->bulk, transport->zmq, bulk,
                                    RECEIVER_TOKEN, NULL, again) ||
                                   !transport_zmq_watch_receiver(
                                       transport, &transport->bulk, SOURCE_BULK_INFLOW))) {
        status = transport_zmq_failed(err, "cannot listen on", bulk);
    } else {
        return ADTOPK_OK;
    }
    transport_zmq_close_receivers(transport);
    return status;
}

static void transport_zmq_destroy(void *handle)
{
    struct transport_zmq *transport = handle;

    if (transport == NULL) {
        return;
    }
    for (size_t i = 0; i < transport->count; i++) {
        sender_close(&transport->peers[i]);
    }
    transport_zmq_close_receivers(
        transport); /* before the ZAP handler: no socket may be without one */
    zap_close(&transport->zap);
    while (transport->zmq != NULL && zmq_ctx_term(transport->zmq) != 0 && errno == EINTR) {
    }
    waiter_close(&transport->waiter);
    allow_clear(&transport->allow);
    token_clear(&transport->tokens);
    keyfile_wipe(&transport->pair);
    free(transport->peers);
    free(transport);
}

/* Whether a thread may be of the class SCHED_BATCH. libzmq aborts if the kernel, or a container's
 * substitute, refuses. This function tries it and goes back, if the thread is of the usual class.
 */
static bool transport_zmq_may_batch(void)
{
    const struct sched_param none = {.sched_priority = 0};

    return sched_getscheduler(0) == SCHED_OTHER && sched_setscheduler(0, SCHED_BATCH, &none) == 0 &&
           sched_setscheduler(0, SCHED_OTHER, &none) == 0;
}

static bool transport_zmq_start(
    struct transport_zmq *transport, const struct transport_config *config)
{
    transport->waiter.epoll = -1;
    transport->zmq = zmq_ctx_new();
    if (transport->zmq == NULL || !waiter_open(&transport->waiter)) {
        return false;
    }
    /* The number of peers is the configuration's, not libzmq's default of 1023 sockets. */
    (void)zmq_ctx_set(
        transport->zmq, ZMQ_MAX_SOCKETS, zmq_ctx_get(transport->zmq, ZMQ_SOCKET_LIMIT));
    (void)zmq_ctx_set(
        transport->zmq, ZMQ_IO_THREADS, config->threads > 0 ? (int)config->threads : 1);
    /* With SCHED_BATCH its threads wait until a thread that computes on the core has used up a
     * slice of time. Then more packets have come, and they receive them with fewer wake-ups. On an
     * idle core they run at once as well. */
    if (transport_zmq_may_batch()) {
        (void)zmq_ctx_set(transport->zmq, ZMQ_THREAD_SCHED_POLICY, SCHED_BATCH);
    }
    transport->home = (struct sender_home){.zmq = transport->zmq,
        .self = config->self,
        .clear_bulk = config->bulk_listen != NULL,
        .retry_ms = socket_retry_ms(config->peers),
        .refusals = &transport->refusals};
    if (config->pair == NULL) {
        return true;
    }
    transport->pair = *config->pair;
    transport->home.pair = &transport->pair;
    transport->zap = (struct zap){
        .allow = &transport->allow, .tokens = &transport->tokens, .refusals = &transport->refusals};
    return zap_open(&transport->zap, transport->zmq) &&
           waiter_add(&transport->waiter, SOURCE_ZAP, transport->zap.socket);
}

static enum adtopk_status transport_zmq_check_config(
    const struct transport_config *config, struct error *err)
{
    enum adtopk_status status = transport_zmq_check_endpoint(config->listen, err);

    if (status == ADTOPK_OK && config->bulk_listen != NULL) {
        status = config->pair != NULL ? transport_zmq_check_endpoint(config->bulk_listen, err)
                                      : error_set(err, ADTOPK_ERR_ARGUMENT,
                                            "an endpoint for bulk in the clear, but no keys");
    }
    if (status == ADTOPK_OK && config->pair != NULL && zmq_has("curve") == 0) {
        status = error_set(err, ADTOPK_ERR_SYSTEM, "this libzmq was built without CURVE");
    }
    return status;
}

static void *transport_zmq_create(const struct transport_config *config,
    transport_receive_fn receive, void *context, struct error *err)
{
    struct transport_zmq *transport = NULL;

    if (transport_zmq_check_config(config, err) != ADTOPK_OK) {
        return NULL;
    }
    transport = calloc(1, sizeof(*transport));
    if (transport == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for the transport");
        return NULL;
    }
    transport->receive = receive;
    transport->context = context;
    transport->refusals = (struct refusals){.warn = config->warn, .context = context};
    if (!transport_zmq_start(transport, config)) {
        (void)transport_zmq_failed(err, "cannot start ZeroMQ for", config->listen);
    } else if (transport_zmq_listen(transport, config->listen, config->bulk_listen, false, err) ==
               ADTOPK_OK) {
        return transport;
    }
    transport_zmq_destroy(transport);
    return NULL;
}

/* ------------------------------------------------------------------ sending */

static bool transport_zmq_send(void *handle, uint16_t id, enum link_lane lane,
    const uint8_t *header, size_t header_size, const uint8_t *body, size_t body_size,
    struct buffer *owner)
{
    struct transport_zmq *transport = handle;
    struct sender *sender = transport_zmq_find(transport, id);
    void *socket;

    assert(header_size <= LINK_HEADER_MAX && body_size <= TRANSPORT_BODY_MAX);
    socket = sender != NULL ? sender_ready(sender, &transport->home, lane) : NULL;
    if (socket == NULL) {
        return false;
    }
    return owner != NULL ? parts_send_two(socket, header, header_size, body, body_size, owner)
                         : parts_send_one(socket, header, header_size, body, body_size);
}

static void transport_zmq_reopen(void *handle, uint16_t id, enum link_lane lane)
{
    struct transport_zmq *transport = handle;
    struct sender *sender = transport_zmq_find(transport, id);

    if (sender != NULL) {
        sender_reopen(sender, &transport->home, lane);
    }
}

static int transport_zmq_descriptor(void *handle)
{
    struct transport_zmq *transport = handle;

    return transport->waiter.epoll;
}

static const struct keyfile_pair *transport_zmq_pair(const void *handle)
{
    const struct transport_zmq *transport = handle;

    return transport->home.pair;
}

static const char *transport_zmq_endpoint(const void *handle)
{
    const struct transport_zmq *transport = handle;

    return transport->receiver.endpoint;
}

static const char *transport_zmq_protection(const void *handle)
{
    const struct transport_zmq *transport = handle;

    return transport->home.pair == NULL ? "none"
           : transport->home.clear_bulk ? "control only"
                                        : "curve";
}

static struct transport_refused transport_zmq_refused(const void *handle)
{
    const struct transport_zmq *transport = handle;
    const struct refusal_budget *budget = transport->refusals.budget;

    return (struct transport_refused){.keys = budget[REFUSAL_KEY].count,
        .handshakes = budget[REFUSAL_HANDSHAKE].count,
        .tokens = budget[REFUSAL_TOKEN].count,
        .packets = budget[REFUSAL_PACKET].count};
}

/* ------------------------------------------------------------------ receiving */

static uint16_t transport_zmq_bulk_port(const struct transport_zmq *transport)
{
    const char *colon = strrchr(transport->bulk.endpoint, ':');

    return transport->bulk.pull != NULL && colon != NULL ? (uint16_t)strtoul(colon + 1, NULL, 10)
                                                         : 0;
}

/* A peer asks for a token, under this key. Without memory it gets no answer, and asks again. */
static void transport_zmq_grant(struct transport_zmq *transport, struct sender *sender,
    const char *key, const struct token_message *request)
{
    struct token_message grant = {.type = TOKEN_GRANT, .number = request->number};
    uint8_t bytes[TOKEN_GRANT_SIZE];
    void *socket = sender_ready(sender, &transport->home, LINK_CONTROL);

    grant.port = transport_zmq_bulk_port(transport);
    if (socket == NULL || (grant.port != 0 && !token_issue(&transport->tokens, sender->id, key,
                                                  transport_now_us(), grant.token))) {
        return;
    }
    (void)zmq_send(socket, bytes, token_encode(&grant, bytes), ZMQ_DONTWAIT);
}

static void transport_zmq_take_token_message(struct transport_zmq *transport, uint16_t peer,
    const char *key, const uint8_t *bytes, size_t size)
{
    struct sender *sender = transport_zmq_find(transport, peer);
    struct token_message message;
    char line[ERROR_TEXT_SIZE];

    if (sender == NULL || !token_decode(&message, bytes, size)) {
        (void)snprintf(line, sizeof(line), "node %" PRIu16 " sent a malformed token message", peer);
        refusals_add(&transport->refusals, REFUSAL_PACKET, line);
    } else if (message.type == TOKEN_REQUEST) {
        transport_zmq_grant(transport, sender, key, &message);
    } else {
        sender_grant(sender, &transport->home, &message);
    }
}

/* Returns false, after a complaint, if the packet names another node than its connection's key
 * does. */
static bool transport_zmq_is_honest(
    struct transport_zmq *transport, bool bulk, uint16_t peer, const uint8_t *packet)
{
    uint16_t source =
        (uint16_t)(packet[PACKET_SOURCE_AT] | (unsigned)packet[PACKET_SOURCE_AT + 1] << 8);
    char line[ERROR_TEXT_SIZE];

    if (source != peer) {
        (void)snprintf(line, sizeof(line),
            "node %" PRIu16 " sent a packet that says it is from node %" PRIu16, peer, source);
    } else if (bulk && packet[PACKET_LANE_AT] != LINK_BULK) {
        (void)snprintf(
            line, sizeof(line), "node %" PRIu16 " sent a control packet in the clear", peer);
    } else {
        return true;
    }
    refusals_add(&transport->refusals, REFUSAL_PACKET, line);
    return false;
}

static void transport_zmq_refuse_packet(struct transport_zmq *transport)
{
    refusals_add(&transport->refusals, REFUSAL_PACKET, "a message came that is no packet");
}

/* Hands a packet on. Messages of at least a header are ours; the rest is dropped. */
static void transport_zmq_hand_on(struct transport_zmq *transport, const struct receiver *receiver,
    zmq_msg_t *message, struct buffer *body)
{
    const uint8_t *packet = zmq_msg_data(message);
    size_t size = zmq_msg_size(message);
    uint16_t peer = UINT16_MAX;

    if (receiver->door != RECEIVER_OPEN) {
        const char *key = zmq_msg_gets(message, "User-Id");

        peer = allow_find(&transport->allow, key);
        if (peer == UINT16_MAX) {
            refusals_add(
                &transport->refusals, REFUSAL_PACKET, "a packet came under a key that was removed");
            return;
        }
        if (body == NULL && token_is_message(packet, size) && receiver->door == RECEIVER_KEY) {
            transport_zmq_take_token_message(transport, peer, key, packet, size);
            return;
        }
    }
    if (size < PACKET_HEADER_SIZE || packet[PACKET_LANE_AT] >= LINK_LANES) {
        transport_zmq_refuse_packet(transport);
        return;
    }
    if (peer != UINT16_MAX &&
        !transport_zmq_is_honest(transport, receiver->door == RECEIVER_TOKEN, peer, packet)) {
        return;
    }
    transport->receive(
        transport->context, peer, (enum link_lane)packet[PACKET_LANE_AT], packet, size, body);
}

/* A message has begun to arrive; all of it is there. */
static void transport_zmq_take_message(
    struct transport_zmq *transport, struct receiver *receiver, zmq_msg_t *first)
{
    struct buffer *body;

    inflow_took(&receiver->visitors.inflow, zmq_msg_get(first, ZMQ_SRCFD));
    switch (parts_take_rest(receiver->pull, first, &body)) {
    case PARTS_PACKET: transport_zmq_hand_on(transport, receiver, first, body); break;
    case PARTS_BAD: transport_zmq_refuse_packet(transport); break;
    case PARTS_MANY: receiver_skip(receiver, first, &transport->refusals); break;
    }
    buffer_unref(body);
}

static bool transport_zmq_take(
    struct transport_zmq *transport, struct receiver *receiver, unsigned budget)
{
    zmq_msg_t message;

    for (; budget > 0; budget--) {
        if (receiver->skipping) {
            receiver->skipping = !socket_drop_parts(receiver->pull, TRANSPORT_ZMQ_DROPS);
            continue;
        }
        if (zmq_msg_init(&message) != 0) {
            return true;
        }
        if (zmq_msg_recv(&message, receiver->pull, ZMQ_DONTWAIT) < 0) {
            bool again = errno == EINTR || (socket_events(receiver->pull) & ZMQ_POLLIN) != 0;

            (void)zmq_msg_close(&message);
            if (!again) {
                return false;
            }
        } else {
            transport_zmq_take_message(transport, receiver, &message);
            (void)zmq_msg_close(&message);
        }
    }
    return (socket_events(receiver->pull) & ZMQ_POLLIN) != 0;
}

static bool transport_zmq_receive(
    struct transport_zmq *transport, struct receiver *receiver, unsigned budget)
{
    bool more = transport_zmq_take(transport, receiver, budget);

    receiver_judge(receiver, !more, &transport->refusals);
    return more;
}

/* What has come in is counted. If that is too much, all of it is taken, and then judged. */
static bool transport_zmq_count(
    struct transport_zmq *transport, struct receiver *receiver, enum transport_zmq_source pull)
{
    if (inflow_look(&receiver->visitors.inflow)) {
        transport->waiter.pending[pull] = true;
    }
    return false;
}

/* Gives one source its share of a pump; true if more may wait. */
static bool transport_zmq_serve(
    struct transport_zmq *transport, enum transport_zmq_source at, unsigned budget)
{
    switch (at) {
    case SOURCE_ZAP: return zap_serve(&transport->zap, budget);
    case SOURCE_INFLOW: return transport_zmq_count(transport, &transport->receiver, SOURCE_PULL);
    case SOURCE_BULK_INFLOW: return transport_zmq_count(transport, &transport->bulk, SOURCE_BULK);
    case SOURCE_PULL: return transport_zmq_receive(transport, &transport->receiver, budget);
    case SOURCE_BULK: return transport_zmq_receive(transport, &transport->bulk, budget);
    case SOURCE_WATCH:
    case SOURCE_BULK_WATCH: break;
    }
    return receiver_watch(
        at == SOURCE_WATCH ? &transport->receiver : &transport->bulk, budget, &transport->refusals);
}

static bool transport_zmq_pump(void *handle, unsigned budget)
{
    struct transport_zmq *transport = handle;

    waiter_look(&transport->waiter);
    for (unsigned at = 0; at < WAITER_SOURCES; at++) {
        if (transport->waiter.pending[at]) {
            transport->waiter.pending[at] =
                transport_zmq_serve(transport, (enum transport_zmq_source)at, budget);
        }
    }
    return waiter_any(&transport->waiter);
}

const struct transport_ops transport_zmq = {
    .name = "zmq",
    .create = transport_zmq_create,
    .add_peer = transport_zmq_add_peer,
    .drop_peer = transport_zmq_drop_peer,
    .move_peer = transport_zmq_move_peer,
    .reload = transport_zmq_reload,
    .pair = transport_zmq_pair,
    .endpoint = transport_zmq_endpoint,
    .protection = transport_zmq_protection,
    .refused = transport_zmq_refused,
    .send = transport_zmq_send,
    .reopen = transport_zmq_reopen,
    .descriptor = transport_zmq_descriptor,
    .pump = transport_zmq_pump,
    .destroy = transport_zmq_destroy,
};
