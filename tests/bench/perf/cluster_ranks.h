/*
 * The ranks of a run of `cluster`: processes that a launcher started on many machines. They belong
 * to one job for the whole run, in which nothing is trained. By its sums they learn of each other.
 */
#ifndef PERF_CLUSTER_RANKS_H
#define PERF_CLUSTER_RANKS_H

#include <adtopk/adtopk.h>
#include <stdbool.h>

#include "proto/error.h"
#include "tests/bench/perf/cluster_told.h"

#define CLUSTER_FIGURES 16 /* that one rank tells the others at a time */

struct cluster {
    adtopk_context *context; /* of the job of all ranks */
    unsigned rank, world;
    unsigned nodes;
    unsigned *node;            /* of each rank: the number of its node here, from 0 */
    unsigned *lead;            /* of each node: its first rank */
    bool leads;                /* this rank is its node's first */
    bool asks;                 /* the same, and the daemon answers on its control socket */
    struct error silence;      /* why it does not */
    struct told_daemon daemon; /* of this rank's node; all NAN unless it asks */
    float *figure;             /* what all ranks told last */
    bool stopped;              /* some rank was asked to stop, as of the last gathering */
};

/** Joins as the environment says. Errors: those of the client library, MEMORY. Free with
 * cluster_close() in any case. */
enum adtopk_status cluster_open(struct cluster *cluster, struct error *err);

void cluster_close(struct cluster *cluster);

/** All ranks call it, each with its own figures: at least 0, or NAN. It waits for the slowest. */
enum adtopk_status cluster_gather(
    struct cluster *cluster, const double *figures, unsigned count, struct error *err);

/** What `rank` told in the last gathering, as a float; NAN: nothing. */
double cluster_figure(const struct cluster *cluster, unsigned rank, unsigned figure);

/** Fills `err` from a context of this rank. Returns status. */
enum adtopk_status cluster_failed(const struct cluster *cluster, enum adtopk_status status,
    const adtopk_context *context, struct error *err);

#endif
