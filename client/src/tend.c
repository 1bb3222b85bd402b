#include "client/src/tend.h"

#include <poll.h>

#include "client/src/beside.h"
#include "client/src/clock.h"
#include "client/src/comeback.h"

#define TEND_MS 20 /* the most for which a call of another thread has to wait for this one */
/* A program that has not armed the descriptor again for so long may be elsewhere. */
#define TEND_ARMED_NS UINT64_C(1000000000)

/* Whether the connection has ended, so that a rank that is here has yet to notice. */
static bool tend_is_cut(const adtopk_context *context)
{
    struct pollfd end = context->transport->end(context);

    return poll(&end, 1, 0) > 0;
}

static bool tend_is_polled(const adtopk_context *context)
{
    return context->sharing.armed && client_now_ns() - context->sharing.armed_ns < TEND_ARMED_NS;
}

/* Comes back for a while. Other threads do so themselves if they wait. And so does a program that
 * polls the descriptor: it sees the end of the connection there, as long as that is not replaced.
 */
static void tend_come_back(adtopk_context *context)
{
    const struct client_patience patience = client_stubborn(TEND_MS);

    if (tend_is_polled(context)) {
        if (context->comeback.stage == CLIENT_AWAY) {
            (void)client_comeback_late(context);
        }
        return;
    }
    if (context->sharing.armed) {
        client_withdraw(context);
        client_descriptor_call(context);
    }
    if (!client_watch_watches(&context->batch.watch)) { /* no stream waits */
        client_comeback_put_off(context);
    }
    context->sharing.waits = CLIENT_WAITS_SHORTLY;
    (void)client_come_back(context, &patience);
    client_wait_end(context);
}

static enum client_tending tend_locked(adtopk_context *context)
{
    const bool alone = context->sharing.waits == CLIENT_WAITS_NOT && !context->sharing.closing;

    if (alone && !client_is_away(context) && tend_is_cut(context)) {
        (void)context->transport->drain(context); /* it goes away */
    }
    if (alone && client_is_away(context) && context->failure.code == ADTOPK_OK) {
        tend_come_back(context);
    }
    if (client_check_page(context) == ADTOPK_OK && context->failure.code == ADTOPK_OK) {
        (void)client_beside_tend(context);
    }
    if (context->failure.code != ADTOPK_OK) {
        client_wait_wake(context);
        client_descriptor_call(context);
        return CLIENT_FAILED;
    }
    if (client_beside_moves(context)) {
        return CLIENT_TENDS_LATER;
    }
    return client_is_away(context) || client_beside_is_there(context) || tend_is_cut(context)
               ? CLIENT_TENDS
               : CLIENT_IS_TENDED;
}

enum client_tending client_tend(adtopk_context *context)
{
    enum client_tending tending;

    if (pthread_mutex_trylock(&context->sharing.lock) != 0) {
        return CLIENT_TENDS_LATER;
    }
    tending = tend_locked(context);
    (void)pthread_mutex_unlock(&context->sharing.lock);
    return tending;
}
