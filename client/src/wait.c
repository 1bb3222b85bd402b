/*
 * Waiting for the daemon: pauses for about a microsecond, yields for fifty, then sleeps.
 *
 * A yield that takes long shows that another process needs the core. Spinning would then only keep
 * the core from it, and it may be the daemon. So for a while this file does not yield, and hardly
 * spins.
 */
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "client/src/clock.h"
#include "client/src/comeback.h"

#define WAIT_PAUSE_NS 1000
#define WAIT_YIELD_NS 50000
#define WAIT_CROWDED_SPIN_NS 5000
#define WAIT_LONG_YIELD_NS 200000
#define WAIT_CROWDED_NS 100000000
#define WAIT_BESIDE_NS 100000

static void wait_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

enum adtopk_status client_check_page(adtopk_context *context)
{
    const struct local_page *page = context->ring.page;
    const uint32_t failed = page != NULL ? atomic_load(&page->failed) : 0;
    char text[LOCAL_TEXT_SIZE];

    if (failed == 0) {
        return ADTOPK_OK;
    }
    /* The page has the beginning of the sentence only, for a rank whose socket is full. */
    if (context->failure.code == ADTOPK_OK && context->socket >= 0 && client_read_end(context)) {
        return context->failure.code;
    }
    (void)snprintf(text, sizeof text, "%.*s", LOCAL_TEXT_SIZE - 1, page->text);
    return client_told(context, failed, text, true);
}

/* Yields the core, and notes whether another process took it for long. Only the waiting thread
 * calls it. */
static void wait_yield(adtopk_context *context, uint64_t now)
{
    uint64_t after;

    (void)sched_yield();
    after = client_now_ns();
    if (after - now > WAIT_LONG_YIELD_NS) {
        context->sharing.crowded_until_ns = after + WAIT_CROWDED_NS;
    }
}

/* Spins, without the lock, until done or failed. False when it is time to sleep. */
static bool wait_spin(adtopk_context *context, client_done *done, uint64_t argument)
{
    const uint64_t start = client_now_ns();
    uint64_t now = start;

    for (;;) {
        for (int i = 0; i < 16; i++) {
            if (done(context, argument)) {
                return true;
            }
            wait_pause();
        }
        if (atomic_load(&context->ring.page->failed) != 0) {
            return true;
        }
        now = client_now_ns();
        if (now - start >= WAIT_YIELD_NS ||
            (now < context->sharing.crowded_until_ns && now - start >= WAIT_CROWDED_SPIN_NS)) {
            return false;
        }
        if (now - start >= WAIT_PAUSE_NS && now >= context->sharing.crowded_until_ns) {
            wait_yield(context, now);
        }
    }
}

/* Sleeps until the daemon sends something, unless the condition is true already. */
static enum adtopk_status wait_sleep(adtopk_context *context, client_done *done, uint64_t argument,
    const struct client_patience *patience)
{
    struct pollfd readable[2] = {[1] = {.fd = context->socket, .events = POLLIN}};
    enum adtopk_status slept = ADTOPK_OK;
    enum adtopk_status status;

    ring_writer_sleep(&context->ring);
    if (!done(context, argument) && client_wait_may_go_on(context) == ADTOPK_OK) {
        slept = client_sleep(context, readable, 2, patience);
    }
    ring_writer_awake(&context->ring);
    status = client_drain(context);
    return status == ADTOPK_OK ? slept : status;
}

/* Looks once. ADTOPK_PENDING: neither done, nor over. A result from before the end counts: the next
 * call returns the failure. */
static enum adtopk_status wait_look(adtopk_context *context, client_done *done, uint64_t argument)
{
    enum adtopk_status status;

    context->sharing.seen = atomic_load(&context->ring.page->progress);
    if (done(context, argument)) {
        return ADTOPK_OK;
    }
    status = client_wait_may_go_on(context);
    return status == ADTOPK_OK ? ADTOPK_PENDING : status;
}

static enum adtopk_status wait_come_back(
    adtopk_context *context, const struct client_patience *patience)
{
    if (client_is_away(context) && context->sharing.waits == CLIENT_WAITS_SHORTLY) {
        return ADTOPK_ERR_UNREACHABLE; /* it waits for room, which it needs no more */
    }
    return context->transport->come_back(context, patience);
}

enum adtopk_status client_be_here(adtopk_context *context, const struct client_patience *patience)
{
    enum adtopk_status status;

    if (!client_is_away(context)) {
        return ADTOPK_OK;
    }
    status = client_wait_begin(context);
    if (status == ADTOPK_OK) {
        status = context->transport->come_back(context, patience);
        client_wait_end(context);
    }
    return status;
}

