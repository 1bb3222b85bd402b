/*
 * Takes memory from the system and gives it back, on a thread of the loop's pool. The kernel clears
 * memory that it gives, and frees memory page by page. For a large arena either takes seconds. If
 * the loop did this itself all ranks would wait, and their daemon would count as dead.
 *
 * The keeper does one task at a time, in the order in which they came. So it never promises the
 * same memory to two arenas, and the next task can have memory that an earlier one gives back.
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
    /* Runs on the loop's thread, when it is this task's turn. False: there is nothing to run. */
    bool (*start)(struct keeper_task *task);
    /* Runs on another thread. */
    void (*run)(struct keeper_task *task);
    /* Runs on the loop's thread, at the end; may free the task. */
    void (*done)(struct keeper_task *task);
};

struct keeper {
    uv_loop_t *loop;
    struct keeper_task *first, *last; /* waiting tasks */
    struct keeper_task *running;
    unsigned tasks;                         /* tasks whose done() has not returned */
    void (*emptied)(struct keeper *keeper); /* no task is left; may free the keeper */
    atomic_uint_least64_t releasing;        /* bytes that the keeper is going to give back */
};

/** Queues a task, which the caller owns again after its done(). If its start() returns false,
 * done() may run before this function returns. */
void keeper_add(struct keeper *keeper, struct keeper_task *task);

/** Queues the segment's memory to be given back. Sets the segment to segment_none. */
void keeper_release(struct keeper *keeper, struct segment *segment);

/** Bytes that the keeper is going to give back. */
uint64_t keeper_releasing(const struct keeper *keeper);

#endif
