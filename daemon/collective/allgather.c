/*
 * Sparse all-gather: every node sends its list to every other, and each forms the sum itself, in
 * the order of the nodes. One phase; k(P-1) entries received a node, so it suits small P.
 */
#include "daemon/collective/collective.h"
#include "daemon/collective/gather.h"

static unsigned allgather_phases(const struct exchange *exchange)
{
    (void)exchange;
    return 1;
}

static bool allgather_expects(const struct exchange *exchange, unsigned phase, unsigned from)
{
    (void)phase;
    return from != exchange->self;
}

static enum adtopk_status allgather_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    struct payload_writer *frame = exchange_add_frame(exchange, phase, EXCHANGE_ALL);
    enum adtopk_status status = frame != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;

    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        struct exchange_tensor *tensor = &exchange->tensor[t];
        status = payload_put_list(
            frame, &tensor->shape, &tensor->sent, exchange->index, exchange->value);
    }
    if (status != ADTOPK_OK) {
        return error_set(err, status, "no memory to encode bucket %u", exchange->header.bucket);
    }
    payload_end(frame);
    return ADTOPK_OK;
}

/* Where a node's share depends on its ranks, no list alone is too long, but all together may be
 * longer than the update can get. */
static enum adtopk_status sum_tensor(struct gather *gather, unsigned t, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    struct exchange_tensor *tensor = &exchange->tensor[t];
    enum adtopk_status status;

    for (unsigned m = 0; m < exchange->members; m++) {
        gather->shape[m] = tensor->shape;
    }
    status = gather_next(gather, &tensor->sent, err);
    if (status == ADTOPK_OK) {
        status = gather_limit(gather, tensor, err);
    }
    if (status == ADTOPK_OK) {
        status = gather_update(gather, tensor, err);
    }
    return status;
}

static enum adtopk_status allgather_finish(struct exchange *exchange, struct error *err)
{
    return gather_each(exchange, 0, sum_tensor, err);
}

const struct collective_ops collective_allgather = {
    .name = "allgather",
    .dense = false,
    .scatters = true,
    .phases = allgather_phases,
    .expects = allgather_expects,
    .produce = allgather_produce,
    .finish = allgather_finish,
};
