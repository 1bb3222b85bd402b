/*
 * Dense all-reduce in one shot: every member sends its contribution to every other, and each adds
 * up all of them, in the order of the members.
 *
 * Each segment of the bucket's tensors, laid end to end, is one phase: one latency, the least
 * possible. A node receives n(P-1) elements. That is the least possible for two members, and little
 * for small tensors. Sums are not sent, so only the contributions are rounded.
 */
#include "daemon/collective/vector.h"
#include "kernels/kernels.h"

static unsigned oneshot_phases(const struct exchange *exchange)
{
    return exchange->members > 1 ? vector_segments(exchange, 1, 1) : 1;
}

static struct slice segment_of(const struct exchange *exchange, unsigned phase)
{
    return vector_segment(exchange, phase, oneshot_phases(exchange));
}

/* The sum is scaled while it is in the cache. */
static enum adtopk_status oneshot_scale(void *context, const struct vector_piece *piece)
{
    const float *factor = context;

    if (*factor != 1) {
        dense_scale(piece->sum, piece->n, *factor);
    }
    return ADTOPK_OK;
}

/* Every frame of the others says their loss scale, so it is known when those of a phase are open.
 */
static enum adtopk_status oneshot_sum(struct exchange *exchange, unsigned phase, struct error *err)
{
    struct vector_sum sum;
    enum adtopk_status status =
        vector_sum_open(&sum, exchange, phase, segment_of(exchange, phase), err);

    if (status == ADTOPK_OK) {
        float factor = exchange_factor(exchange);
        status = vector_sum_run(&sum, oneshot_scale, &factor, err);
    }
    vector_sum_free(&sum);
    return status;
}

static enum adtopk_status oneshot_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    struct payload_writer *frame;

    if (exchange->members == 1) {
        return ADTOPK_OK;
    }
    if (phase > 0 && oneshot_sum(exchange, phase - 1, err) != ADTOPK_OK) {
        return err->code;
    }
    frame = exchange_add_frame(exchange, phase, EXCHANGE_ALL);
    if (frame == NULL || vector_put(exchange, frame, segment_of(exchange, phase)) != ADTOPK_OK) {
        return exchange_no_memory(exchange, "encode", err);
    }
    return ADTOPK_OK;
}

static enum adtopk_status oneshot_finish(struct exchange *exchange, struct error *err)
{
    if (exchange->members > 1) {
        return oneshot_sum(exchange, oneshot_phases(exchange) - 1, err);
    }
    vector_finish(exchange, exchange_factor(exchange));
    return ADTOPK_OK;
}

const struct collective_ops collective_oneshot = {
    .name = "one-shot",
    .traits = {.dense = true, .values = COLLECTIVE_VALUES_CUT},
    .phases = oneshot_phases,
    .expects = exchange_expects_all,
    .produce = oneshot_produce,
    .finish = oneshot_finish,
};
