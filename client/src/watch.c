#include "client/src/watch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

void client_watch_let_go(const struct client_watch *watch)
{
    for (const struct client_words *words = atomic_load(&watch->words); words != NULL;
         words = words->next) {
        local_let_go(words->word, words->count, atomic_load(&watch->page->steps_done));
    }
}

/* The host's next call sees `cut` before anything can come out of the streams. */
static void watch_cut(struct client_watch *watch)
{
    atomic_store(&watch->cut, true);
    client_watch_let_go(watch);
}

/* What the daemon writes to the socket is for other threads: this one asks for its end only. */
static void *watch_run(void *argument)
{
    struct client_watch *watch = argument;
    struct pollfd on[2] = {
        {.fd = watch->end, .events = POLLIN}, {.fd = watch->socket, .events = POLLRDHUP}};

    while (poll(on, 2, -1) < 0 && errno == EINTR) {
    }
    if (on[0].revents == 0) {
        watch_cut(watch);
    }
    return NULL;
}

/* The program's signal handlers run on its own threads. */
static int watch_start(struct client_watch *watch)
{
    sigset_t all, before;
    int reason;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    reason = pthread_create(&watch->thread, NULL, watch_run, watch);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return reason;
}

static enum adtopk_status watch_begin(struct client_watch *watch, struct error *err)
{
    int reason;

    watch->end = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (watch->end < 0) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "eventfd failed: %s", strerror(errno));
    }
    reason = watch_start(watch);
    if (reason != 0) {
        (void)close(watch->end);
        return error_set(
            err, ADTOPK_ERR_SYSTEM, "no thread to watch the daemon: %s", strerror(reason));
    }
    return ADTOPK_OK;
}

/* No stream waits for the new words before this function has returned. */
enum adtopk_status client_watch_add(
    struct client_watch *watch, struct client_words *words, struct error *err)
{
    if (!client_watch_watches(watch) && watch_begin(watch, err) != ADTOPK_OK) {
        return err->code;
    }
    words->next = atomic_load(&watch->words);
    atomic_store(&watch->words, words);
    return ADTOPK_OK;
}

void client_watch_end(struct client_watch *watch)
{
    const uint64_t one = 1;

    if (!client_watch_watches(watch)) {
        return;
    }
    (void)!write(watch->end, &one, sizeof one); /* the counter is 0: this cannot fail */
    (void)pthread_join(watch->thread, NULL);
    (void)close(watch->end);
    client_watch_let_go(watch);
    atomic_store(&watch->words, NULL);
}
