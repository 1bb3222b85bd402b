#include "daemon/transport/sender.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "daemon/transport/clock.h"

/* An unanswered request is made again after ever longer times: on a slow network the answer to the
 * last one must have time to arrive. */
#define SENDER_PATIENCE_US 250000
#define SENDER_PATIENCE_MAX_US 8000000

/* Connections in a row that are closed in the handshake: a daemon that is killed then closes one,
 * a stranger all. */
#define SENDER_STRANGE 3u

#define SENDER_REPORTS (ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED)

static bool sender_open_lane(
    struct sender *sender, const struct sender_home *home, enum link_lane lane)
{
    /* Of several keys all but one are refused, which proves nothing. */
    bool watched = lane == LINK_CONTROL && sender->key_count <= 1;
    const struct socket_target target = {.endpoint = sender->endpoint,
        .pair = home->pair,
        .keys = sender->keys,
        .key_count = sender->key_count,
        .retry_ms = home->retry_ms};

    sender->push[lane] =
        socket_open_push(home->zmq, lane, &target, watched ? &sender->watch : NULL);
    return sender->push[lane] != NULL;
}

/* Nothing leads to a peer that has lost its last key, or has not told its endpoint yet. */
static bool sender_is_cut_off(const struct sender *sender, const struct sender_home *home)
{
    return sender->endpoint[0] == '\0' || (home->pair != NULL && sender->key_count == 0);
}

bool sender_open(struct sender *sender, const struct sender_home *home)
{
    int reason;

    sender->push[LINK_CONTROL] = sender->push[LINK_BULK] = NULL;
    sender->monitor = sender->watch = (struct monitor){.pair = NULL};
    sender->greeted = false;
    sender->cut = false;
    sender->strange = 0;
    sender->encrypted_bulk = false;
    sender->number = 0;
    sender->asked_us = 0;
    sender->patience_us = SENDER_PATIENCE_US;
    if (sender_is_cut_off(sender, home)) {
        return true;
    }
    if (sender_open_lane(sender, home, LINK_CONTROL) &&
        (home->clear_bulk || sender_open_lane(sender, home, LINK_BULK))) {
        return true;
    }
    reason = errno;
    sender_close(sender);
    errno = reason;
    return false;
}

static void sender_close_bulk(struct sender *sender)
{
    monitor_close(&sender->monitor);
    if (sender->push[LINK_BULK] != NULL) {
        (void)zmq_close(sender->push[LINK_BULK]);
        sender->push[LINK_BULK] = NULL;
    }
}

static void sender_close_control(struct sender *sender)
{
    monitor_close(&sender->watch);
    sender->greeted = false;
    if (sender->push[LINK_CONTROL] != NULL) {
        (void)zmq_close(sender->push[LINK_CONTROL]);
        sender->push[LINK_CONTROL] = NULL;
    }
}

void sender_close(struct sender *sender)
{
    sender_close_bulk(sender);
    sender_close_control(sender);
}

static void sender_ask(struct sender *sender)
{
    struct token_message request = {.type = TOKEN_REQUEST};
    uint8_t bytes[TOKEN_GRANT_SIZE];
    uint64_t now = transport_now_us();
    size_t size;

    if (sender->asked_us != 0 && now - sender->asked_us < sender->patience_us) {
        return;
    }
    if (sender->asked_us != 0 && sender->patience_us < SENDER_PATIENCE_MAX_US) {
        sender->patience_us *= 2;
    }
    sender->asked_us = now;
    request.number = sender->number = now; /* unlike any earlier one */
    size = token_encode(&request, bytes);
    if (zmq_send(sender->push[LINK_CONTROL], bytes, size, ZMQ_DONTWAIT) < 0) {
        sender->asked_us = 0; /* not connected yet */
        sender->number = 0;
    }
}

/* True if a bulk connection that presented a token has come to its end. */
static bool sender_bulk_is_lost(struct sender *sender)
{
    struct monitor_event event;

    return monitor_next(&sender->monitor, &event);
}

static void sender_renew_clear(struct sender *sender)
{
    if (sender_bulk_is_lost(sender)) {
        sender_close_bulk(sender);
    }
    if (sender->push[LINK_BULK] == NULL) {
        sender_ask(sender);
    }
}

