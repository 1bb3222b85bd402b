/*
 * Packets over ZeroMQ, TCP only.
 *
 * One PULL socket receives from everybody. To each peer there are two PUSH sockets, one a lane, so
 * that control packets have a TCP connection of their own and never wait behind bulk. A packet is
 * one single-part message, header and body copied into it; its header names the lane.
 *
 * A packet is refused (send returns false) while the peer is not connected or its queue is full,
 * and lost without a word when a connection breaks. A packet longer than allowed makes libzmq close
 * the connection that brought it. Listening on ipc:// is refused: out of descriptors, libzmq's ipc
 * listener aborts the process.
 *
 * ZMQ_FD is edge-triggered: after it fired it need not fire again until nothing is left to
 * receive, and receiving elsewhere can swallow the edge. So only transport_zmq_pump() receives, to
 * the end or until its budget is used up (then it says so), and it is called when the descriptor
 * is readable and after sending. Not thread-safe, like the sockets.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "daemon/core/packet.h"
#include "daemon/transport/transport.h"

#define TRANSPORT_PACKET_MAX (LINK_HEADER_MAX + (int64_t)TRANSPORT_BODY_MAX)

/* High-water marks count messages: these are what may wait for one connection. */
#define TRANSPORT_RECEIVE_QUEUE 256
#define TRANSPORT_CONTROL_QUEUE 1000
#define TRANSPORT_BULK_QUEUE 64

#define TRANSPORT_RECONNECT_MS 100
#define TRANSPORT_RECONNECT_MAX_MS 1000
#define TRANSPORT_HANDSHAKE_MS 5000
#define TRANSPORT_CONNECT_MS 5000
/* A connection whose bytes nobody acknowledges for so long is opened anew. Otherwise TCP's own
 * resend timeout decides when the end of a partition is noticed, which can take minutes. */
#define TRANSPORT_UNACKNOWLEDGED_MS 10000
#define TRANSPORT_KEEPALIVE_IDLE_S 30
#define TRANSPORT_KEEPALIVE_INTERVAL_S 10
#define TRANSPORT_KEEPALIVE_COUNT 3
#define TRANSPORT_PENDING_CONNECTIONS 1024

#define TRANSPORT_ENDPOINT_SIZE 256

struct transport_zmq_peer {
    uint16_t id;
    void *push[LINK_LANES];
};

struct transport_zmq {
    void *zmq;
    void *pull;
    int descriptor;
    char endpoint[TRANSPORT_ENDPOINT_SIZE];
    transport_receive_fn receive;
    void *context;
    struct transport_zmq_peer *peers; /* in ascending order of id */
    size_t count;
};

struct transport_zmq_option {
    int name;
    int value;
};

static bool transport_zmq_set(
    void *socket, const struct transport_zmq_option *options, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (zmq_setsockopt(socket, options[i].name, &options[i].value, sizeof(int)) != 0) {
            return false;
        }
    }
    return true;
}

static bool transport_zmq_set_common(void *socket, const char *endpoint)
{
    const int64_t packet_max = TRANSPORT_PACKET_MAX;
    const struct transport_zmq_option options[] = {
        {ZMQ_LINGER, 0},
        {ZMQ_IMMEDIATE, 1},
        {ZMQ_SNDTIMEO, 0},
        {ZMQ_RCVTIMEO, 0},
        {ZMQ_IPV6, strchr(endpoint, '[') != NULL},
        {ZMQ_HANDSHAKE_IVL, TRANSPORT_HANDSHAKE_MS},
        {ZMQ_TCP_MAXRT, TRANSPORT_UNACKNOWLEDGED_MS},
        {ZMQ_TCP_KEEPALIVE, 1},
        {ZMQ_TCP_KEEPALIVE_IDLE, TRANSPORT_KEEPALIVE_IDLE_S},
        {ZMQ_TCP_KEEPALIVE_INTVL, TRANSPORT_KEEPALIVE_INTERVAL_S},
        {ZMQ_TCP_KEEPALIVE_CNT, TRANSPORT_KEEPALIVE_COUNT},
    };

    return transport_zmq_set(socket, options, sizeof(options) / sizeof(options[0])) &&
           zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &packet_max, sizeof(packet_max)) == 0;
}

static enum adtopk_status transport_zmq_check_endpoint(const char *endpoint, struct error *err)
{
    if (strncmp(endpoint, "tcp://", 6) != 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "endpoint \"%s\": only tcp://address:port is supported between nodes", endpoint);
    }
    return ADTOPK_OK;
}

static enum adtopk_status transport_zmq_failed(
    struct error *err, const char *what, const char *endpoint)
{
    int reason = errno;
    bool argument = reason == EINVAL || reason == EPROTONOSUPPORT || reason == ENODEV;

