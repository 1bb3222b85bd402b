/* Plain collective operations, in pieces that fit the operation area, one at a time. */
#include <string.h>

#include "client/src/transport.h"

#define OPS_MAX_BYTES ((size_t)PTRDIFF_MAX) /* no object in C is larger */

/* The kinds of operations: enum op_kind of the daemon's core. */
enum ops_kind { OPS_BARRIER = 0, OPS_BROADCAST = 1, OPS_ALLREDUCE = 2 };

static bool ops_is_done(const adtopk_context *context, uint64_t operation)
{
    return atomic_load(&context->ring.page->ops_done) > operation;
}

/* One piece: from the operation area of this rank to that of the results. */
static enum adtopk_status ops_piece(
    adtopk_context *context, enum ops_kind kind, uint32_t size, int root)
{
    const struct local_entry entry = {.type = LOCAL_OP,
        .tensor = (uint32_t)kind,
        .number = context->operation,
        .root = (uint32_t)root,
        .size = size};
    enum adtopk_status status = context->transport->submit(context, &entry);

    if (status == ADTOPK_OK) {
        status = context->transport->wait(context, ops_is_done, context->operation);
    }
    context->operation++;
    return status;
}

static enum adtopk_status ops_enter(adtopk_context *context, const char *call)
{
    const enum adtopk_status status = client_enter(context);

    if (status == ADTOPK_OK && !context->committed) {
        return client_refuse(context, ADTOPK_ERR_STATE, "%s before adtopk_commit()", call);
    }
    return status;
}

enum adtopk_status adtopk_broadcast(adtopk_context *context, void *bytes, size_t size, int root)
{
    enum adtopk_status status = ops_enter(context, "adtopk_broadcast()");
    uint8_t *at = bytes;

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
    if (root < 0 || root >= context->world_size) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "adtopk_broadcast(): the root is %d, and the job has ranks 0 to %d", root,
            context->world_size - 1);
    }
    while (status == ADTOPK_OK && size > 0) {
        const uint32_t piece = size < CLIENT_OP_SIZE ? (uint32_t)size : CLIENT_OP_SIZE;

        if (context->rank == root) {
            memcpy(context->op_in, at, piece);
        }
        status = ops_piece(context, OPS_BROADCAST, piece, root);
        if (status == ADTOPK_OK && context->rank != root) {
            memcpy(at, context->op_out, piece);
        }
        at += piece;
        size -= piece;
    }
    return status;
}

enum adtopk_status adtopk_barrier(adtopk_context *context)
{
    const enum adtopk_status status = ops_enter(context, "adtopk_barrier()");

    return status == ADTOPK_OK ? ops_piece(context, OPS_BARRIER, 0, 0) : status;
}

enum adtopk_status adtopk_allreduce(adtopk_context *context, float *values, size_t count)
{
    enum adtopk_status status = ops_enter(context, "adtopk_allreduce()");

    if (status == ADTOPK_OK && values == NULL && count > 0) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT, "adtopk_allreduce(): values is NULL");
    }
    if (status == ADTOPK_OK && count > OPS_MAX_BYTES / sizeof(float)) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "adtopk_allreduce(): nothing has %zu floats, more than half the address space", count);
    }
    while (status == ADTOPK_OK && count > 0) {
        const size_t most = CLIENT_OP_SIZE / sizeof(float);
        const size_t piece = count < most ? count : most;

        memcpy(context->op_in, values, piece * sizeof(float));
        status = ops_piece(context, OPS_ALLREDUCE, (uint32_t)(piece * sizeof(float)), 0);
        if (status == ADTOPK_OK) {
            memcpy(values, context->op_out, piece * sizeof(float));
        }
        values += piece;
        count -= piece;
    }
    return status;
}
