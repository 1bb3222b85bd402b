/*
 * Dense all-reduce in one shot: every member sends its contribution to every other, and each adds
 * up all of them, in the order of the members.
 *
 * Each segment of the bucket's tensors, laid end to end, is one phase: one latency, the least
 * possible. A node receives n(P-1) elements. That is the least possible for two members, and little
 * for small tensors. Sums are not sent, so only the contributions are rounded.
 */
#include "daemon/collective/vector.h"

static unsigned oneshot_phases(const struct exchange *exchange)
{
    return exchange->members > 1 ? vector_segments(exchange, 1, 1) : 1;
}

static bool oneshot_expects(const struct exchange *exchange, unsigned phase, unsigned from)
{
    (void)phase;
    return from != exchange->self;
}

static struct slice segment_of(const struct exchange *exchange, unsigned phase)
{
    return vector_segment(exchange, phase, oneshot_phases(exchange));
}

static enum adtopk_status oneshot_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    struct payload_writer *frame;

    if (exchange->members == 1) {
        return ADTOPK_OK;
    }
    if (phase > 0 &&
        vector_sum(exchange, phase - 1, segment_of(exchange, phase - 1), err) != ADTOPK_OK) {
        return err->code;
    }
    frame = exchange_add_frame(exchange, phase, EXCHANGE_ALL);
    if (frame == NULL || vector_put(exchange, frame, segment_of(exchange, phase)) != ADTOPK_OK) {
        return error_set(
            err, ADTOPK_ERR_MEMORY, "no memory to encode bucket %u", exchange->header.bucket);
    }
    return ADTOPK_OK;
}

static enum adtopk_status oneshot_finish(struct exchange *exchange, struct error *err)
{
    unsigned last = oneshot_phases(exchange) - 1;

    if (exchange->members > 1 &&
        vector_sum(exchange, last, segment_of(exchange, last), err) != ADTOPK_OK) {
        return err->code;
    }
    vector_finish(exchange, exchange_factor(exchange));
    return ADTOPK_OK;
}

const struct collective_ops collective_oneshot = {
    .name = "one-shot",
    .traits = {.dense = true, .values = COLLECTIVE_VALUES_CUT},
    .phases = oneshot_phases,
    .expects = oneshot_expects,
    .produce = oneshot_produce,
    .finish = oneshot_finish,
};
