#include "daemon/remote/gate.h"

#include <errno.h>
#include <string.h>

#include "proto/remote.h"

#define GATE_MONITOR "inproc://adtopk-remote-monitor"
#define GATE_LINGER_MS 200 /* for last words */
#define GATE_HANDSHAKE_MS 5000
#define GATE_PENDING_CONNECTIONS 128

static enum adtopk_status gate_failed(const char *what, const char *endpoint, struct error *err)
{
    const int reason = errno;
    const bool argument = reason == EINVAL || reason == EPROTONOSUPPORT || reason == ENODEV;

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

static enum adtopk_status gate_listen(
    struct gate *gate, const struct remote_config *config, struct error *err)
{
    size_t size = sizeof(int), endpoint_size = sizeof gate->endpoint;

    gate->zmq = zmq_ctx_new();
    if (gate->zmq == NULL || (gate->router = zmq_socket(gate->zmq, ZMQ_ROUTER)) == NULL ||
        !gate_set(gate, config)) {
        return gate_failed("ROUTER socket", config->listen, err);
    }
    if (zmq_socket_monitor(gate->router, GATE_MONITOR, ZMQ_EVENT_DISCONNECTED) != 0 ||
        (gate->monitor = zmq_socket(gate->zmq, ZMQ_PAIR)) == NULL ||
        zmq_connect(gate->monitor, GATE_MONITOR) != 0) {
        return gate_failed("monitor", config->listen, err);
    }
    if (zmq_bind(gate->router, config->listen) != 0 ||
        zmq_getsockopt(gate->router, ZMQ_LAST_ENDPOINT, gate->endpoint, &endpoint_size) != 0 ||
        zmq_getsockopt(gate->router, ZMQ_FD, &gate->descriptor, &size) != 0 ||
        zmq_getsockopt(gate->monitor, ZMQ_FD, &gate->monitor_descriptor, &size) != 0) {
        return gate_failed("bind", config->listen, err);
    }
    return ADTOPK_OK;
}

enum adtopk_status gate_open(
    struct gate *gate, const struct remote_config *config, struct error *err)
{
    const enum adtopk_status status = gate_listen(gate, config, err);

    if (status != ADTOPK_OK) {
        gate_close(gate);
    }
    return status;
}

void gate_close(struct gate *gate)
{
    if (gate->monitor != NULL) {
        (void)zmq_close(gate->monitor);
    }
    if (gate->router != NULL) {
        (void)zmq_close(gate->router);
    }
    while (gate->zmq != NULL && zmq_ctx_term(gate->zmq) != 0 && errno == EINTR) {
    }
    memset(gate, 0, sizeof *gate);
}

/* ---- receiving ---- */

bool gate_readable(struct gate *gate)
{
    int events = 0;
    size_t size = sizeof events;

    return zmq_getsockopt(gate->router, ZMQ_EVENTS, &events, &size) == 0 &&
           (events & ZMQ_POLLIN) != 0;
}

/* The other parts of a message are there with its first. False if there was none. */
static bool gate_next_part(struct gate *gate, zmq_msg_t *before, zmq_msg_t *part)
{
    return zmq_msg_more(before) != 0 && zmq_msg_recv(part, gate->router, ZMQ_DONTWAIT) >= 0;
}

bool gate_receive(struct gate *gate, struct gate_message *message)
{
    bool longer = false;

    /* These only fill in the structures. */
    (void)zmq_msg_init(&message->route);
    (void)zmq_msg_init(&message->header);
    (void)zmq_msg_init(&message->part);
    message->has_part = message->whole = false;
    while (zmq_msg_recv(&message->route, gate->router, ZMQ_DONTWAIT) < 0) {
        if (errno != EINTR) {
            gate_drop(message);
            return false;
        }
    }
    if (gate_next_part(gate, &message->route, &message->header)) {
        message->has_part = gate_next_part(gate, &message->header, &message->part);
        while (message->has_part && zmq_msg_more(&message->part) != 0) {
            longer = true;
            if (zmq_msg_recv(&message->part, gate->router, ZMQ_DONTWAIT) < 0) {
                break;
            }
        }
        message->whole = !longer;
    }
    return true;
}

void gate_drop(struct gate_message *message)
{
    (void)zmq_msg_close(&message->route);
    (void)zmq_msg_close(&message->header);
    (void)zmq_msg_close(&message->part);
}

bool gate_look(struct gate *gate)
{
    zmq_msg_t part;
    bool any = false;

    (void)zmq_msg_init(&part);
    while (zmq_msg_recv(&part, gate->monitor, ZMQ_DONTWAIT) >= 0) {
        any = true;
    }
    (void)zmq_msg_close(&part);
    return any;
}

/* ---- sending ---- */

enum gate_sent gate_send(struct gate *gate, const uint8_t *route, size_t route_size,
    const uint8_t *header, size_t header_size, zmq_msg_t *part)
{
    enum gate_sent sent = GATE_SENT;

    if (zmq_send(gate->router, route, route_size, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
        sent = errno == EHOSTUNREACH ? GATE_GONE : GATE_FULL;
    } else {
        /* A message that was begun is taken whole, or dropped whole if its connection breaks. */
        (void)zmq_send(
            gate->router, header, header_size, ZMQ_DONTWAIT | (part != NULL ? ZMQ_SNDMORE : 0));
        if (part != NULL && zmq_msg_send(part, gate->router, ZMQ_DONTWAIT) >= 0) {
            return GATE_SENT; /* the part is libzmq's now */
        }
    }
    if (part != NULL) {
        (void)zmq_msg_close(part);
    }
    return sent;
}
