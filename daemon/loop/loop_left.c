/*
 * Memory on devices that outlives the daemon: the service manager keeps its descriptors
 * (daemon/local/handles.h), and the next daemon takes the memory from there (daemon/device/left.c).
 *
 * Happy path: each new part of a store on a device is left at once. The daemon is killed. The next
 * one waits for the workers of this one, and takes all that was left. A job that returns to its
 * store finds its parts there, and what waits for stores that are gone is given back.
 *
 * Failures: there is no service manager, it keeps no more, or this daemon cannot use the memory.
 * Then what the job had on devices is lost, and its ledgers declare it.
 */
#include <stdio.h>

#include "daemon/local/folder.h"
#include "daemon/loop/loop_state.h"

/* NULL: no such memory outlives this daemon. */
static struct handles *loop_handles(const struct loop *loop)
{
    struct folder *folder = loop->gpu.device != NULL ? local_folder(loop->local) : NULL;

    return folder != NULL ? folder_handles(folder) : NULL;
}

/* The notes that this daemon shares with the one before and the next one. An error: what was left
 * cannot be used, though there may be notes for the next daemon. */
static enum adtopk_status loop_left_share(
    struct loop *loop, struct handles *handles, struct error *err)
{
    bool found;
    struct device_notes *notes = handles_shared(handles, sizeof(*notes), &found, err);
    enum adtopk_status status;

    loop->gpu.leaves = notes != NULL;
    if (notes == NULL) {
        return err->code;
    }
    status = device_outlive(loop->gpu.device, notes, err);
    return status == ADTOPK_OK && !found && handles->first != NULL
               ? error_set(err, ADTOPK_ERR_LOST,
                     "what that daemon noted of it is gone, or is of another release")
               : status;
}

static struct handles *loop_left_open(struct loop *loop)
{
    struct handles *handles = loop_handles(loop);
    struct error err;

    if (handles != NULL && loop_left_share(loop, handles, &err) != ADTOPK_OK) {
        log_write(loop->log, LEVEL_WARNING, LOG_LIFE,
            "cannot use what an earlier daemon left on GPUs: %s", err.text);
        while (handles->first != NULL) {
            handles_drop(handles, handles->first->store, HANDLES_ALL);
        }
    }
    return handles;
}

static enum adtopk_status loop_left_take(
    struct loop *loop, struct handles *handles, const struct handle *handle, struct error *err)
{
    struct folder_info store;
    struct device_left left = {.store = UINT64_C(1) + handle->store,
        .number = handle->part,
        .shard = handle->shard,
        .descriptor = handles_open(handles, handle)};

    if (left.descriptor < 0 || !folder_look_at(local_folder(loop->local), handle->store, &store)) {
        return error_set(err, ADTOPK_ERR_LOST, "its descriptor, or its store, is gone");
    }
    left.owner = store.key.owner;
    (void)snprintf(left.text, sizeof(left.text), "%s", handle->text);
    return device_take_left(loop->gpu.device, &left, err);
}

/* What is there of a store is of no use if something else is missing. */
static void loop_left_miss(const struct loop *loop, const struct handles *handles)
{
    uint64_t store;

    for (uint32_t at = 0; (store = device_next_missing(loop->gpu.device, &at)) != 0;) {
        bool any = false;

        for (struct handle *handle = handles->first; handle != NULL; handle = handle->next) {
            if (UINT64_C(1) + handle->store == store && !handle->useless) {
                any = handle->useless = true;
            }
        }
        if (any) {
            log_write(loop->log, LEVEL_WARNING, LOG_LIFE,
                "cannot use GPU memory that an earlier daemon left: some of a store's is missing");
        }
    }
}

void loop_take_left(struct loop *loop)
{
    struct handles *handles = loop_left_open(loop);
    struct error err;

    if (handles == NULL) {
        return;
    }
    for (struct handle *handle = handles->first; handle != NULL; handle = handle->next) {
        handle->useless = loop_left_take(loop, handles, handle, &err) != ADTOPK_OK;
        if (handle->useless) {
            log_write(loop->log, LEVEL_WARNING, LOG_LIFE,
                "cannot use GPU memory that an earlier daemon left: %s", err.text);
        }
    }
    loop_left_miss(loop, handles);
    handles_drop_useless(handles);
    loop_drop_left(loop);
}

uint64_t loop_left_store(const struct loop *loop, uint64_t job)
{
    uint32_t number;

    return loop->gpu.leaves && folder_number(local_folder(loop->local), job, &number)
               ? UINT64_C(1) + number
               : 0;
}

/* What is dropped of the parts that wait. */
struct loop_left_dropped {
    struct loop *loop;
    uint64_t store;  /* 0: only of stores that are gone, or whose descriptors nobody keeps */
    unsigned number; /* HANDLES_ALL: all parts of it */
};

/* A job that uses the store may be about to open the part, and then it must find it, even if the
 * manager keeps it no longer. */
static bool loop_left_stays(void *context, const struct device_left *left)
{
    const struct loop_left_dropped *dropped = context;
    const uint32_t number = (uint32_t)(left->store - 1);
    struct folder_info store;

    if (left->store == dropped->store &&
        (dropped->number == HANDLES_ALL || dropped->number == left->number)) {
        return false;
    }
    return handles_has(loop_handles(dropped->loop), number, left->number, left->shard) ||
           (folder_look_at(local_folder(dropped->loop->local), number, &store) && store.used);
}

static void loop_left_drop(struct loop *loop, uint64_t store, unsigned number)
{
    struct loop_left_dropped dropped = {.loop = loop, .store = store, .number = number};

    if (loop->gpu.leaves) {
        device_drop_left(loop->gpu.device, loop_left_stays, &dropped);
    }
}

void loop_drop_left(struct loop *loop)
{
    loop_left_drop(loop, 0, 0);
}

void loop_leave_no_part(struct loop *loop, uint64_t job, unsigned number)
{
    const uint64_t store = loop_left_store(loop, job);

    if (store != 0) {
        loop_left_drop(loop, store, number);
        handles_drop(loop_handles(loop), (uint32_t)(store - 1), number);
    }
}

void loop_leave_part(struct loop *loop, uint64_t job, const struct device_left *left)
{
    struct handle handle = {
        .store = (uint32_t)(left->store - 1), .part = left->number, .shard = left->shard};
    struct error err;

    if (left->store == 0) {
        return;
    }
    (void)snprintf(handle.text, sizeof(handle.text), "%s", left->text);
    if (handles_keep(loop_handles(loop), &handle, left->descriptor, &err) != ADTOPK_OK) {
        log_write(loop->log, LEVEL_WARNING, LOG_SESSION,
            "job '%s': if this daemon is killed, what it has on GPUs is lost: %s",
            core_job_key(loop->core, job)->name, err.text);
        handles_drop(loop_handles(loop), handle.store, HANDLES_ALL);
    }
    device_note_left(loop->gpu.device, left);
}
