#include "client/src/transport.h"

#include <errno.h>
#include <limits.h>
#include <unistd.h>

#include "client/src/clock.h"
#include "proto/retry.h"

struct client_patience client_stubborn(int timeout_ms)
{
    struct client_patience patience = {.deadline_ns = PATIENCE_FOR_EVER};

    if (timeout_ms >= 0) {
        patience.deadline_ns =
            timeout_ms > 0 ? client_now_ns() + (uint64_t)timeout_ms * 1000000u : 0;
    }
    return patience;
}

struct client_patience client_patience(const adtopk_context *context, int timeout_ms)
{
    struct client_patience patience = client_stubborn(timeout_ms);

    patience.interruptible = context != NULL && context->sharing.interruptible;
    return patience;
}

/* ---- the lock ---- */

/* Returns NULL in a forked child. It has the lock as it was at the fork, perhaps held by a thread
 * that does not exist in the child. */
static pthread_mutex_t *patience_lock(const adtopk_context *context)
{
    return context != NULL && !client_is_elsewhere(context)
               ? &((adtopk_context *)context)->sharing.lock
               : NULL;
}

void client_lock(const adtopk_context *context)
{
    pthread_mutex_t *lock = patience_lock(context);

    if (lock != NULL) {
        (void)pthread_mutex_lock(
            lock); /* cannot fail: a normal lock that this thread does not hold */
    }
}

enum adtopk_status client_unlock(const adtopk_context *context, enum adtopk_status status)
{
    pthread_mutex_t *lock = patience_lock(context);

    if (lock != NULL) {
        (void)pthread_mutex_unlock(lock);
    }
    return status;
}

void client_parts_begin(adtopk_context *context)
{
    context->sharing.away++;
}

void client_parts_end(adtopk_context *context)
{
    context->sharing.away--;
    if (context->sharing.closing) {
        (void)pthread_cond_broadcast(&context->sharing.left);
    }
}

void client_let_go(adtopk_context *context)
{
    client_parts_begin(context);
    (void)client_unlock(context, ADTOPK_OK);
}

void client_take_back(adtopk_context *context)
{
    client_lock(context);
    client_parts_end(context);
}

/* Waits until another thread has signalled a change. */
static void patience_await(adtopk_context *context)
{
    client_parts_begin(context);
    (void)pthread_cond_wait(&context->sharing.left, &context->sharing.lock);
    client_parts_end(context);
}

static enum adtopk_status patience_closing(adtopk_context *context)
{
    return client_refuse(
        context, ADTOPK_ERR_STATE, "another thread called adtopk_close() during this call");
}

/* ---- waiting ---- */

enum adtopk_status client_wait_begin(adtopk_context *context)
{
    /* That is soon over. */
    while (context->sharing.waits == CLIENT_WAITS_SHORTLY && !context->sharing.closing) {
        patience_await(context);
    }
    if (context->sharing.closing) {
        return patience_closing(context);
    }
    if (context->sharing.waits != CLIENT_WAITS_NOT) {
        return client_refuse(
            context, ADTOPK_ERR_STATE, "another thread waits in this context already");
    }
    context->sharing.waits = CLIENT_WAITS;
    return ADTOPK_OK;
}

enum adtopk_status client_wait_may_take(
    adtopk_context *context, const struct client_patience *patience)
{
    if (context->sharing.waits != CLIENT_WAITS) {
        return ADTOPK_OK;
    }
    return patience->deadline_ns == 0 ? ADTOPK_PENDING : client_wait_begin(context);
}

void client_wait_end(adtopk_context *context)
{
    context->sharing.waits = CLIENT_WAITS_NOT;
    (void)pthread_cond_broadcast(&context->sharing.left);
}

enum adtopk_status client_hand_in(adtopk_context *context, const struct local_entry *entry)
{
    enum adtopk_status status;

    while (context->sharing.submits && !context->sharing.closing) {
        patience_await(context);
    }
    if (context->sharing.closing) {
        return patience_closing(context);
    }
    context->sharing.submits = true;
    status = context->transport->submit(context, entry);
    context->sharing.submits = false;
    (void)pthread_cond_broadcast(&context->sharing.left);
    return status;
}

void client_wait_wake(adtopk_context *context)
{
    if (context->sharing.waits == CLIENT_WAITS) {
        retry_wake(context->sharing.wake);
    }
}

void client_end_calls(adtopk_context *context)
{
    context->sharing.closing = true;
    while (context->sharing.away > 0) {
        retry_wake(context->sharing.wake);
        (void)pthread_cond_broadcast(&context->sharing.left);
        (void)pthread_cond_wait(&context->sharing.left, &context->sharing.lock);
    }
    context->sharing.closing = false; /* the goodbye itself waits */
}

enum adtopk_status client_wait_may_go_on(adtopk_context *context)
{
    if (context->failure.code != ADTOPK_OK) {
        return client_fail(context, context->failure.code, "%s", context->failure.text);
    }
    if (context->sharing.closing) {
        return patience_closing(context);
    }
    if (client_check_page(context) != ADTOPK_OK) {
        return context->failure.code;
    }
    /* Else the socket says why. */
    return context->comeback.run != 0 ? client_check_cut(context) : ADTOPK_OK;
}

/* Milliseconds that poll() may sleep, rounded up; -1: for ever. */
static int patience_left_ms(const struct client_patience *patience)
{
    const uint64_t now = client_now_ns();
    uint64_t left;

    if (patience->deadline_ns == PATIENCE_FOR_EVER) {
        return -1;
    }
    left = patience->deadline_ns > now ? (patience->deadline_ns - now + 999999) / 1000000 : 0;
    return left < INT_MAX ? (int)left : INT_MAX;
}

enum adtopk_status client_sleep(adtopk_context *context, struct pollfd *descriptor, nfds_t count,
    const struct client_patience *patience)
{
    const int left_ms = patience_left_ms(patience);
    uint64_t woken;
    int ready, reason;

    if (left_ms == 0) {
        return ADTOPK_PENDING;
    }
    descriptor[0] = (struct pollfd){.fd = context->sharing.wake, .events = POLLIN};
    client_let_go(context);
    ready = poll(descriptor, count, left_ms);
    reason = errno;
    client_take_back(context);
    if (ready > 0 && descriptor[0].revents != 0) {
        (void)!read(
            context->sharing.wake, &woken, sizeof woken); /* another thread may have read it */
    }
    return ready < 0 && reason == EINTR && patience->interruptible ? ADTOPK_INTERRUPTED : ADTOPK_OK;
}
