/*
 * Operations of NCCL in the worker: communicators that do not block, and every call polled until it
 * is no longer in progress.
 *
 * Happy path: the first operation of a job's group makes a communicator, which belongs to the
 * arena of the job's first part. The operation goes into the worker's stream, behind its input. The
 * worker looks at the stream, at the communicator and at the page until it is done.
 *
 * Failures: whatever NCCL or the daemon objects to ends in ncclCommAbort(), and in a sentence in
 * the entry. An error of the driver ends the worker, as everywhere.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/device/worker.h"

#define LOOK_US 20 /* between two looks, after a while */

/* One operation on its way. */
struct carrying {
    struct worker_state *state;
    struct worker_arena *arena;
    struct page_carry *carry;
    uint32_t number; /* of the entry */
    struct error error;
};

static bool carry_fails(struct carrying *carrying, const char *because)
{
    (void)error_set(&carrying->error, ADTOPK_ERR_SYSTEM, "%s", because);
    return false;
}

/* False, with an error, unless the call has succeeded or is in progress. */
static bool carry_check(struct carrying *carrying, ncclResult_t result, const char *call)
{
    if (result != ncclSuccess && result != ncclInProgress) {
        (void)nccl_failed(
            &carrying->state->nccl, result, call, carrying->arena->comm, &carrying->error);
    }
    return result == ncclSuccess || result == ncclInProgress;
}

/* Passes a moment. False: the daemon does not want the operation any more. */
static bool carry_wait(struct carrying *carrying)
{
    struct page *page = carrying->state->page;

    (void)atomic_fetch_add(&page->beat, 1);
    if (!page_pass_time(&carrying->state->spin)) {
        (void)usleep(LOOK_US);
    }
    return atomic_load(&page->abort) != carrying->number || carry_fails(carrying, "it was aborted");
}

/* Waits until the communicator has done what it was told. */
static bool carry_progress(struct carrying *carrying, const char *call)
{
    const struct nccl *nccl = &carrying->state->nccl;
    ncclResult_t state = ncclInProgress;

    do {
        const ncclResult_t result = nccl->ncclCommGetAsyncError(carrying->arena->comm, &state);

        if (!carry_check(carrying, result, "ncclCommGetAsyncError") ||
            !carry_check(carrying, state, call)) {
            return false;
        }
    } while (state == ncclInProgress && carry_wait(carrying));
    return state != ncclInProgress;
}

/* ------------------------------------------------------------------ communicators */

/* Counts what the device has less than before as the communicator's. */
static void carry_count(struct carrying *carrying, uint64_t before)
{
    const uint64_t left = worker_left(carrying->state);
    const uint64_t taken = left != 0 && left < before ? before - left : 0;

    carrying->arena->taken += taken;
    (void)atomic_fetch_add(&carrying->state->page->nccl, taken);
}

void worker_drop_group(struct worker_state *state, struct worker_arena *arena)
{
    if (arena->comm != NULL) {
        (void)state->nccl.ncclCommAbort(arena->comm);
    }
    (void)atomic_fetch_sub(&state->page->nccl, arena->taken);
    arena->taken = 0;
    arena->kinds = 0;
    arena->comm = NULL;
    arena->group = 0;
}

static bool carry_join(struct carrying *carrying)
{
    struct worker_arena *arena = carrying->arena;
    const struct page_carry *carry = carrying->carry;
    ncclConfig_t config = {.size = sizeof(config),
        .magic = NCCL_CONFIG_MAGIC,
        .version = NCCL_MINIMUM,
        .blocking = 0,
        .cgaClusterSize = NCCL_CONFIG_UNDEFINED,
        .minCTAs = NCCL_CONFIG_UNDEFINED,
        .maxCTAs = NCCL_CONFIG_UNDEFINED,
        .splitShare = NCCL_CONFIG_UNDEFINED};
    const uint64_t left = worker_left(carrying->state);
    ncclUniqueId id;
    ncclResult_t result;

    (void)memcpy(
        id.internal, carry->group.name[carry->device % CARGO_DEVICES], sizeof(id.internal));
    result = carrying->state->nccl.ncclCommInitRankConfig(
        &arena->comm, (int)carry->group.members, id, (int)carry->group.self, &config);
    if (!carry_check(carrying, result, "ncclCommInitRankConfig") ||
        !carry_progress(carrying, "ncclCommInitRankConfig")) {
        return false;
    }
    carry_count(carrying, left);
    return true;
}

/* The communicator of the operation's group. */
static bool carry_group(struct carrying *carrying)
{
    struct worker_arena *arena = carrying->arena;

    if (arena->group == carrying->carry->group.number) {
        return true;
    }
    if (carrying->carry->group.made) {
        return carry_fails(
            carrying, "its communicator is gone: the device worker was started again");
    }
    worker_drop_group(carrying->state, arena);
    if (!carry_join(carrying)) {
        return false;
    }
    arena->group = carrying->carry->group.number;
    return true;
}

/* ------------------------------------------------------------------ operations */

static bool carry_name(struct carrying *carrying)
{
    struct cargo_group *group = &carrying->carry->group;

    for (unsigned d = 0; d < group->devices && d < CARGO_DEVICES; d++) {
        ncclUniqueId id;

        if (!carry_check(carrying, carrying->state->nccl.ncclGetUniqueId(&id), "ncclGetUniqueId")) {
            return false;
        }
        (void)memcpy(group->name[d], id.internal, sizeof(id.internal));
    }
    return true;
}

