/*
 * Waiting for the daemon: pause for about a microsecond, yield for fifty, then sleep.
 *
 * A yield that takes long tells that somebody else needs the core. Spinning would then only keep
 * it from them, the daemon perhaps, so for a while there is no yielding and hardly any spinning.
 */
#include <poll.h>
#include <sched.h>

#include "client/src/clock.h"
#include "client/src/context.h"

#define WAIT_PAUSE_NS 1000
#define WAIT_YIELD_NS 50000
#define WAIT_CROWDED_SPIN_NS 5000
#define WAIT_LONG_YIELD_NS 200000
#define WAIT_CROWDED_NS 100000000

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

    if (failed == 0) {
        return ADTOPK_OK;
    }
    return client_fail(context,
        failed < ADTOPK_STATUS_COUNT ? (enum adtopk_status)failed : ADTOPK_ERR_PROTOCOL, "%.*s",
        LOCAL_TEXT_SIZE - 1, page->text);
}

/* Gives the core away for a moment, and notes whether somebody took it for long. */
static void wait_yield(adtopk_context *context, uint64_t now)
{
    uint64_t after;

    (void)sched_yield();
    after = client_now_ns();
    if (after - now > WAIT_LONG_YIELD_NS) {
        context->crowded_until_ns = after + WAIT_CROWDED_NS;
    }
}

/* Spins until done or failed; false when it is time to sleep. */
static bool wait_spin(adtopk_context *context,
    bool (*done)(const adtopk_context *context, uint64_t argument), uint64_t argument)
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
        if (client_check_page(context) != ADTOPK_OK) {
            return true;
        }
        now = client_now_ns();
        if (now - start >= WAIT_YIELD_NS ||
            (now < context->crowded_until_ns && now - start >= WAIT_CROWDED_SPIN_NS)) {
            return false;
        }
        if (now - start >= WAIT_PAUSE_NS && now >= context->crowded_until_ns) {
            wait_yield(context, now);
        }
    }
}

/* Sleeps until the daemon sends something, unless there is something to see already. */
static enum adtopk_status wait_sleep(adtopk_context *context,
    bool (*done)(const adtopk_context *context, uint64_t argument), uint64_t argument)
{
    struct pollfd readable = {.fd = context->socket, .events = POLLIN};

    ring_writer_sleep(&context->ring);
    if (!done(context, argument) && client_check_page(context) == ADTOPK_OK) {
        (void)poll(&readable, 1, -1); /* a signal wakes too, to no harm */
    }
    ring_writer_awake(&context->ring);
    return client_drain(context);
}

enum adtopk_status client_wait(adtopk_context *context,
    bool (*done)(const adtopk_context *context, uint64_t argument), uint64_t argument)
{
    for (;;) {
        const bool seen = wait_spin(context, done, argument);
        enum adtopk_status status = ADTOPK_OK;

        if (!seen) {
            status = wait_sleep(context, done, argument);
        }
        /* What was reached before the end counts: the next call returns the failure. */
        if (done(context, argument)) {
            return ADTOPK_OK;
        }
        if (context->failure.code != ADTOPK_OK) {
            context->error = context->failure;
            return context->failure.code;
        }
        if (status != ADTOPK_OK) {
            return status;
        }
    }
}

static bool wait_has_room(const adtopk_context *context, uint64_t argument)
{
    (void)argument;
    return ring_writer_has_room(&context->ring);
}

enum adtopk_status client_submit(adtopk_context *context, const struct local_entry *entry)
{
    if (!ring_writer_has_room(&context->ring)) {
        const enum adtopk_status status = client_wait(context, wait_has_room, 0);
        if (status != ADTOPK_OK) {
            return status;
        }
    }
    ring_writer_put(&context->ring, entry);
    client_wake(context);
    return ADTOPK_OK;
}
