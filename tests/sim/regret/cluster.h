/*
 * Nodes (host.h) on a modelled network (tests/sim/scale/fabric.h) with virtual time. Each has one
 * rank, whose gradients become ready as in a recorded backward pass. A run is a function of its
 * configuration, unless computes take their real time on this machine.
 */
#ifndef ADTOPK_REGRET_CLUSTER_H
#define ADTOPK_REGRET_CLUSTER_H

#include "tests/sim/regret/host.h"
#include "tests/sim/scale/fabric.h"

#define CLUSTER_NODES 64

struct cluster_config {
    unsigned nodes, workers;
    struct fabric_links links;
    const struct costs *costs; /* see host_config */
    void (*computed)(void *context, const struct host_compute *compute);
    void *computed_context;
    const struct shapes *shapes; /* in the order in which gradients become ready */
    const uint64_t *at_ns;       /* when, from the step's beginning */
    const char *policy;
};

struct cluster;

/** Runs until the job is ready. NULL and an error if it never is. */
struct cluster *cluster_open(const struct cluster_config *config, struct error *err);
void cluster_close(struct cluster *cluster);

/** From the next step on links carry so many bytes per second. */
void cluster_set_bandwidth(struct cluster *cluster, double bandwidth);

/** A step of all nodes, begun at the same time with new gradients; how long it took until the last
 * of them had all updates. */
bool cluster_step(struct cluster *cluster, double *us, struct error *err);

/** The plan in force on node 0, until the next step. */
const char *cluster_plan(const struct cluster *cluster);

#endif
