/*
 * The thread that sees to a rank whose daemon is gone, while the program is elsewhere.
 *
 * It sleeps on the session's socket. A rank that can return to another daemon is brought back by it
 * (tend.c), although no call waits: other ranks may lack what only the node's daemon has. Any call
 * brings the rank back, too. A rank that cannot has this thread only if streams wait for it.
 *
 * A daemon that fails a job lets go of the streams itself. One that is killed cannot, whatever
 * becomes of its device workers. If the rank cannot return, this thread lets go of the streams.
 * Otherwise they go on waiting, and it starts another thread, which brings the rank back. It lets
 * go of them if that fails, or if that thread stands still. A call of the driver may wait for a
 * stream. So may another thread that has the context, and a copy on the device. While streams wait,
 * this thread therefore takes no lock and calls no driver. It waits for the other one only after
 * streams were let go, or when that one has ended.
 */
#ifndef ADTOPK_CLIENT_WATCH_H
#define ADTOPK_CLIENT_WATCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <adtopk/adtopk.h>

#include "proto/error.h"
#include "proto/local.h"

/* The words in one arena, on which streams can wait. */
struct client_words {
    struct client_words *next;
    struct local_word *word;
    uint32_t count;
};

struct client_watch {
    adtopk_context *context;              /* NULL: there is no thread */
    _Atomic(struct client_words *) words; /* of all arenas; NULL: no stream waits */
    atomic_bool returns;                  /* the rank can return to another daemon */
    _Atomic uint64_t step;                /* in which it last did */
    int wake;                             /* an eventfd that wakes the thread */
    atomic_bool ends;                     /* the thread is to end */
    atomic_bool cut;                      /* the daemon is gone, and streams were let go */
    atomic_bool tends;                    /* another thread brings the rank back */
    atomic_bool lost;                     /* it could not */
    _Atomic uint64_t beats;               /* how often it looked at the rank */
    pthread_t thread;
};

/** Starts the thread, unless there is one. Errors: SYSTEM. */
enum adtopk_status client_watch_start(adtopk_context *context, struct error *err);

/** Adds words, which stay where they are until client_watch_end(), and starts the thread. Errors:
 * SYSTEM. */
enum adtopk_status client_watch_add(
    adtopk_context *context, struct client_words *words, struct error *err);

/** Ends the thread, and lets go of all streams. Does nothing if there is no thread. */
void client_watch_end(struct client_watch *watch);

/** The same in a forked child, which has no such thread: frees what it has of it. */
void client_watch_forget(struct client_watch *watch);

/** The daemon has gone away, and the rank is about to connect to another one. The thread might not
 * notice: after that the socket is another one. Does nothing if there is no thread. */
void client_watch_wake(const struct client_watch *watch);

/** Lets go of all streams. Any thread. */
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
