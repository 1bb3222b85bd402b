#include "client/src/watch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/src/clock.h"
#include "client/src/transport.h"
#include "proto/retry.h"

#define WATCH_TEND_NS 500000   /* between two looks at a rank that returns, whose streams wait */
#define WATCH_CALM_NS 10000000 /* the same without streams */
#define WATCH_LOOK_MS 100      /* between two looks at the thread that looks at it */
/* For so long a call may keep the context, or the device what it was given: neither takes so long
 * unless it waits for a stream. */
#define WATCH_STILL_NS UINT64_C(10000000000)

/* The daemon is to know before any stream goes on. */
void client_watch_let_go(const struct client_watch *watch)
{
    const struct client_words *words = atomic_load(&watch->words);
    const uint64_t step = atomic_load(&watch->step); /* a new page may know of none yet */
    uint64_t done;

    if (words == NULL) {
        return;
    }
    done = atomic_load(&watch->context->ring.page->steps_done);
    atomic_store(&watch->context->ring.ring->let_go, 1);
    for (; words != NULL; words = words->next) {
        local_let_go(words->word, words->count, done > step ? done : step);
    }
}

/* The host's next call sees `cut` before anything can come out of the streams. So does a call that
 * waits: what it waits for may never come. */
static void watch_cut(struct client_watch *watch)
{
    atomic_store(&watch->cut, true);
    client_watch_let_go(watch);
    retry_wake(watch->context->sharing.wake);
}

/* Sleeps for so long, or until something has happened. */
static void watch_sleep(const struct client_watch *watch, struct pollfd *on, nfds_t count, int ms)
{
    uint64_t woken;

    on[0] = (struct pollfd){.fd = watch->wake, .events = POLLIN};
    if (poll(on, count, ms) > 0 && on[0].revents != 0) {
        (void)!read(watch->wake, &woken, sizeof woken);
    }
}

/* Brings the rank back. Each look at it that was possible is a beat. */
static void watch_tend(struct client_watch *watch)
{
    enum client_tending tending = watch->context->transport->tend(watch->context);
    const struct timespec pause = {
        .tv_nsec = client_watch_watches(watch) ? WATCH_TEND_NS : WATCH_CALM_NS};

    while (
        !atomic_load(&watch->ends) && (tending == CLIENT_TENDS || tending == CLIENT_TENDS_LATER)) {
        atomic_fetch_add(&watch->beats, tending == CLIENT_TENDS ? 1 : 0);
        (void)nanosleep(&pause, NULL);
        tending = watch->context->transport->tend(watch->context);
    }
    atomic_store(&watch->lost, tending == CLIENT_FAILED);
}

static void *watch_run_beside(void *argument)
{
    struct client_watch *watch = argument;

    watch_tend(watch);
    atomic_store(&watch->tends, false);
    retry_wake(watch->wake);
    return NULL;
}

/* Waits for the thread that brings the rank back. False: it has failed, or looks at the rank no
 * more: some call waits for streams, which have to be let go. */
static bool watch_wait(const struct client_watch *watch)
{
    uint64_t since = client_now_ns(), beats = atomic_load(&watch->beats);
    struct pollfd on[1];

    while (atomic_load(&watch->tends) && !atomic_load(&watch->ends) &&
           client_now_ns() - since <= WATCH_STILL_NS) {
        watch_sleep(watch, on, 1, WATCH_LOOK_MS);
        if (beats != atomic_load(&watch->beats)) {
            beats = atomic_load(&watch->beats);
            since = client_now_ns();
        }
    }
    return atomic_load(&watch->ends) || (!atomic_load(&watch->tends) && !atomic_load(&watch->lost));
}

/* False: streams were let go, or the context has failed. */
static bool watch_bring_back(struct client_watch *watch)
{
    pthread_t tending;
    bool back;

    if (!client_watch_watches(watch)) { /* then this thread has nothing else to see to */
        watch_tend(watch);
        return !atomic_load(&watch->lost);
    }
    atomic_store(&watch->tends, true);
    if (pthread_create(&tending, NULL, watch_run_beside, watch) != 0) {
        watch_cut(watch);
        return false;
    }
    back = watch_wait(watch);
    if (!back) {
        watch_cut(watch);
    }
    (void)pthread_join(tending, NULL);
    return back;
}

/* What the daemon writes to the socket is for other threads: this one asks for its end only. */
static void *watch_run(void *argument)
{
    struct client_watch *watch = argument;
    bool goes_on = true;

    while (goes_on && !atomic_load(&watch->ends)) {
        struct pollfd on[2] = {[1] = {.fd = watch->context->socket, .events = POLLRDHUP}};

        watch_sleep(watch, on, 2, -1);
        if (!atomic_load(&watch->ends) && atomic_load(&watch->returns)) {
            goes_on = watch_bring_back(watch);
        } else if (on[1].revents != 0) {
            watch_cut(watch);
            goes_on = false;
        }
    }
    return NULL;
}

/* The program's signal handlers run on its own threads. */
static int watch_create(struct client_watch *watch)
{
    sigset_t all, before;
    int reason;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    reason = pthread_create(&watch->thread, NULL, watch_run, watch);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return reason;
}

enum adtopk_status client_watch_start(adtopk_context *context, struct error *err)
{
    struct client_watch *watch = &context->batch.watch;
    int reason;

    if (watch->context != NULL) {
        return ADTOPK_OK;
    }
    watch->context = context;
    watch->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (watch->wake < 0) {
        watch->context = NULL;
        return error_set(err, ADTOPK_ERR_SYSTEM, "eventfd failed: %s", strerror(errno));
    }
    reason = watch_create(watch);
    if (reason != 0) {
        (void)close(watch->wake);
        watch->context = NULL;
        return error_set(
            err, ADTOPK_ERR_SYSTEM, "no thread to watch the daemon: %s", strerror(reason));
    }
    return ADTOPK_OK;
}

/* No stream waits for the new words before this function has returned. */
enum adtopk_status client_watch_add(
    adtopk_context *context, struct client_words *words, struct error *err)
{
    struct client_watch *watch = &context->batch.watch;

    if (client_watch_start(context, err) != ADTOPK_OK) {
        return err->code;
    }
    words->next = atomic_load(&watch->words);
    atomic_store(&watch->words, words);
    return ADTOPK_OK;
}

void client_watch_wake(const struct client_watch *watch)
{
    if (watch->context != NULL) {
        retry_wake(watch->wake);
    }
}

void client_watch_forget(struct client_watch *watch)
{
    if (watch->context != NULL) {
        (void)close(watch->wake);
    }
}

void client_watch_end(struct client_watch *watch)
{
    if (watch->context == NULL) {
        return;
    }
    atomic_store(&watch->ends, true);
    client_watch_let_go(watch); /* first: a call that the threads make may wait for streams */
    retry_wake(watch->wake);
    (void)pthread_join(watch->thread, NULL);
    (void)close(watch->wake);
    client_watch_let_go(watch);
    atomic_store(&watch->words, NULL);
}
