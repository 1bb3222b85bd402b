/*
 * The dead man's thread: sees to the program's streams when the daemon is gone.
 *
 * A daemon that fails a job lets go of the streams itself. One that is killed cannot, whatever
 * becomes of its device workers. Then the thread that waits for a stream would wait for ever, so
 * another one has to notice. It sleeps on the session's socket.
 *
 * If the rank cannot return to another daemon, this thread lets go of the streams. Otherwise they
 * go on waiting, and it starts another thread, which brings the rank back (tend.c). It lets go of
 * them if that fails, or if that thread stands still. A call of the driver may wait for a stream.
 * So may another thread that has the context, and a copy on the device. This thread takes no lock
 * and calls no driver. It waits for the other one only after streams were let go, or when that one
 * has ended.
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
    adtopk_context *context;
    _Atomic(struct client_words *) words; /* of all arenas; NULL: nothing is watched */
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

/** Adds words, which stay where they are until client_watch_end(). The first ones start the thread;
 * `context` is filled in. Errors: SYSTEM. */
enum adtopk_status client_watch_add(
    struct client_watch *watch, struct client_words *words, struct error *err);

/** Ends the thread, and lets go of all streams. Does nothing if nothing is watched. */
void client_watch_end(struct client_watch *watch);

/** The daemon has gone away, and the rank is about to connect to another one. The thread might not
 * notice: after that the socket is another one. Does nothing if nothing is watched. */
void client_watch_wake(const struct client_watch *watch);

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
