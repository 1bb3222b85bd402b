#include "daemon/transport/socket.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <zmq.h>

#include "daemon/transport/transport.h"
#include "proto/retry.h"

#define SOCKET_PACKET_MAX (LINK_HEADER_MAX + (int64_t)TRANSPORT_BODY_MAX)

/* High-water marks count messages: so many may wait for one connection. */
#define SOCKET_RECEIVE_QUEUE 256
#define SOCKET_CONTROL_QUEUE 1000
#define SOCKET_BULK_QUEUE 64

/* Ranks wait for a daemon that was started again, so nodes try to reach it often. Each try costs
 * time, so with many peers there are no more in a second. libzmq adds up to RETRY_FIRST_MS. */
#define SOCKET_RETRY_FIRST_MS 100
#define SOCKET_RETRY_LEAST_MS 250
#define SOCKET_RETRY_MOST_MS 1000
#define SOCKET_HANDSHAKE_MS 5000
#define SOCKET_CONNECT_MS 5000
/* A connection is opened anew if its bytes stay unacknowledged for so long. Otherwise TCP's own
 * resend timeout decides when the end of a partition is noticed, which can take minutes. */
#define SOCKET_UNACKNOWLEDGED_MS 10000
#define SOCKET_KEEPALIVE_IDLE_S 30
#define SOCKET_KEEPALIVE_INTERVAL_S 10
#define SOCKET_KEEPALIVE_COUNT 3
#define SOCKET_PENDING_CONNECTIONS 1024

/* A millisecond apart. The loop stands still meanwhile, and peers must not notice. */
#define SOCKET_BIND_TRIES 250

struct socket_option {
    int name;
    int value;
};

static bool socket_set(void *socket, const struct socket_option *options, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (zmq_setsockopt(socket, options[i].name, &options[i].value, sizeof(int)) != 0) {
            return false;
        }
    }
    return true;
}

static bool socket_set_text(void *socket, int name, const char *text)
{
    return zmq_setsockopt(socket, name, text, strlen(text)) == 0;
}

static bool socket_set_common(void *socket, const char *endpoint)
{
    const int64_t packet_max = SOCKET_PACKET_MAX;
    const struct socket_option options[] = {
        {ZMQ_LINGER, 0},
        {ZMQ_IMMEDIATE, 1},
        {ZMQ_SNDTIMEO, 0},
        {ZMQ_RCVTIMEO, 0},
        {ZMQ_IPV6, strchr(endpoint, '[') != NULL},
        {ZMQ_HANDSHAKE_IVL, SOCKET_HANDSHAKE_MS},
        {ZMQ_TCP_MAXRT, SOCKET_UNACKNOWLEDGED_MS},
        {ZMQ_TCP_KEEPALIVE, 1},
        {ZMQ_TCP_KEEPALIVE_IDLE, SOCKET_KEEPALIVE_IDLE_S},
        {ZMQ_TCP_KEEPALIVE_INTVL, SOCKET_KEEPALIVE_INTERVAL_S},
        {ZMQ_TCP_KEEPALIVE_CNT, SOCKET_KEEPALIVE_COUNT},
    };

    return socket_set(socket, options, sizeof(options) / sizeof(options[0])) &&
           zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &packet_max, sizeof(packet_max)) == 0;
}

/* The socket if it is as it should be, NULL otherwise: errno survives its closing. */
static void *socket_keep_if(bool good, void *socket)
{
    int reason = errno;

    if (!good && socket != NULL) {
        (void)zmq_close(socket);
        errno = reason;
    }
    return good ? socket : NULL;
}

static bool socket_set_pull(void *socket, const char *endpoint)
{
    const struct socket_option options[] = {
        {ZMQ_RCVHWM, SOCKET_RECEIVE_QUEUE}, {ZMQ_BACKLOG, SOCKET_PENDING_CONNECTIONS}};

    return socket != NULL && socket_set_common(socket, endpoint) &&
           socket_set(socket, options, sizeof(options) / sizeof(options[0]));
}

void *socket_new_pull(void *zmq, const char *endpoint, const struct keyfile_pair *pair)
{
    const struct socket_option server = {ZMQ_CURVE_SERVER, 1};
    void *socket = zmq_socket(zmq, ZMQ_PULL);
    bool good = socket_set_pull(socket, endpoint);

    if (good && pair != NULL) {
        good =
            socket_set(socket, &server, 1) &&
            zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, pair->secret_key, KEYFILE_KEY_SIZE) == 0 &&
            socket_set_text(socket, ZMQ_ZAP_DOMAIN, SOCKET_DOMAIN_CONTROL);
    }
    return socket_keep_if(good, socket);
}

void *socket_new_bulk_pull(void *zmq, const char *endpoint)
{
    const struct socket_option server = {ZMQ_PLAIN_SERVER, 1};
    void *socket = zmq_socket(zmq, ZMQ_PULL);

    return socket_keep_if(socket_set_pull(socket, endpoint) && socket_set(socket, &server, 1) &&
                              socket_set_text(socket, ZMQ_ZAP_DOMAIN, SOCKET_DOMAIN_BULK),
        socket);
}