    return error_set(err, argument ? ADTOPK_ERR_ARGUMENT : ADTOPK_ERR_SYSTEM, "%s \"%s\": %s", what,
        endpoint, zmq_strerror(reason));
}

static enum adtopk_status transport_zmq_listen(
    struct transport_zmq *transport, const char *endpoint, struct error *err)
{
    const struct transport_zmq_option options[] = {
        {ZMQ_RCVHWM, TRANSPORT_RECEIVE_QUEUE}, {ZMQ_BACKLOG, TRANSPORT_PENDING_CONNECTIONS}};
    size_t fd_size = sizeof(transport->descriptor);
    size_t endpoint_size = sizeof(transport->endpoint);

    transport->pull = zmq_socket(transport->zmq, ZMQ_PULL);
    if (transport->pull == NULL || !transport_zmq_set_common(transport->pull, endpoint) ||
        !transport_zmq_set(transport->pull, options, 2) ||
        zmq_bind(transport->pull, endpoint) != 0 ||
        zmq_getsockopt(transport->pull, ZMQ_FD, &transport->descriptor, &fd_size) != 0 ||
        zmq_getsockopt(transport->pull, ZMQ_LAST_ENDPOINT, transport->endpoint, &endpoint_size) !=
            0) {
        return transport_zmq_failed(err, "cannot listen on", endpoint);
    }
    return ADTOPK_OK;
}

static void transport_zmq_destroy(void *handle)
{
    struct transport_zmq *transport = handle;

    if (transport == NULL) {
        return;
    }
    for (size_t i = 0; i < transport->count; i++) {
        for (int lane = 0; lane < LINK_LANES; lane++) {
            (void)zmq_close(transport->peers[i].push[lane]);
        }
    }
    if (transport->pull != NULL) {
        (void)zmq_close(transport->pull);
    }
    while (transport->zmq != NULL && zmq_ctx_term(transport->zmq) != 0 && errno == EINTR) {
    }
    free(transport->peers);
    free(transport);
}

static void *transport_zmq_create(const struct transport_config *config,
    transport_receive_fn receive, void *context, struct error *err)
{
    struct transport_zmq *transport = NULL;

    if (transport_zmq_check_endpoint(config->listen, err) != ADTOPK_OK) {
        return NULL;
    }
    transport = calloc(1, sizeof(*transport));
    if (transport == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for the transport");
        return NULL;
    }
    transport->receive = receive;
    transport->context = context;
    transport->zmq = zmq_ctx_new(); /* one I/O thread unless told otherwise */
    if (transport->zmq == NULL) {
        (void)transport_zmq_failed(err, "cannot start ZeroMQ for", config->listen);
        transport_zmq_destroy(transport);
        return NULL;
    }
    /* The number of peers is the configuration's, not libzmq's default of 1023 sockets. */
    (void)zmq_ctx_set(
        transport->zmq, ZMQ_MAX_SOCKETS, zmq_ctx_get(transport->zmq, ZMQ_SOCKET_LIMIT));
    if (transport_zmq_listen(transport, config->listen, err) != ADTOPK_OK) {
        transport_zmq_destroy(transport);
        return NULL;
    }
    return transport;
}

/* The index of the first peer whose id is not below `id`. */
static size_t transport_zmq_peer_index(const struct transport_zmq *transport, uint16_t id)
{
    size_t low = 0, high = transport->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (transport->peers[middle].id < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void *transport_zmq_open_push(
    struct transport_zmq *transport, enum link_lane lane, const char *endpoint)
{
    const struct transport_zmq_option options[] = {
        {ZMQ_SNDHWM, lane == LINK_CONTROL ? TRANSPORT_CONTROL_QUEUE : TRANSPORT_BULK_QUEUE},
        {ZMQ_RECONNECT_IVL, TRANSPORT_RECONNECT_MS},
        {ZMQ_RECONNECT_IVL_MAX, TRANSPORT_RECONNECT_MAX_MS},
        {ZMQ_CONNECT_TIMEOUT, TRANSPORT_CONNECT_MS},
    };
    void *socket = zmq_socket(transport->zmq, ZMQ_PUSH);
    int reason;

    if (socket == NULL) {
        return NULL;
    }
    if (transport_zmq_set_common(socket, endpoint) &&
        transport_zmq_set(socket, options, sizeof(options) / sizeof(options[0])) &&
        zmq_connect(socket, endpoint) == 0) {
        return socket;
    }
    reason = errno;
    (void)zmq_close(socket);
    errno = reason;
    return NULL;
}

static enum adtopk_status transport_zmq_add_peer(
    void *handle, uint16_t id, const char *endpoint, struct error *err)
{
    struct transport_zmq *transport = handle;
    size_t at = transport_zmq_peer_index(transport, id);
    struct transport_zmq_peer *peers, peer = {.id = id};

    if (transport_zmq_check_endpoint(endpoint, err) != ADTOPK_OK) {
        return ADTOPK_ERR_ARGUMENT;
    }
    if (at < transport->count && transport->peers[at].id == id) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "node %u has an endpoint already", id);
    }
    peers = realloc(transport->peers, (transport->count + 1) * sizeof(*peers));
    if (peers == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for node %u", id);
    }
    transport->peers = peers;
    peer.push[LINK_CONTROL] = transport_zmq_open_push(transport, LINK_CONTROL, endpoint);
    if (peer.push[LINK_CONTROL] == NULL) {
        return transport_zmq_failed(err, "cannot connect to", endpoint);
    }
    peer.push[LINK_BULK] = transport_zmq_open_push(transport, LINK_BULK, endpoint);
    if (peer.push[LINK_BULK] == NULL) {
        enum adtopk_status status = transport_zmq_failed(err, "cannot connect to", endpoint);

        (void)zmq_close(peer.push[LINK_CONTROL]);
        return status;
    }
    memmove(&peers[at + 1], &peers[at], (transport->count - at) * sizeof(*peers));
    peers[at] = peer;
    transport->count++;
    return ADTOPK_OK;
}

