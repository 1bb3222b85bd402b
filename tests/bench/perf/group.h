/*
 * Tensors that are measured together, one or all of a model: the pass over them against the r += g
 * loops.
 *
 * Happy path, one turn: make new gradients; run every loop, then the pass, each from the residual
 * of this turn, which is copied back before; then subtract the selected entries from the residual.
 * Only loops and pass are timed (and, separately, the subtraction). Loops and pass go over all
 * tensors before the next begins, so that each finds the caches as a training step would leave
 * them.
 */
#ifndef PERF_GROUP_H
#define PERF_GROUP_H

#include "tests/bench/perf/models.h"
#include "tests/bench/perf/perf.h"
#include "tests/bench/perf/tensor.h"

#define GROUP_MAX 256

struct gpu;

/* The samples of one tensor, or of all together. */
struct measured {
    struct series time, settle;
    struct floor_race race;
};

/* The caller fills in name, kind, shape, count and team. */
struct group {
    const char *name;
    struct tensor_kind kind;
    struct model_tensor shape[GROUP_MAX]; /* a name only where it is a model's */
    unsigned count;
    struct tensor tensor[GROUP_MAX];
    struct measured measured[GROUP_MAX];
    struct measured all;
    double selected;          /* entries of all samples */
    struct gpu *gpu;          /* the caller's: to be measured there; NULL: on this processor */
    struct team *team;        /* the caller's */
    struct journal *journals; /* one a thread */
};

/** Prepares all tensors. Returns false without memory; group_close() frees everything in any case.
 */
bool group_open(struct group *group);

void group_close(struct group *group);

/** Takes the samples that the options ask for, or fewer if stop_requested(). False without memory.
 */
bool group_measure(const struct perf *perf, struct group *group);

/** Elements of all tensors. */
uint64_t group_elements(const struct group *group);

/** Adds the row of one tensor, or of all: `own`, completed from the samples and the kind. */
enum adtopk_status group_row(struct perf *perf, const struct group *group,
    const struct measured *measured, const struct row *own, struct error *err);

#endif
