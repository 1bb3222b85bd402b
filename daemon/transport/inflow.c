#include "daemon/transport/inflow.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "daemon/transport/clock.h"

#define INFLOW_EVENTS 64
#define INFLOW_TIMER UINT32_MAX
#define INFLOW_MANY 4 /* connections that cost another millisecond between two looks */

/* Messages after which libzmq, which takes turns, has handed over one of every connection. */
#define INFLOW_TURNS(open) (2 * (uint64_t)(open) + 16)

bool inflow_open(struct inflow *inflow, unsigned allowance)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = INFLOW_TIMER};
    int reason;

    *inflow = (struct inflow){.opened = true,
        .epoll = epoll_create1(EPOLL_CLOEXEC),
        .timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
        .allowance = allowance};
    if (inflow->epoll >= 0 && inflow->timer >= 0 &&
        epoll_ctl(inflow->epoll, EPOLL_CTL_ADD, inflow->timer, &event) == 0) {
        return true;
    }
    reason = errno;
    inflow_close(inflow);
    errno = reason;
    return false;
}

void inflow_close(struct inflow *inflow)
{
    if (inflow->opened && inflow->epoll >= 0) {
        (void)close(inflow->epoll);
    }
    if (inflow->opened && inflow->timer >= 0) {
        (void)close(inflow->timer);
    }
    free(inflow->connection);
    *inflow = (struct inflow){.opened = false};
}

void inflow_bound(struct inflow *inflow, const char *endpoint)
{
    const char *colon = strrchr(endpoint, ':');

    inflow->port = colon != NULL ? (unsigned)strtoul(colon + 1, NULL, 10) : 0;
}

static bool inflow_reserve(struct inflow *inflow, uint32_t descriptor)
{
    size_t size = (size_t)descriptor + 64;
    struct inflow_connection *grown;

    if (descriptor < inflow->size) {
        return true;
    }
    grown = realloc(inflow->connection, size * sizeof(*grown));
    if (grown == NULL) {
        return false;
    }
    memset(grown + inflow->size, 0, (size - inflow->size) * sizeof(*grown));
    inflow->connection = grown;
    inflow->size = size;
    return true;
}

/* Asks for a report when the connection has something to read. */
static bool inflow_arm(const struct inflow *inflow, int operation, uint32_t descriptor)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u32 = descriptor};

    return epoll_ctl(inflow->epoll, operation, (int)descriptor, &event) == 0;
}

/* Has the kernel watch a connection. It may do so already. Reports are read late: that of an
 * earlier connection may have added this one, which has the same descriptor. */
static bool inflow_watch(const struct inflow *inflow, uint32_t descriptor)
{
    return inflow_arm(inflow, EPOLL_CTL_ADD, descriptor) ||
           (errno == EEXIST && inflow_arm(inflow, EPOLL_CTL_MOD, descriptor));
}

void inflow_add(struct inflow *inflow, uint32_t descriptor)
{
    inflow_remove(inflow, descriptor);
    if (inflow_reserve(inflow, descriptor) && inflow_watch(inflow, descriptor)) {
        inflow->connection[descriptor] =
            (struct inflow_connection){.open = true, .took = true, .looked_us = transport_now_us()};
        inflow->open++;
    }
}

/* It may have sent no message that does not end, after all. */
static void inflow_acquit(struct inflow *inflow, struct inflow_connection *one)
{
    inflow->suspects -= one->suspect ? 1 : 0;
    one->suspect = false;
}

void inflow_remove(struct inflow *inflow, uint32_t descriptor)
{
    if (descriptor < inflow->size && inflow->connection[descriptor].open) {
        inflow->open--;
        inflow_acquit(inflow, &inflow->connection[descriptor]);
        inflow->connection[descriptor].open = false;
    }
}

void inflow_took(struct inflow *inflow, int descriptor)
{
    inflow->handed++;
    if (descriptor >= 0 && (size_t)descriptor < inflow->size) {
        inflow->connection[descriptor].took = true;
    }
}

/* The port of one end of a connection. Returns 0 if there is none, because libzmq has closed the
 * descriptor meanwhile and it now belongs to something else. */
static unsigned inflow_port(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET) {
        return ntohs(((const struct sockaddr_in *)(const void *)address)->sin_port);
    }
    return address->ss_family == AF_INET6
               ? ntohs(((const struct sockaddr_in6 *)(const void *)address)->sin6_port)
               : 0;
}

static bool inflow_is_ours(const struct inflow *inflow, int descriptor)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);

    return getsockname(descriptor, (struct sockaddr *)&address, &size) == 0 &&
           inflow_port(&address) == inflow->port;
}

/* The bytes that libzmq has read from a connection; false if the kernel does not tell. */
static bool inflow_count(int descriptor, uint64_t *bytes)
{
    struct tcp_info info;
    socklen_t size = sizeof(info);
    int unread = 0;

    if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
        size < offsetof(struct tcp_info, tcpi_bytes_received) + sizeof(info.tcpi_bytes_received) ||
        ioctl(descriptor, FIONREAD, &unread) != 0) {
        return false;
    }
    /* More may have come between the two questions. */
    *bytes = info.tcpi_bytes_received - (unsigned)unread;
    if (info.tcpi_bytes_received < (unsigned)unread) {
        *bytes = 0;
    }
    return true;
}

