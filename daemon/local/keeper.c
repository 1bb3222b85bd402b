#include "daemon/local/keeper.h"

#include <stddef.h>
#include <stdlib.h>

#define KEEPER_PIECE                                                                               \
    (UINT64_C(16) << 20) /* unmapped at a time, because other threads wait for the address space   \
                          */

static void keeper_next(struct keeper *keeper);

/* Ends a task. False: that was the last one, and the keeper may be gone. */
static bool keeper_end(struct keeper *keeper, struct keeper_task *task)
{
    keeper->running = NULL;
    task->done(task);
    if (--keeper->tasks > 0) {
        return true;
    }
    keeper->emptied(keeper);
    return false;
}

static void keeper_work(uv_work_t *work)
{
    struct keeper_task *task = work->data;

    task->run(task);
}

static void keeper_worked(uv_work_t *work, int status)
{
    struct keeper_task *task = work->data;
    struct keeper *keeper = task->keeper;

    (void)status; /* no call cancels the task */
    if (keeper_end(keeper, task)) {
        keeper_next(keeper);
    }
}

static void keeper_next(struct keeper *keeper)
{
    bool more = true;

    while (more && keeper->running == NULL && keeper->first != NULL) {
        struct keeper_task *task = keeper->first;

        keeper->first = task->next;
        keeper->running = task;
        if (!atomic_load(&task->unwanted) && task->start(task)) {
            task->work.data = task;
            /* Fails only without a function to run. */
            (void)uv_queue_work(keeper->loop, &task->work, keeper_work, keeper_worked);
            return;
        }
        more = keeper_end(keeper, task);
    }
}

void keeper_add(struct keeper *keeper, struct keeper_task *task)
{
    task->keeper = keeper;
    task->next = NULL;
    if (keeper->first == NULL) {
        keeper->first = task;
    } else {
        keeper->last->next = task;
    }
    keeper->last = task;
    keeper->tasks++;
    keeper_next(keeper);
}

/* ---- taking ---- */

enum adtopk_status keeper_fill(struct keeper_task *task, const struct segment *segment,
    const char *name, uint64_t offset, uint64_t size, struct error *err)
{
    const bool counted = atomic_load(&task->filling) >= size;
    enum adtopk_status status = ADTOPK_OK;

    for (uint64_t done = 0; status == ADTOPK_OK && done < size;) {
        const uint64_t left = size - done;
        const uint64_t piece = left < SEGMENT_STRIDE ? left : SEGMENT_STRIDE;

        if (atomic_load(&task->unwanted)) {
            return error_set(err, ADTOPK_ERR_STATE, "the %s is no longer wanted", name);
        }
        status = segment_fill(segment, name, offset + done, piece, err);
        if (counted) {
            (void)atomic_fetch_sub(&task->filling, piece);
        }
        done += piece;
    }
    return status;
}

uint64_t keeper_filling(const struct keeper *keeper)
{
    return keeper->running != NULL ? atomic_load(&keeper->running->filling) : 0;
}

/* ---- giving back ---- */

uint64_t keeper_releasing(const struct keeper *keeper)
{
    return atomic_load(&keeper->releasing);
}

struct release {
    struct keeper_task task;
    struct segment segment;
    uint64_t counted; /* bytes that are still in `releasing` */
};

static struct release *release_of(struct keeper_task *task)
{
    return (struct release *)(void *)((char *)task - offsetof(struct release, task));
}

static bool release_start(struct keeper_task *task)
{
    (void)task;
    return true;
}

/* Up to so many bytes have come back. */
static void release_count(struct release *release, uint64_t bytes)
{
    const uint64_t back = bytes < release->counted ? bytes : release->counted;

    release->counted -= back;
    (void)atomic_fetch_sub(&release->task.keeper->releasing, back);
}

static void release_run(struct keeper_task *task)
{
    struct release *release = release_of(task);

    while (segment_trim(&release->segment, KEEPER_PIECE)) {
        if (release->segment.fd < 0) { /* closing a descriptor gives its memory back too */
            release_count(release, KEEPER_PIECE);
        }
    }
    segment_drop(&release->segment);
    release_count(release, release->counted);
}

static void release_done(struct keeper_task *task)
{
    free(release_of(task));
}

void keeper_release(struct keeper *keeper, struct segment *segment, uint64_t taken)
{
    struct release *release = malloc(sizeof *release);

    if (release == NULL || segment->size <= KEEPER_PIECE) {
        free(release);
        segment_drop(segment);
        return;
    }
    release->task =
        (struct keeper_task){.start = release_start, .run = release_run, .done = release_done};
    release->segment = *segment;
    release->counted = taken;
    *segment = segment_none;
    (void)atomic_fetch_add(&keeper->releasing, release->counted);
    keeper_add(keeper, &release->task);
}
