/*
 * Dense all-reduce by a carrier: the bucket's tensors, laid end to end as f32, are summed in the
 * carrier's order. All nodes get the same bits; they need not be those of another collective. Where
 * the values are on devices, they stay there (exchange->carried.on_devices).
 */
#include "daemon/collective/carried.h"
#include "daemon/collective/predict.h"
#include "daemon/collective/vector.h"

static struct slice nccl_allreduce_everything(const struct exchange *exchange)
{
    return (struct slice){0, vector_total(exchange)};
}

static enum adtopk_status nccl_allreduce_check_totals(
    const struct exchange *exchange, struct error *err)
{
    const struct carried_state *state = exchange->carried.state;
    const uint64_t total = vector_total(exchange);

    for (unsigned m = 0; m < exchange->members; m++) {
        if (state->size[m] != total) {
            (void)error_set(err, ADTOPK_ERR_PROTOCOL, "it sums %llu elements, and this node %llu",
                (unsigned long long)state->size[m], (unsigned long long)total);
            return exchange_blame(exchange, m, err);
        }
    }
    return ADTOPK_OK;
}

/* The operation, with this node's values unless these are on devices. NULL without memory. */
static struct cargo *nccl_allreduce_load(const struct exchange *exchange)
{
    const uint64_t bytes = vector_total(exchange) * sizeof(float);
    struct cargo *cargo;

    if (exchange->carried.on_devices) {
        return cargo_create_on_devices(exchange->members);
    }
    cargo = cargo_create(CARGO_SUM, bytes, exchange->members);
    if (cargo != NULL) {
        vector_read(exchange, nccl_allreduce_everything(exchange), (float *)(void *)cargo->input);
    }
    return cargo;
}

static enum adtopk_status nccl_allreduce_number(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    if (carried_hear(exchange, phase - 1, err) != ADTOPK_OK ||
        nccl_allreduce_check_totals(exchange, err) != ADTOPK_OK) {
        return err->code;
    }
    exchange->carried.cargo = nccl_allreduce_load(exchange);
    return exchange->carried.cargo != NULL ? carried_number(exchange, phase, err)
                                           : exchange_no_memory(exchange, "carry", err);
}

static enum adtopk_status nccl_allreduce_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    if (exchange->members == 1) {
        return ADTOPK_OK;
    }
    if (phase > 0) {
        return nccl_allreduce_number(exchange, phase, err);
    }
    return carried_begin(exchange, err) != NULL
               ? carried_ready(exchange, phase, vector_total(exchange), err)
               : err->code;
}

static enum adtopk_status nccl_allreduce_finish(struct exchange *exchange, struct error *err)
{
    (void)err;
    if (exchange->carried.on_devices) {
        return ADTOPK_OK;
    }
    if (exchange->members > 1) {
        vector_write(exchange, nccl_allreduce_everything(exchange),
            (const float *)(const void *)exchange->carried.cargo->input);
    }
    vector_finish(exchange, exchange_factor(exchange));
    return ADTOPK_OK;
}

/* A ring of NCCL's. */
static double nccl_allreduce_bytes(const struct collective_load *load)
{
    return 8 * load->elements * predict_share(load);
}

static double nccl_allreduce_hops(const struct collective_load *load)
{
    return CARRIED_PHASES + 2 * predict_others(load);
}

static double nccl_allreduce_messages(const struct collective_load *load)
{
    return (CARRIED_PHASES + 2) * predict_others(load);
}

static const struct collective_cost nccl_allreduce_cost = {
    .bytes = nccl_allreduce_bytes,
    .messages = nccl_allreduce_messages,
    .hops = nccl_allreduce_hops,
};

const struct collective_ops collective_nccl_allreduce = {
    .name = "nccl-allreduce",
    .traits = {.dense = true,
        .values = 1u << PAYLOAD_VALUE_F32,
        .framed = &collective_allreduce,
        .cost = &nccl_allreduce_cost},
    .phases = carried_phases,
    .expects = exchange_expects_all,
    .produce = nccl_allreduce_produce,
    .finish = nccl_allreduce_finish,
};
