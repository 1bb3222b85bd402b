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
    /* Nobody needs the memory any more: the task is not started, or stops at the next stride. */
    atomic_bool unwanted;
    /* Bytes that it has still to take, if nobody else counts them: its start() sets them. */
    atomic_uint_least64_t filling;
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

/** For a task's run(): takes the memory of [offset, offset + size) of the segment. Errors: as
 * segment_fill(), and STATE if the task became unwanted. */
enum adtopk_status keeper_fill(struct keeper_task *task, const struct segment *segment,
    const char *name, uint64_t offset, uint64_t size, struct error *err);

/** What the running task has still to take and nobody else counts. */
uint64_t keeper_filling(const struct keeper *keeper);

/** Queues the segment's memory to be given back. Sets the segment to segment_none. taken: bytes of
 * it that come back by this: they were taken from the system, and nothing else has this memory. */
void keeper_release(struct keeper *keeper, struct segment *segment, uint64_t taken);

/** Bytes that come back when the keeper has given back all that it is to. */
uint64_t keeper_releasing(const struct keeper *keeper);

#endif
