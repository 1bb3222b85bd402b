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

/* The words in one arena, on which streams can wait. */
struct client_words {
    struct client_words *next;
    struct local_word *word;
    uint32_t count;
};

struct client_watch {
    const struct local_page *page;
    _Atomic(struct client_words *) words; /* of all arenas; NULL: nothing is watched */
    int socket;      /* the session's, which stays open until client_watch_end() */
    int end;         /* an eventfd that ends the thread */
    atomic_bool cut; /* the daemon is gone, and streams were let go */
    pthread_t thread;
};

/** Adds words, which stay where they are until client_watch_end(). The first ones start the thread;
 * `page` and `socket` are filled in. Errors: SYSTEM. */
enum adtopk_status client_watch_add(
    struct client_watch *watch, struct client_words *words, struct error *err);

/** Ends the thread, and lets go of all streams. Does nothing if nothing is watched. */
void client_watch_end(struct client_watch *watch);

/** Lets go of all streams. Does nothing if nothing is watched. Any thread. */
void client_watch_let_go(const struct client_watch *watch);

/** Whether there are words on which streams can wait. */
static inline bool client_watch_watches(const struct client_watch *watch)
{
    return atomic_load(&watch->words) != NULL;
}

/** Whether streams were let go because the daemon is gone. */
static inline bool client_watch_is_cut(const struct client_watch *watch)
{
    return atomic_load(&watch->cut);
}

#endif
