/*
 * Taking memory from the system and giving it back, on a thread of the loop's pool: the kernel
 * clears what it gives, and frees page by page, at seconds for a large arena. A loop that did this
 * itself would keep all ranks waiting, and its daemon would count as dead.
 *
 * The keeper does one task at a time, in the order in which they came. So two arenas are never
 * promised the same memory, and memory that is being given back is there for whoever asks next.
 */
#ifndef ADTOPK_LOCAL_KEEPER_H
#define ADTOPK_LOCAL_KEEPER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <uv.h>

#include "daemon/local/segment.h"

struct keeper_task {
    struct keeper_task *next;
    struct keeper *keeper;
    uv_work_t work;
    /* On the loop's thread, when it is this task's turn. False: there is nothing to run. */
    bool (*start)(struct keeper_task *task);
    /* On another thread. */
    void (*run)(struct keeper_task *task);
    /* On the loop's thread, at the end; it may free the task. */
    void (*done)(struct keeper_task *task);
};

struct keeper {
    uv_loop_t *loop;
    struct keeper_task *first, *last; /* waiting */
    struct keeper_task *running;
    unsigned tasks;                         /* whose done() has not returned */
    void (*emptied)(struct keeper *keeper); /* there are none any more; it may free the keeper */
    atomic_uint_least64_t releasing;        /* bytes that will be given back */
};

/** Queues a task, which stays the caller's until its done(). That may be before this returns, but
 * only if its start() returns false. */
void keeper_add(struct keeper *keeper, struct keeper_task *task);

/** Gives the segment's memory back later; the segment is segment_none afterwards. */
void keeper_release(struct keeper *keeper, struct segment *segment);

/** Bytes that are about to be given back. */
uint64_t keeper_releasing(const struct keeper *keeper);

#endif