void sender_reopen(struct sender *sender, const struct sender_home *home, enum link_lane lane)
{
    if (sender_is_cut_off(sender, home)) {
        return;
    }
    if (lane == LINK_BULK) {
        sender_close_bulk(sender);
    } else {
        sender_close_control(sender);
    }
    if (lane == LINK_CONTROL || !home->clear_bulk || sender->encrypted_bulk) {
        (void)sender_open_lane(sender, home, lane); /* or it stays NULL until the next time */
    }
}

static void sender_say_strange(const struct sender *sender, const struct sender_home *home)
{
    char line[SOCKET_ENDPOINT_SIZE + 128];

    if (sender->strange >= SENDER_STRANGE && home->refusals != NULL) {
        (void)snprintf(line, sizeof(line),
            "node %" PRIu16 " at %s: the program there is not adtopkd, or has other keys",
            sender->id, sender->endpoint);
        refusals_add(home->refusals, REFUSAL_HANDSHAKE, line);
    }
}

/* Says so where a connection fails in the handshake, or connections are closed there repeatedly. */
static void sender_look(struct sender *sender, const struct sender_home *home)
{
    struct monitor_event event;

    while (monitor_next(&sender->watch, &event)) {
        if (event.type == ZMQ_EVENT_DISCONNECTED && !sender->greeted) {
            sender->strange = sender->cut ? sender->strange + 1 : SENDER_STRANGE;
            sender_say_strange(sender, home);
        }
        sender->greeted = event.type == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
        sender->cut = event.type == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;
        sender->strange = sender->greeted ? 0 : sender->strange;
    }
}

void *sender_ready(struct sender *sender, const struct sender_home *home, enum link_lane lane)
{
    void *push = sender->push[lane];

    if (push != NULL && (socket_events(push) & ZMQ_POLLOUT) != 0) {
        if (lane == LINK_BULK) {
            sender->patience_us = SENDER_PATIENCE_US;
        }
        return push;
    }
    if (lane == LINK_CONTROL) {
        sender_look(sender, home);
    }
    if (lane == LINK_BULK && home->clear_bulk && !sender->encrypted_bulk &&
        sender->push[LINK_CONTROL] != NULL) {
        sender_renew_clear(sender);
    }
    return NULL;
}

/* The peer's address with another port. */
static void sender_bulk_endpoint(
    const struct sender *sender, uint16_t port, char endpoint[SOCKET_ENDPOINT_SIZE])
{
    const char *colon = strrchr(sender->endpoint, ':');

    (void)snprintf(endpoint, SOCKET_ENDPOINT_SIZE, "%.*s:%" PRIu16,
        colon != NULL ? (int)(colon - sender->endpoint) : 0, sender->endpoint, port);
}

static void sender_open_clear(
    struct sender *sender, const struct sender_home *home, const struct token_message *grant)
{
    char endpoint[SOCKET_ENDPOINT_SIZE], user[8], token[TOKEN_TEXT_SIZE];

    sender_bulk_endpoint(sender, grant->port, endpoint);
    (void)snprintf(user, sizeof(user), "%" PRIu16, home->self);
    (void)zmq_z85_encode(token, grant->token, TOKEN_BYTES);
    sender->push[LINK_BULK] = socket_new_bulk_push(home->zmq, endpoint, user, token);
    if (sender->push[LINK_BULK] == NULL) {
        return; /* asks again when its time has come */
    }
    if (!monitor_open(&sender->monitor, home->zmq, sender->push[LINK_BULK], SENDER_REPORTS) ||
        !socket_reach(sender->push[LINK_BULK], endpoint)) {
        sender_close_bulk(sender);
    }
}

void sender_grant(
    struct sender *sender, const struct sender_home *home, const struct token_message *grant)
{
    if (sender->number == 0 || sender->number != grant->number || sender->push[LINK_BULK] != NULL) {
        return;
    }
    sender->number = 0;
    if (grant->port == 0) {
        sender->encrypted_bulk = sender_open_lane(sender, home, LINK_BULK);
    } else {
        sender_open_clear(sender, home, grant);
    }
}
