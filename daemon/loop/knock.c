/*
 * Happy path: the name is resolved, a connection is tried, and its outcome is judged. A refused
 * connection is reported; any other outcome (accepted, no route, no answer) counts as silence.
 *
 * What can go wrong:
 *   - the name does not resolve, or no memory or descriptor is left: the attempt is dropped, and
 *     the next call tries again;
 *   - no answer comes: the attempt is closed after five seconds;
 *   - the owner goes away: the attempts close and forget it.
 */
#include "daemon/loop/knock.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/settings/endpoint.h"

#define KNOCK_PATIENCE_MS 5000

/* One attempt. It frees itself when both of its handles are closed. */
struct knock_try {
    struct knock_try *next;
    struct knock *owner; /* NULL: the owner is gone */
    uint16_t node;
    uv_getaddrinfo_t resolve;
    uv_connect_t connect;
    uv_tcp_t tcp;
    uv_timer_t patience;
    unsigned open; /* handles that are not closed yet, and the resolving */
};

struct knock {
    uv_loop_t *loop;
    knock_refused_fn refused;
    void *context;
    struct knock_try *tries;
};

struct knock *knock_create(uv_loop_t *loop, knock_refused_fn refused, void *context)
{
    struct knock *knock = calloc(1, sizeof(*knock));

    if (knock != NULL) {
        *knock = (struct knock){.loop = loop, .refused = refused, .context = context};
    }
    return knock;
}

static void knock_release(struct knock_try *attempt)
{
    if (--attempt->open == 0) {
        free(attempt);
    }
}

static void knock_closed(uv_handle_t *handle)
{
    knock_release(handle->data);
}

static void knock_end(struct knock_try *attempt)
{
    struct knock_try **link = attempt->owner != NULL ? &attempt->owner->tries : NULL;

    while (link != NULL && *link != attempt) {
        link = &(*link)->next;
    }
    if (link != NULL) {
        *link = attempt->next;
    }
    attempt->owner = NULL;
    if (!uv_is_closing((uv_handle_t *)&attempt->tcp)) {
        uv_close((uv_handle_t *)&attempt->tcp, knock_closed);
        uv_close((uv_handle_t *)&attempt->patience, knock_closed);
    }
}

static void knock_connected(uv_connect_t *connect, int status)
{
    struct knock_try *attempt = connect->data;
    struct knock *owner = attempt->owner;
    uint16_t node = attempt->node;

    if (owner == NULL) {
        return; /* closed meanwhile */
    }
    knock_end(attempt);
    if (status == UV_ECONNREFUSED) {
        owner->refused(owner->context, node);
    }
}

static void knock_resolved(uv_getaddrinfo_t *resolve, int status, struct addrinfo *found)
{
    struct knock_try *attempt = resolve->data;

    if (attempt->owner != NULL && (status != 0 || found == NULL ||
                                      uv_tcp_connect(&attempt->connect, &attempt->tcp,
                                          found->ai_addr, knock_connected) != 0)) {
        knock_end(attempt);
    }
    uv_freeaddrinfo(found);
    knock_release(attempt);
}

static void knock_out_of_patience(uv_timer_t *timer)
{
    knock_end(timer->data);
}

static struct knock_try *knock_begin(struct knock *knock, uint16_t node)
{
    struct knock_try *attempt = calloc(1, sizeof(*attempt));

    if (attempt == NULL) {
        return NULL;
    }
    attempt->node = node;
    attempt->owner = knock;
    attempt->resolve.data = attempt->connect.data = attempt;
    if (uv_tcp_init(knock->loop, &attempt->tcp) != 0) {
        free(attempt);
        return NULL;
    }
    (void)uv_timer_init(knock->loop, &attempt->patience);
    attempt->tcp.data = attempt->patience.data = attempt;
    attempt->open = 2;
    attempt->next = knock->tries;
    knock->tries = attempt;
    return attempt;
}

void knock_at(struct knock *knock, uint16_t node, const char *endpoint)
{
    /* libzmq also uses IPv4 only, unless it is configured otherwise. */
    const struct addrinfo hints = {
        .ai_family = endpoint_is_ipv6(endpoint) ? AF_INET6 : AF_INET, .ai_socktype = SOCK_STREAM};
    char host[ENDPOINT_HOST_SIZE];
    const char *port;
    struct knock_try *attempt;

    for (attempt = knock->tries; attempt != NULL; attempt = attempt->next) {
        if (attempt->node == node) {
            return;
        }
    }
    if (!endpoint_split(endpoint, host, &port)) {
        return;
    }
    attempt = knock_begin(knock, node);
    if (attempt == NULL) {
        return;
    }
    if (uv_timer_start(&attempt->patience, knock_out_of_patience, KNOCK_PATIENCE_MS, 0) != 0 ||
        uv_getaddrinfo(knock->loop, &attempt->resolve, knock_resolved, host, port, &hints) != 0) {
        knock_end(attempt);
        return;
    }
    attempt->open++;
}

void knock_destroy(struct knock *knock)
{
    if (knock == NULL) {
        return;
    }
    while (knock->tries != NULL) {
        struct knock_try *attempt = knock->tries;

        (void)uv_cancel((uv_req_t *)&attempt->resolve); /* fails if it is done */
        knock_end(attempt);
    }
    free(knock);
}