/* Reading ZMQ_EVENTS makes libzmq look at what its I/O thread reported: connections that came up
 * or went away, room in a queue. */
static int transport_zmq_events(void *socket)
{
    int events = 0;
    size_t size = sizeof(events);

    return zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) == 0 ? events : 0;
}

static bool transport_zmq_send(void *handle, uint16_t id, enum link_lane lane,
    const uint8_t *header, size_t header_size, const uint8_t *body, size_t body_size)
{
    struct transport_zmq *transport = handle;
    size_t at = transport_zmq_peer_index(transport, id);
    zmq_msg_t message;
    void *socket;

    assert(header_size <= LINK_HEADER_MAX && body_size <= TRANSPORT_BODY_MAX);
    if (at >= transport->count || transport->peers[at].id != id) {
        return false;
    }
    socket = transport->peers[at].push[lane];
    if ((transport_zmq_events(socket) & ZMQ_POLLOUT) == 0 ||
        zmq_msg_init_size(&message, header_size + body_size) != 0) {
        return false;
    }
    memcpy(zmq_msg_data(&message), header, header_size);
    if (body_size > 0) {
        memcpy((uint8_t *)zmq_msg_data(&message) + header_size, body, body_size);
    }
    if (zmq_msg_send(&message, socket, ZMQ_DONTWAIT) < 0) {
        (void)zmq_msg_close(&message);
        return false;
    }
    return true;
}

static int transport_zmq_descriptor(void *handle)
{
    struct transport_zmq *transport = handle;

    return transport->descriptor;
}

static const char *transport_zmq_endpoint(const void *handle)
{
    const struct transport_zmq *transport = handle;

    return transport->endpoint;
}

/* Hands a packet on. Single-part messages of at least a header are ours; the rest is dropped. */
static void transport_zmq_hand_on(struct transport_zmq *transport, zmq_msg_t *message)
{
    const uint8_t *packet = zmq_msg_data(message);
    size_t size = zmq_msg_size(message);
    uint8_t lane;

    if (size < PACKET_HEADER_SIZE || zmq_msg_more(message) != 0) {
        return;
    }
    lane = packet[PACKET_LANE_AT];
    if (lane < LINK_LANES) {
        transport->receive(transport->context, UINT16_MAX, (enum link_lane)lane, packet, size);
    }
}

static bool transport_zmq_pump(void *handle, unsigned budget)
{
    struct transport_zmq *transport = handle;

    while (budget > 0) {
        zmq_msg_t message;

        if (zmq_msg_init(&message) != 0) {
            return true;
        }
        if (zmq_msg_recv(&message, transport->pull, ZMQ_DONTWAIT) < 0) {
            bool again =
                errno == EINTR || (transport_zmq_events(transport->pull) & ZMQ_POLLIN) != 0;

            (void)zmq_msg_close(&message);
            if (!again) {
                return false;
            }
        } else {
            transport_zmq_hand_on(transport, &message);
            (void)zmq_msg_close(&message);
        }
        budget--;
    }
    return (transport_zmq_events(transport->pull) & ZMQ_POLLIN) != 0;
}

const struct transport_ops transport_zmq = {
    .name = "zmq",
    .create = transport_zmq_create,
    .add_peer = transport_zmq_add_peer,
    .endpoint = transport_zmq_endpoint,
    .send = transport_zmq_send,
    .descriptor = transport_zmq_descriptor,
    .pump = transport_zmq_pump,
    .destroy = transport_zmq_destroy,
};
