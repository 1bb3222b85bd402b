/*
 * Shared by the tests of nodes that join: a job under the policy "grow", which loses nodes and
 * takes them in again.
 */
#ifndef ADTOPK_SIM_GROWING_H
#define ADTOPK_SIM_GROWING_H

#include "tests/sim/failure.h"

#define STEPS 8u
#define GROW                                                                                       \
    ",\"join_timeout\":30,\"push_timeout\":60,\"wait_limit\":60,\"on_peer_loss\":\"shrink\","      \
    "\"shrink_after\":1,\"grow\":true}"
#define SUMS "{\"reduce\":\"sum\",\"density\":0.05,\"values\":\"f32\",\"bucket_bytes\":2000"
#define SPARSE(name) SUMS ",\"sparsifier\":\"topk\",\"sparse_collective\":\"" name "\"" GROW
#define DENSE(name) SUMS ",\"sparsifier\":\"dense\",\"dense_collective\":\"" name "\"" GROW
#define MEAN "{\"reduce\":\"mean\",\"sparsifier\":\"dense\"" GROW

struct scenario growing_scenario(const char *policy, unsigned nodes, unsigned ranks, uint64_t seed);
struct world *growing_world(const char *policy, unsigned nodes, unsigned ranks, uint64_t seed);

/** Ranks stop before this step until the lost node is there again. */
void grow_hold_others(struct world *world, unsigned node, uint64_t step);
void grow_release(struct world *world);
/** The node is started anew, and its ranks with it. */
void grow_come_back(struct world *world, unsigned node);

/** What ranks pushed of an element, less the updates and residuals: what was lost with the node,
 * whose ranks took part in so many steps before. */
double grow_missing(const struct world *world, unsigned t, uint64_t place, uint64_t element,
    unsigned node, uint64_t steps);

/** Nodes in the view of job 0; 0: it is active nowhere. */
unsigned grow_nodes(const struct world *world);

/* Conditions for world_until() */
bool grow_in_step_four(const struct world *world); /* tensors of later batches are there */
bool grow_is_smaller(const struct world *world); /* all nodes that are left go on without others */
bool grow_is_three(const struct world *world);
bool grow_has_joined(const struct world *world); /* all nodes are in the view */

#endif
