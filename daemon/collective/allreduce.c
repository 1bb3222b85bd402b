/*
 * Dense all-reduce: the one that is fastest for the bucket's size and the number of nodes.
 *
 * With alpha the latency of a message and beta the time per element, P nodes (2^h <= P < 2^(h+1))
 * and n elements:
 *
 *     pairwise            2(P-1) alpha + 2n(P-1)/P beta
 *     halving-doubling    2h alpha + 2n(2^h-1)/2^h beta, P = 2^h
 *                         (2h + 2) alpha + (2n(2^h-1)/2^h + 2n) beta, else
 *
 * alpha counts as MESSAGE_ELEMENTS beta, and the lesser cost wins; pairwise, which has fewer steps
 * that wait for each other, if there is none. (A ring costs what pairwise does, with more steps.)
 * For 4, 8, 16, ... nodes that is halving-doubling, for other numbers it is for small buckets only.
 * Values narrower than f32 only pairwise can take.
 */
#include "daemon/collective/doubling.h"
#include "daemon/collective/vector.h"

/* 16 KiB, 131 us at 1 Gbit/s. */
#define MESSAGE_ELEMENTS 4096

static const struct collective_ops *fastest(const struct exchange *exchange)
{
    struct doubling doubling = doubling_of(exchange->members);
    double n = (double)vector_total(exchange), p = exchange->members, cores = doubling.cores;
    double folds = doubling.extras > 0 ? 1 : 0;
    double pairwise = 2 * (p - 1) * MESSAGE_ELEMENTS + 2 * n * (p - 1) / p;
    double halving =
        2 * (doubling.hops + folds) * MESSAGE_ELEMENTS + 2 * n * ((cores - 1) / cores + folds);

    return exchange->value == PAYLOAD_VALUE_F32 && halving < pairwise ? &collective_halving
                                                                      : &collective_pairwise;
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
    fastest(exchange)->drop(exchange); /* whoever left a state can drop it */
}

const struct collective_ops collective_allreduce = {
    .name = "allreduce",
    .dense = true,
    .phases = allreduce_phases,
    .expects = allreduce_expects,
    .produce = allreduce_produce,
    .finish = allreduce_finish,
    .drop = allreduce_drop,
};