bool socket_bind(void *socket, const char *endpoint, bool again, char bound[SOCKET_ENDPOINT_SIZE])
{
    size_t size = SOCKET_ENDPOINT_SIZE;
    int tries = again ? SOCKET_BIND_TRIES : 1;

    for (;;) {
        int bind;

        RETRY(bind, zmq_bind(socket, endpoint));
        if (bind == 0) {
            break;
        }
        if (errno != EADDRINUSE || --tries <= 0) {
            return false;
        }
        (void)poll(NULL, 0, 1); /* libzmq closes sockets in the background */
    }
    return zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &size) == 0;
}

int socket_retry_ms(size_t peers)
{
    if (peers < SOCKET_RETRY_LEAST_MS) {
        return SOCKET_RETRY_LEAST_MS;
    }
    return peers < SOCKET_RETRY_MOST_MS ? (int)peers : SOCKET_RETRY_MOST_MS;
}

static bool socket_set_push(void *socket, enum link_lane lane, const char *endpoint)
{
    const struct socket_option options[] = {
        {ZMQ_SNDHWM, lane == LINK_CONTROL ? SOCKET_CONTROL_QUEUE : SOCKET_BULK_QUEUE},
        {ZMQ_CONNECT_TIMEOUT, SOCKET_CONNECT_MS},
    };

    return socket != NULL && socket_set_common(socket, endpoint) &&
           socket_set(socket, options, sizeof(options) / sizeof(options[0]));
}

static bool socket_set_client(void *socket, const struct keyfile_pair *pair)
{
    return zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, pair->public_key, KEYFILE_KEY_SIZE) == 0 &&
           zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, pair->secret_key, KEYFILE_KEY_SIZE) == 0;
}

bool socket_reach(void *socket, const char *endpoint)
{
    int reached;

    RETRY(reached, zmq_connect(socket, endpoint));
    return reached == 0;
}

/* Connects to each key's server, or to the one without keys. */
static bool socket_connect(void *socket, const struct socket_target *target)
{
    bool good = true;

    if (target->pair == NULL) {
        return socket_reach(socket, target->endpoint);
    }
    for (size_t i = 0; i < target->key_count && good; i++) {
        /* The option is for the connections that are opened after it. */
        good =
            zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, target->keys[i], KEYFILE_KEY_SIZE) == 0 &&
            socket_reach(socket, target->endpoint);
    }
    return good;
}

void *socket_open_push(
    void *zmq, enum link_lane lane, const struct socket_target *target, struct monitor *monitor)
{
    const struct socket_option again[] = {
        {ZMQ_RECONNECT_IVL, SOCKET_RETRY_FIRST_MS}, {ZMQ_RECONNECT_IVL_MAX, target->retry_ms}};
    void *socket = zmq_socket(zmq, ZMQ_PUSH);
    bool good = socket_set_push(socket, lane, target->endpoint) &&
                socket_set(socket, again, sizeof(again) / sizeof(again[0])) &&
                (target->pair == NULL || socket_set_client(socket, target->pair)) &&
                (monitor == NULL || monitor_open(monitor, zmq, socket, SOCKET_PUSH_REPORTS));

    if (good && !socket_connect(socket, target)) {
        int reason = errno;

        good = false;
        if (monitor != NULL) {
            monitor_close(monitor);
        }
        errno = reason;
    }
    return socket_keep_if(good, socket);
}

void *socket_new_bulk_push(void *zmq, const char *endpoint, const char *user, const char *token)
{
    const struct socket_option once = {ZMQ_RECONNECT_IVL, -1};
    void *socket = zmq_socket(zmq, ZMQ_PUSH);

    return socket_keep_if(socket_set_push(socket, LINK_BULK, endpoint) &&
                              socket_set(socket, &once, 1) &&
                              socket_set_text(socket, ZMQ_PLAIN_USERNAME, user) &&
                              socket_set_text(socket, ZMQ_PLAIN_PASSWORD, token),
        socket);
}

int socket_events(void *socket)
{
    int events = 0;
    size_t size = sizeof(events);
    int found;

    RETRY(found, zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size));
    return found == 0 ? events : 0;
}

bool socket_receive_part(void *socket, zmq_msg_t *part)
{
    int size;

    do {
        size = zmq_msg_recv(part, socket, ZMQ_DONTWAIT);
    } while (size < 0 && errno == EINTR);
    return size >= 0;
}

bool socket_drop_parts(void *socket, unsigned most)
{
    bool more = true;
    zmq_msg_t part;

    (void)zmq_msg_init(&part);
    for (; most > 0 && more; most--) {
        more = socket_receive_part(socket, &part) && zmq_msg_more(&part) != 0;
    }
    (void)zmq_msg_close(&part);
    return !more;
}
