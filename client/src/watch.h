/*
 * The dead man's thread: lets go of the program's streams when the daemon is gone.
 *
 * A daemon that fails a job lets go of the streams itself. One that is killed cannot, whatever
 * becomes of its device workers. Then the thread that waits for a stream would wait for ever, so
 * another one has to notice. It sleeps on the session's socket, and takes no lock.
 */
#ifndef ADTOPK_CLIENT_WATCH_H
#define ADTOPK_CLIENT_WATCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/error.h"
#include "proto/local.h"

struct client_watch {
    const struct local_page *page;
    struct local_word *word; /* in the arena; NULL: nothing is watched */
    uint32_t words;
    int socket;      /* the session's, which stays open until client_watch_end() */
    int end;         /* an eventfd that ends the thread */
    atomic_bool cut; /* the daemon is gone, and streams were let go */
    pthread_t thread;
};

/** Starts the thread. The first four fields are filled in. On failure `word` is NULL. Errors:
 * SYSTEM. */
enum adtopk_status client_watch_begin(struct client_watch *watch, struct error *err);

/** Ends the thread, and lets go of all streams. Does nothing if nothing is watched. */
void client_watch_end(struct client_watch *watch);

/** Lets go of all streams. Does nothing if nothing is watched. Any thread. */
static inline void client_watch_let_go(const struct client_watch *watch)
{
    if (watch->word != NULL) {
        local_let_go(watch->word, watch->words, atomic_load(&watch->page->steps_done));
    }
}

/** Whether there are words on which streams can wait. */
static inline bool client_watch_watches(const struct client_watch *watch)
{
    return watch->word != NULL;
}

/** Whether streams were let go because the daemon is gone. */
static inline bool client_watch_is_cut(const struct client_watch *watch)
{
    return atomic_load(&watch->cut);
}

#endif