/* Returns true if the connection has brought bytes since the last look. */
static bool inflow_look_at(struct inflow *inflow, uint32_t descriptor, uint64_t now_us)
{
    struct inflow_connection *one = &inflow->connection[descriptor];
    uint64_t bytes, free_bytes = (now_us - one->looked_us) * inflow->allowance / 1000000;
    bool brought;

    if (!inflow_count((int)descriptor, &bytes)) {
        return false;
    }
    brought = bytes > one->bytes;
    bytes = brought ? bytes : one->bytes; /* fewer: many came between inflow_count()'s questions */
    one->bytes = bytes;
    one->looked_us = now_us;
    one->base = one->took || one->base + free_bytes > bytes ? bytes : one->base + free_bytes;
    if (one->took) {
        inflow_acquit(inflow, one); /* a message of it did end, and the next one is counted anew */
        one->took = false;
    }
    if (bytes - one->base > INFLOW_MOST && !one->suspect) {
        one->suspect = true;
        one->handed = inflow->handed;
        inflow->suspects++;
    }
    return brought;
}

/* Looks at all connections that rest. Those that still bring bytes go on resting. For the others
 * the loop wakes when they have something to read. Returns true if some go on resting. */
static bool inflow_wake(struct inflow *inflow, uint64_t now_us)
{
    bool some = false;

    for (uint32_t i = 0; i < inflow->size; i++) {
        struct inflow_connection *one = &inflow->connection[i];

        if (one->open && one->resting) {
            one->resting = inflow_look_at(inflow, i, now_us);
            some = some || one->resting;
            if (!one->resting) {
                (void)inflow_arm(inflow, EPOLL_CTL_MOD, i);
            }
        }
    }
    return some;
}

static void inflow_rest(struct inflow *inflow)
{
    const uint64_t rest_us = INFLOW_REST_US + inflow->open / INFLOW_MANY * 1000;
    const struct itimerspec rest = {.it_value = {.tv_sec = (time_t)(rest_us / 1000000),
                                        .tv_nsec = (long)(rest_us % 1000000) * 1000}};

    inflow->timing = timerfd_settime(inflow->timer, 0, &rest, NULL) == 0;
}

bool inflow_look(struct inflow *inflow)
{
    struct epoll_event events[INFLOW_EVENTS];
    int ready = epoll_wait(inflow->epoll, events, INFLOW_EVENTS, 0);
    uint64_t now_us = transport_now_us(), ended;
    bool rest = false;

    for (int i = 0; i < ready; i++) {
        const uint32_t at = events[i].data.u32;

        if (at == INFLOW_TIMER) {
            inflow->timing = read(inflow->timer, &ended, sizeof(ended)) != sizeof(ended);
            rest = inflow_wake(inflow, now_us) || rest;
        } else if (inflow->connection[at].open) {
            (void)inflow_look_at(inflow, at, now_us);
            inflow->connection[at].resting = true; /* whatever the kernel said: it is asked again */
            rest = true;
        }
    }
    if (rest && !inflow->timing) {
        inflow_rest(inflow);
    }
    return inflow->suspects > 0;
}

static void inflow_name(int descriptor, char who[INFLOW_WHO_SIZE])
{
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);
    char text[INET6_ADDRSTRLEN] = "?";
    const void *number;

    (void)snprintf(who, INFLOW_WHO_SIZE, "somebody");
    if (getpeername(descriptor, (struct sockaddr *)&address, &size) != 0) {
        return;
    }
    number = address.ss_family == AF_INET6
                 ? (const void *)&((const struct sockaddr_in6 *)(const void *)&address)->sin6_addr
                 : (const void *)&((const struct sockaddr_in *)(const void *)&address)->sin_addr;
    (void)inet_ntop(address.ss_family, number, text, sizeof(text));
    (void)snprintf(who, INFLOW_WHO_SIZE, "%s port %u", text, inflow_port(&address));
}

/* Ends a connection of ours. libzmq notices, and frees the parts that it gathered. */
static bool inflow_cut(struct inflow *inflow, int descriptor, char who[INFLOW_WHO_SIZE])
{
    if (!inflow_is_ours(inflow, descriptor)) {
        return false;
    }
    inflow_name(descriptor, who);
    (void)shutdown(descriptor, SHUT_RDWR);
    inflow_remove(inflow, (uint32_t)descriptor);
    return true;
}

/* Whether the connection's other end has the address that libzmq gives it. */
static bool inflow_is_from(int descriptor, const char *address)
{
    struct sockaddr_storage peer;
    socklen_t size = sizeof(peer);
    char text[INFLOW_WHO_SIZE];

    return address != NULL && getpeername(descriptor, (struct sockaddr *)&peer, &size) == 0 &&
           getnameinfo(
               (struct sockaddr *)&peer, size, text, sizeof(text), NULL, 0, NI_NUMERICHOST) == 0 &&
           strcmp(text, address) == 0;
}

bool inflow_end(struct inflow *inflow, zmq_msg_t *message, char who[INFLOW_WHO_SIZE])
{
    const int descriptor = zmq_msg_get(message, ZMQ_SRCFD);

    return descriptor >= 0 && (size_t)descriptor < inflow->size &&
           inflow->connection[descriptor].open &&
           inflow_is_from(descriptor, zmq_msg_gets(message, "Peer-Address")) &&
           inflow_cut(inflow, descriptor, who);
}

bool inflow_judge(struct inflow *inflow, bool drained, char who[INFLOW_WHO_SIZE])
{
    for (size_t i = 0; i < inflow->size && inflow->suspects > 0; i++) {
        struct inflow_connection *one = &inflow->connection[i];
        bool guilty = drained || inflow->handed - one->handed > INFLOW_TURNS(inflow->open);

        if (!one->open || !one->suspect || (!one->took && !guilty)) {
            continue;
        }
        inflow_acquit(inflow, one);
        if (!one->took && inflow_cut(inflow, (int)i, who)) {
            return true;
        }
    }
    return false;
}
