/*
 * One job of some ranks of the cluster, which push one tensor and wait, step after step.
 */
#ifndef PERF_CLUSTER_TRIAL_H
#define PERF_CLUSTER_TRIAL_H

#include <stdint.h>

#include "tests/bench/perf/cluster_ranks.h"
#include "tests/bench/perf/machine.h"
#include "tests/bench/perf/series.h"

struct trial {
    char name[24];        /* is appended to that of the job of all ranks */
    unsigned rank, world; /* in this job */
    double density;       /* 1: the dense sparsifier */
    uint64_t count;       /* elements, f32 */
    uint64_t warmup;      /* steps without a sample */
    uint64_t steps;
};

/* What the leader of a node hears from its daemon about a trial; NAN: nothing. */
struct trial_told {
    struct told_job job;
    double busy; /* share of the time in which the network's thread ran */
};

/** Opens the job, commits its tensor and makes the steps of the warm-up. Errors: those of the
 * client library. To be closed with adtopk_close() in any case. */
enum adtopk_status trial_enter(const struct cluster *cluster, const struct trial *trial,
    adtopk_context **context, struct error *err);

/** Makes the other steps, between two barriers: see trial_run(). */
enum adtopk_status trial_steps(
    const struct trial *trial, adtopk_context *context, struct series *times);

/** Their median. MEMORY. */
enum adtopk_status trial_median(const struct series *times, double *median, struct error *err);

/* How much of the time this node's processors worked between two looks; NAN: unknown. */
struct trial_load {
    uint64_t at_ns;
    double network, loop; /* the daemon's threads */
    double idle;          /* all cores */
};

/** Begins: keeps what the daemon and the kernel have counted so far. */
struct trial_load trial_look(const struct cluster *cluster);

/** The shares of the time since `before`. */
struct trial_load trial_since(const struct cluster *cluster, const struct trial_load *before);

/**
 * Runs the job. `times` gets a sample in microseconds per step, from this rank's push to its
 * return: ranks push again as soon as they return, so they run in lockstep.
 * told: filled on this node's leader. Errors: those of the client library.
 */
enum adtopk_status trial_run(const struct cluster *cluster, const struct trial *trial,
    struct series *times, struct trial_told *told, struct error *err);

#endif