static enum adtopk_status wait_until(adtopk_context *context, client_done *done, uint64_t argument,
    const struct client_patience *patience)
{
    for (;;) {
        enum adtopk_status slept = ADTOPK_OK;
        enum adtopk_status status = wait_come_back(context, patience);
        bool seen;

        if (status != ADTOPK_OK) {
            return status;
        }
        client_let_go(context);
        seen = wait_spin(context, done, argument);
        client_take_back(context);
        if (!seen) {
            slept = wait_sleep(context, done, argument, patience);
        }
        status = wait_look(context, done, argument);
        if (status != ADTOPK_PENDING) {
            return status;
        }
        if (slept != ADTOPK_OK) {
            return slept;
        }
    }
}

void client_withdraw(adtopk_context *context)
{
    if (context->sharing.armed) {
        context->sharing.armed = false;
        ring_writer_awake(&context->ring);
    }
}

enum adtopk_status client_disarm(adtopk_context *context)
{
    if (!context->sharing.armed) {
        return ADTOPK_OK;
    }
    client_withdraw(context);
    return client_drain(context);
}

/* A call that does not wait. If the daemon was killed it wrote nothing into the page, and only the
 * socket shows it. If another thread waits, that thread reads the socket. */
static enum adtopk_status wait_glance(adtopk_context *context, client_done *done, uint64_t argument)
{
    if (context->sharing.waits != CLIENT_WAITS_NOT) {
        context->comeback.missed = context->comeback.missed || client_is_away(context);
        return ADTOPK_PENDING;
    }
    (void)client_drain(context); /* the next call sees a failure */
    if (client_is_away(context)) {
        const struct client_patience none = {.deadline_ns = 0};
        const enum adtopk_status status = client_be_here(context, &none);

        if (status != ADTOPK_OK) {
            return status;
        }
    }
    return wait_look(context, done, argument);
}

enum adtopk_status client_wait(adtopk_context *context, client_done *done, uint64_t argument,
    const struct client_patience *patience)
{
    enum adtopk_status status;

    (void)client_disarm(context); /* the next call sees a failure */
    status = wait_look(context, done, argument);
    if (status != ADTOPK_PENDING) {
        return status;
    }
    if (patience->deadline_ns == 0) {
        return wait_glance(context, done, argument);
    }
    status = client_wait_begin(context);
    if (status == ADTOPK_OK) {
        status = wait_until(context, done, argument, patience);
        client_wait_end(context);
    }
    return status;
}

/* ---- room in the ring ---- */

static bool wait_has_room(const adtopk_context *context, uint64_t argument)
{
    (void)argument;
    return ring_writer_has_room(&context->ring);
}

/* Wake-ups of the daemon are for the thread that waits, or that polls the descriptor. This thread
 * therefore leaves them in the socket, unless the connection has ended. */
static enum adtopk_status wait_beside(
    adtopk_context *context, const struct client_patience *patience)
{
    const struct timespec pause = {.tv_nsec = WAIT_BESIDE_NS};
    /* poll() reports the end of the connection even if not asked. */
    struct pollfd end = {.fd = context->socket};
    enum adtopk_status status;
    bool signalled;

    client_let_go(context);
    signalled = nanosleep(&pause, NULL) != 0;
    client_take_back(context);
    status = poll(&end, 1, 0) > 0 ? client_drain(context) : client_wait_may_go_on(context);
    return status == ADTOPK_OK && signalled && patience->interruptible ? ADTOPK_INTERRUPTED
                                                                       : status;
}

static enum adtopk_status wait_for_room(adtopk_context *context)
{
    const struct client_patience patience = client_patience(context, -1);
    enum adtopk_status status = ADTOPK_OK;

    while (
        status == ADTOPK_OK && !client_is_away(context) && !ring_writer_has_room(&context->ring)) {
        if (context->sharing.waits == CLIENT_WAITS || context->sharing.armed) {
            status = wait_beside(context, &patience);
        } else {
            context->sharing.waits = CLIENT_WAITS_SHORTLY;
            status = wait_until(context, wait_has_room, 0, &patience);
            client_wait_end(context);
        }
        status = client_went_away(context, status) ? ADTOPK_OK : status;
    }
    return status;
}

enum adtopk_status client_submit(adtopk_context *context, const struct local_entry *entry)
{
    enum adtopk_status status = wait_for_room(context);

    if (status == ADTOPK_OK) {
        status = client_note_entry(context, entry);
    }
    if (status == ADTOPK_OK && !client_is_away(context)) { /* else it submits the entry later */
        ring_writer_put(&context->ring, entry);
        client_wake(context);
    }
    return status;
}
