/*
 * Plain collective operations, in pieces that fit the operation area, one at a time.
 *
 * A call may return before its operation is done, because its time is over or a signal came. The
 * context then remembers how far the operation is, and the next call with the same arguments goes
 * on.
 */
#include <string.h>

#include "client/src/transport.h"

#define OPS_MAX_BYTES ((size_t)PTRDIFF_MAX) /* no object in C is larger */

static bool ops_is_done(const adtopk_context *context, uint64_t operation)
{
    return atomic_load(&context->ring.page->ops_done) > operation;
}

/* ---- one piece ---- */

static bool ops_gives(const adtopk_context *context, const struct client_operation *operation)
{
    return operation->kind == CLIENT_ALLREDUCE ||
           (operation->kind == CLIENT_BROADCAST && context->place.rank == operation->root);
}

static bool ops_gets(const adtopk_context *context, const struct client_operation *operation)
{
    return operation->kind == CLIENT_ALLREDUCE ||
           (operation->kind == CLIENT_BROADCAST && context->place.rank != operation->root);
}

/* Submits the next piece, unless the daemon has it already. */
static enum adtopk_status ops_post(adtopk_context *context, uint32_t size)
{
    struct client_unfinished *state = &context->unfinished;
    const struct local_entry entry = {.type = LOCAL_OP,
        .tensor = (uint32_t)state->operation.kind,
        .number = context->unfinished.number,
        .root = (uint32_t)state->operation.root,
        .size = size};
    enum adtopk_status status;

    if (state->posted) {
        return ADTOPK_OK;
    }
    if (ops_gives(context, &state->operation)) {
        memcpy(context->op_in, state->operation.bytes + state->done, size);
    }
    state->posted = true;
    status = client_hand_in(context, &entry);
    if (status == ADTOPK_INTERRUPTED) {
        state->posted = false;
    }
    return status;
}

/* Sends one piece from this rank's operation area and waits for its result. */
static enum adtopk_status ops_piece(
    adtopk_context *context, uint32_t size, const struct client_patience *patience)
{
    struct client_unfinished *state = &context->unfinished;
    enum adtopk_status status = ops_post(context, size);

    if (status == ADTOPK_OK) {
        status = client_wait_may_take(context, patience);
    }
    if (status == ADTOPK_OK) {
        status =
            context->transport->wait(context, ops_is_done, context->unfinished.number, patience);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    if (ops_gets(context, &state->operation)) {
        memcpy(state->operation.bytes + state->done, context->op_out, size);
    }
    state->posted = false;
    state->done += size;
    context->unfinished.number++;
    return ADTOPK_OK;
}

/* ---- all pieces ---- */

static bool ops_is_same(const struct client_operation *a, const struct client_operation *b)
{
    return a->kind == b->kind && a->bytes == b->bytes && a->size == b->size && a->root == b->root;
}

static enum adtopk_status ops_enter(adtopk_context *context, const char *call)
{
    const enum adtopk_status status = client_enter(context);

    if (status == ADTOPK_OK && context->commit != CLIENT_COMMIT_DONE) {
        return client_refuse(context, ADTOPK_ERR_STATE, "%s before adtopk_commit()", call);
    }
    return status;
}

/* Begins the operation, or goes on with it. */
static enum adtopk_status ops_run(adtopk_context *context, const char *call,
    const struct client_operation *operation, int timeout_ms)
{
    const struct client_patience patience = client_patience(context, timeout_ms);
    struct client_unfinished *state = &context->unfinished;
    enum adtopk_status status = ADTOPK_OK;

    if (state->operates && !ops_is_same(&state->operation, operation)) {
        return client_refuse(context, ADTOPK_ERR_STATE,
            "%s while another collective operation is under way: repeat that call", call);
    }
    if (!state->operates) {
        state->operation = *operation;
        state->done = 0;
        state->posted = false;
        state->operates = true;
    }
    if (operation->kind == CLIENT_BARRIER) {
        status = ops_piece(context, 0, &patience);
    }
    while (status == ADTOPK_OK && state->done < operation->size) {
        const size_t left = operation->size - state->done;

        status =
            ops_piece(context, left < CLIENT_OP_SIZE ? (uint32_t)left : CLIENT_OP_SIZE, &patience);
    }
    state->operates = status != ADTOPK_OK && context->failure.code == ADTOPK_OK;
    return status;
}

/* ---- the calls ---- */

static enum adtopk_status ops_broadcast(
    adtopk_context *context, void *bytes, size_t size, int root, int timeout_ms)
{
    const struct client_operation operation = {
        .kind = CLIENT_BROADCAST, .bytes = bytes, .size = size, .root = root};
    const enum adtopk_status status = ops_enter(context, "adtopk_broadcast()");

    if (status != ADTOPK_OK) {
        return status;
    }
    if (bytes == NULL && size > 0) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT, "adtopk_broadcast(): bytes is NULL");
    }
    if (size > OPS_MAX_BYTES) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "adtopk_broadcast(): nothing has %zu bytes, more than half the address space", size);
    }
    if (root < 0 || root >= context->place.world_size) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "adtopk_broadcast(): the root is %d, and the job has ranks 0 to %d", root,
            context->place.world_size - 1);
    }
    return ops_run(context, "adtopk_broadcast()", &operation, timeout_ms);
}

enum adtopk_status adtopk_broadcast_for(
    adtopk_context *context, void *bytes, size_t size, int root, int timeout_ms)
{
    client_lock(context);
    return client_unlock(context, ops_broadcast(context, bytes, size, root, timeout_ms));
}

enum adtopk_status adtopk_broadcast(adtopk_context *context, void *bytes, size_t size, int root)
{
    return adtopk_broadcast_for(context, bytes, size, root, -1);
}

static enum adtopk_status ops_barrier(adtopk_context *context, int timeout_ms)
{
    const struct client_operation operation = {.kind = CLIENT_BARRIER};
    const enum adtopk_status status = ops_enter(context, "adtopk_barrier()");

    return status == ADTOPK_OK ? ops_run(context, "adtopk_barrier()", &operation, timeout_ms)
                               : status;
}

enum adtopk_status adtopk_barrier_for(adtopk_context *context, int timeout_ms)
{
    client_lock(context);
    return client_unlock(context, ops_barrier(context, timeout_ms));
}

enum adtopk_status adtopk_barrier(adtopk_context *context)
{
    return adtopk_barrier_for(context, -1);
}

static enum adtopk_status ops_allreduce(
    adtopk_context *context, float *values, size_t count, int timeout_ms)
{
    const struct client_operation operation = {
        .kind = CLIENT_ALLREDUCE, .bytes = (uint8_t *)values, .size = count * sizeof(float)};
    const enum adtopk_status status = ops_enter(context, "adtopk_allreduce()");

    if (status == ADTOPK_OK && values == NULL && count > 0) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT, "adtopk_allreduce(): values is NULL");
    }
    if (status == ADTOPK_OK && count > OPS_MAX_BYTES / sizeof(float)) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "adtopk_allreduce(): nothing has %zu floats, more than half the address space", count);
    }
    return status == ADTOPK_OK ? ops_run(context, "adtopk_allreduce()", &operation, timeout_ms)
                               : status;
}

enum adtopk_status adtopk_allreduce_for(
    adtopk_context *context, float *values, size_t count, int timeout_ms)
{
    client_lock(context);
    return client_unlock(context, ops_allreduce(context, values, count, timeout_ms));
}

enum adtopk_status adtopk_allreduce(adtopk_context *context, float *values, size_t count)
{
    return adtopk_allreduce_for(context, values, count, -1);
}
