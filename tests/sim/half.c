/*
 * A collective for tests: all-gather whose sum has a pseudo-random half of the entries. The other
 * half must stay in the residuals, so it exercises settle().
 */
#include "daemon/collective/collective.h"
#include "tests/sim/world.h"

static bool half_takes(const struct payload_header *header, uint32_t tensor, uint32_t position)
{
    uint64_t x = (header->number + 1) * 0x9e3779b97f4a7c15u ^ position * 0xbf58476d1ce4e5b9u;

    (void)tensor;
    return (x ^ x >> 31) % 2 == 0;
}

static unsigned half_phases(const struct exchange *exchange)
{
    return collective_allgather.phases(exchange);
}

static bool half_expects(const struct exchange *exchange, unsigned phase, unsigned from)
{
    return collective_allgather.expects(exchange, phase, from);
}

static enum adtopk_status half_produce(struct exchange *exchange, unsigned phase, struct error *err)
{
    return collective_allgather.produce(exchange, phase, err);
}

static enum adtopk_status half_finish(struct exchange *exchange, struct error *err)
{
    enum adtopk_status status = collective_allgather.finish(exchange, err);

    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        struct sparse *update = &exchange->tensor[t].update;
        size_t count = 0;
        for (size_t i = 0; i < update->count; i++) {
            if (half_takes(&exchange->header, t, update->position[i])) {
                update->position[count] = update->position[i];
                update->value[count++] = update->value[i];
            }
        }
        update->count = count;
    }
    return status;
}

static void half_drop(struct exchange *exchange)
{
    collective_allgather.drop(exchange);
}

const struct collective_ops collective_half = {
    .name = "half",
    .traits = {.picks = PICKS_ENTRIES, .values = COLLECTIVE_VALUES_ALL, .streams = true},
    .phases = half_phases,
    .expects = half_expects,
    .produce = half_produce,
    .finish = half_finish,
    .drop = half_drop,
};
