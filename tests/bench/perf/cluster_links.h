/*
 * The links between the nodes of a run of `cluster`: each pair of nodes by itself.
 */
#ifndef PERF_CLUSTER_LINKS_H
#define PERF_CLUSTER_LINKS_H

#include "tests/bench/perf/cluster_judge.h"
#include "tests/bench/perf/cluster_ranks.h"
#include "tests/bench/perf/perf.h"

#define CLUSTER_LISTED                                                                             \
    32 /* ranks or links of which each has a line; of more only the slow ones                      \
        */

/**
 * All ranks call it. The first ranks of two nodes make steps with 4 KB, and broadcast in both
 * directions; pairs without a node in common do so at the same time. `slowest`: gets the link that
 * carried the fewest bytes per second, if there is one. Errors: those of the client library,
 * MEMORY.
 */
enum adtopk_status cluster_links(
    struct perf *perf, struct cluster *cluster, struct judge_link *slowest, struct error *err);

#endif
