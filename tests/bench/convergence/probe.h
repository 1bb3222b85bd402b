/* Watches a training run from inside rank 0's trainer: how far the sent values are from the ideal
 * ones. It changes nothing of the training.
 *
 * For every rank p, g_p is its gradient and u the update, the mean of the sent values. The mean
 * residual r over the ranks follows from r += mean g_p - u, whatever the sparsifier is: pushed
 * values that were not applied are still to come. Each rank keeps its own part of the sum, sum g_p
 * - u, and the parts are added up over the ranks when a step is measured.
 *
 * xi = ||C(mean a) - mean C(a)|| / ||mean g||, with a the gradient plus residual of each worker.
 * The second term is u. For the first one, rank 0 is also the only rank of a job under another,
 * idle daemon. At every measured step it pushes mean a less that job's own residual, so that
 * selection there sees mean a. So C is the daemon's, for any sparsifier, at the same turn. The job
 * has the same name and run id, and so the same random numbers.
 *
 * A worker is the unit that selects: with the policy's scope "node" a node, whose ranks' gradients
 * are added up before. */
#ifndef CONVERGENCE_PROBE_H
#define CONVERGENCE_PROBE_H

#include <stdint.h>

#include "common/train.h"

struct probe;

/* Writes to `path` a JSON line a measured step, every `every` steps from the first one on.
 * ranks_per_worker: 1 with scope "rank". address: of the other daemon. NULL on an error, which was
 * printed to stderr. */
struct probe *probe_create(
    const char *path, uint64_t every, int ranks_per_worker, const char *address);

/* A train_observer's step, with self a struct probe. */
int probe_step(void *self, const struct options *options, struct exchange *exchange, uint64_t step);

/* -1 if the file could not be written (printed to stderr). NULL is allowed. */
int probe_destroy(struct probe *probe);

#endif
