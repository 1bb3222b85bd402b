/*
 * Dense all-reduce: chooses the fastest for the bucket's size and the number of nodes.
 *
 * With alpha the latency of a message and beta the time per element, P nodes (2^h <= P < 2^(h+1))
 * and n elements:
 *
 *     one-shot            (P-1) alpha + n(P-1) w beta
 *     pairwise            2(P-1) alpha + 2n(P-1)/P beta
 *     halving-doubling    2h alpha + 2n(2^h-1)/2^h w beta, P = 2^h
 *                         (2h + 2) alpha + (2n(2^h-1)/2^h + 2n) w beta, else
 *
 * alpha counts as MESSAGE_BYTES. w is WORK, because each element is read, added or copied more
 * often than by pairwise. The least cost wins. Of equal costs the first wins, because it has fewer
 * steps that wait for each other. Halving takes no values narrower than f32; the narrow sums of two
 * members should not be sent at all. README.md has measurements with 2, 3 and 4 nodes, and says
 * where these costs are wrong. (A ring costs as much as pairwise, with more steps.)
 */
#include "daemon/collective/doubling.h"
#include "daemon/collective/predict.h"
#include "daemon/collective/vector.h"

#define MESSAGE_BYTES 16384.0 /* 131 us at 1 Gbit/s */
#define WORK 1.1

/* In elements of the exchange's values. */
static double cost_oneshot(double p, double n, double message)
{
    return (p - 1) * (message + WORK * n);
}

static double cost_pairwise(double p, double n, double message)
{
    return 2 * (p - 1) * (message + n / p);
}

static double cost_halving(struct doubling doubling, double n, double message)
{
    double cores = doubling.cores, folds = doubling.extras > 0 ? 1 : 0;

    return 2 * (doubling.hops + folds) * message + 2 * WORK * n * ((cores - 1) / cores + folds);
}

static const struct collective_ops *fastest(const struct exchange *exchange)
{
    bool wide = exchange->value == PAYLOAD_VALUE_F32;
    double n = (double)vector_total(exchange), p = exchange->members;
    double message = MESSAGE_BYTES / (wide ? 4 : 2);
    double oneshot = cost_oneshot(p, n, message), pairwise = cost_pairwise(p, n, message);
    double halving = cost_halving(doubling_of(exchange->members), n, message);

    if (!wide) {
        return exchange->members <= 2 || oneshot <= pairwise ? &collective_oneshot
                                                             : &collective_pairwise;
    }
    if (oneshot <= pairwise && oneshot <= halving) {
        return &collective_oneshot;
    }
    return halving < pairwise ? &collective_halving : &collective_pairwise;
}

/* Two members never send sums, so they have no rests. */
static uint64_t allreduce_rests(unsigned members, uint64_t elements)
{
    return members > 2 ? collective_pairwise.traits.rests(members, elements) : 0;
}

static unsigned allreduce_phases(const struct exchange *exchange)
{
    return fastest(exchange)->phases(exchange);
}

static bool allreduce_expects(const struct exchange *exchange, unsigned phase, unsigned from)
{
    return fastest(exchange)->expects(exchange, phase, from);
}

static enum adtopk_status allreduce_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    return fastest(exchange)->produce(exchange, phase, err);
}

static enum adtopk_status allreduce_finish(struct exchange *exchange, struct error *err)
{
    return fastest(exchange)->finish(exchange, err);
}

static void allreduce_drop(struct exchange *exchange)
{
    fastest(exchange)->drop(exchange); /* the collective that left a state can drop it */
}

/* By pairwise, or for two members by one-shot. */
static double allreduce_bytes(const struct collective_load *load)
{
    return (load->wide ? 8 : 4) * load->elements * predict_share(load);
}

static double allreduce_messages(const struct collective_load *load)
{
    struct doubling doubling = doubling_of(load->members);
    double others = predict_others(load), most = load->members > 2 ? 2 * others : others;

    return load->wide && doubling.extras == 0 ? fmin(2.0 * doubling.hops, most) : most;
}

static double allreduce_hops(const struct collective_load *load)
{
    double messages = allreduce_messages(load);

    return messages < 2 * predict_others(load) ? messages : load->members > 2 ? 2 : 1;
}

static const struct collective_cost allreduce_cost = {
    .bytes = allreduce_bytes,
    .messages = allreduce_messages,
    .hops = allreduce_hops,
};

const struct collective_ops collective_allreduce = {
    .name = "allreduce",
    .traits = {.dense = true,
        .values = COLLECTIVE_VALUES_CUT,
        .rests = allreduce_rests,
        .cost = &allreduce_cost},
    .phases = allreduce_phases,
    .expects = allreduce_expects,
    .produce = allreduce_produce,
    .finish = allreduce_finish,
    .drop = allreduce_drop,
};
