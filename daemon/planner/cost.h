/*
 * What a bucket costs by formula: bytes and hops of each choice, and the time of its computes on a
 * reference core. The planner compares measured times with these formulas. It knows a machine as
 * factors and offsets to them, so that a measurement of one choice tells something about others.
 *
 * `entries` are those of one node's contribution; `gamma` is how many times longer the sum is. The
 * formulas of volume are the collectives' own (struct collective_cost). Reference times are round
 * numbers in us; only their proportions matter.
 */
#ifndef ADTOPK_COST_H
#define ADTOPK_COST_H

#include "daemon/policy/choices.h"

/* A bucket, or several tensors together. */
struct cost_load {
    uint64_t elements;
    uint64_t entries; /* 0: dense */
    double saved;     /* bytes that the entries' values take less than two each */
};

/** Bytes by which such a value is narrower than two. */
double cost_saved(enum payload_value values);

/** Bytes that a node receives (and sends), headers included. */
double cost_bytes(enum choice choice, unsigned nodes, double gamma, struct cost_load load);

/** Messages that a node receives, and how many of them wait for one another. */
double cost_messages(enum choice choice, unsigned nodes);
double cost_hops(enum choice choice, unsigned nodes);

/** Times on one core: selection and encoding; decoding, sums and update; settling a step. */
double cost_select(enum choice choice, struct cost_load load);
double cost_reduce(enum choice choice, unsigned nodes, double gamma, struct cost_load load);
double cost_settle(uint64_t dense_elements, uint64_t entries);

/** How many threads share the computes of a bucket, at most `threads`. */
unsigned cost_share(uint64_t elements, unsigned threads);

/** gamma where it was never measured: half of the entries are the same on all nodes. */
double cost_gamma(unsigned nodes);

#endif