/* An address in scratch memory. */
static void *carry_address(const struct carrying *carrying, uint64_t offset)
{
    return (void *)(uintptr_t)(carrying->state->scratch + offset);
}

static ncclResult_t carry_sum(const struct carrying *carrying)
{
    const struct page_carry *carry = carrying->carry;

    return carrying->state->nccl.ncclAllReduce(carry_address(carrying, carry->input),
        carry_address(carrying, carry->output), carry->bytes / sizeof(float), ncclFloat32, ncclSum,
        carrying->arena->comm, carrying->state->stream);
}

static ncclResult_t carry_gather(const struct carrying *carrying)
{
    const struct page_carry *carry = carrying->carry;

    return carrying->state->nccl.ncclAllGather(carry_address(carrying, carry->input),
        carry_address(carrying, carry->output), carry->bytes, ncclUint8, carrying->arena->comm,
        carrying->state->stream);
}

/* Gives a member its piece, and takes the member's. */
static ncclResult_t carry_swap(const struct carrying *carrying, unsigned member)
{
    const struct worker_state *state = carrying->state;
    const struct page_carry *carry = carrying->carry;
    const uint64_t at = member * carry->bytes;
    const ncclResult_t result = state->nccl.ncclSend(carry_address(carrying, carry->input + at),
        carry->bytes, ncclUint8, (int)member, carrying->arena->comm, state->stream);

    return result != ncclSuccess && result != ncclInProgress
               ? result
               : state->nccl.ncclRecv(carry_address(carrying, carry->output + at), carry->bytes,
                     ncclUint8, (int)member, carrying->arena->comm, state->stream);
}

/* One operation for NCCL: it is begun when the group ends. */
static ncclResult_t carry_deal(const struct carrying *carrying)
{
    const struct nccl *nccl = &carrying->state->nccl;
    ncclResult_t result = nccl->ncclGroupStart(), ended;

    for (unsigned m = 0; result == ncclSuccess && m < carrying->carry->group.members; m++) {
        result = carry_swap(carrying, m);
        result = result == ncclInProgress ? ncclSuccess : result;
    }
    ended = nccl->ncclGroupEnd();
    return result != ncclSuccess ? result : ended;
}

static const struct carry_kind {
    ncclResult_t (*begin)(const struct carrying *carrying);
    const char *call; /* for sentences */
} carry_kinds[] = {
    [CARGO_SUM] = {carry_sum, "ncclAllReduce"},
    [CARGO_GATHER] = {carry_gather, "ncclAllGather"},
    [CARGO_DEAL] = {carry_deal, "ncclSend and ncclRecv"},
};

/* Waits for the stream. False with an error of NCCL's, or of the driver in the worker's state. */
static bool carry_end(struct carrying *carrying, const char *call)
{
    struct worker_state *state = carrying->state;
    CUresult result;

    while ((result = state->driver.cuStreamQuery(state->stream)) == CUDA_ERROR_NOT_READY) {
        if (!carry_progress(carrying, call) || !carry_wait(carrying)) {
            return false;
        }
    }
    return driver_check(&state->driver, result, call, &state->device, &state->error) == ADTOPK_OK &&
           carry_progress(carrying, call);
}

static bool carry_make(struct carrying *carrying)
{
    const struct carry_kind *kind = &carry_kinds[carrying->carry->kind];

    return carry_check(carrying, kind->begin(carrying), kind->call) &&
           carry_progress(carrying, kind->call) && carry_end(carrying, kind->call);
}

/* NCCL makes connections, and takes memory for them, with the first operation of a kind. */
static bool carry_make_first(struct carrying *carrying)
{
    const uint64_t left = worker_left(carrying->state);

    if (!carry_make(carrying)) {
        return false;
    }
    carry_count(carrying, left);
    carrying->arena->kinds |= 1u << carrying->carry->kind;
    return true;
}

static bool carry_run(struct carrying *carrying)
{
    if (!carry_group(carrying)) {
        return false;
    }
    if (carrying->carry->bytes == 0) { /* other devices have all of it */
        return true;
    }
    return (carrying->arena->kinds >> carrying->carry->kind & 1) != 0 ? carry_make(carrying)
                                                                      : carry_make_first(carrying);
}

static bool carry_do(struct carrying *carrying)
{
    if (carrying->state->nccl.library == NULL) {
        return carry_fails(carrying, carrying->state->no_nccl);
    }
    if (carrying->carry->kind == CARGO_NAME) {
        return carry_name(carrying);
    }
    return carrying->state->left_out != ADTOPK_OK
               ? carry_fails(carrying, "no memory on the device for its values")
               : carry_run(carrying);
}

bool worker_carry(struct worker_state *state, struct page_carry *carry, uint32_t number)
{
    struct carrying carrying = {.state = state,
        .arena = &state->arena[carry->arena % PAGE_ARENAS],
        .carry = carry,
        .number = number};

    state->spin.active_us = 0;
    if (carry_do(&carrying)) {
        return true;
    }
    if (carry->kind != CARGO_NAME) {
        worker_drop_group(state, carrying.arena);
    }
    carry->error = carrying.error;
    state->left_out = ADTOPK_ERR_SYSTEM;
    return state->error.code == ADTOPK_OK;
}
