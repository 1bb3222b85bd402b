/* Local steps (DiLoCo, Douillard et al. 2023): a rank takes several optimiser steps alone, then
 * pushes its *drift*: where its parameters were when it began, less where they are. The mean of the
 * drifts moves the parameters that all ranks share, by momentum SGD of its own.
 *
 * With a rate of 1 and without momentum the shared parameters become the mean of the ranks'. */
#ifndef EXAMPLE_DRIFT_H
#define EXAMPLE_DRIFT_H

#include <stddef.h>
#include <stdint.h>

#include "optimiser.h"
#include "tensor.h"

struct drift_options {
    uint64_t steps; /* local ones between two exchanges; 0: gradients are exchanged, no drifts */
    float rate;     /* of the shared parameters */
    float momentum; /* of Nesterov's kind, 0 <= momentum < 1 */
};

struct drift;

/* For tensors whose values are the rank's own parameters, and which outlive it. NULL without
 * memory. */
struct drift *drift_create(
    const struct drift_options *options, const struct tensor *tensors, size_t count);
void drift_destroy(struct drift *drift); /* NULL is allowed */

/* Memory for the gradients of the rank's own steps. */
float *const *drift_gradients(const struct drift *drift);

/* Notes where the parameters are, in the memory of what will be pushed. */
void drift_begin(const struct drift *drift, float *const *pushed);

/* What to push of a tensor: pushed = where it was - where it is. */
void drift_take(const struct drift *drift, size_t tensor, float *pushed);

/* Moves the shared parameters of a tensor by the mean drift d: velocity = momentum velocity + d;
 * parameter -= rate (d + momentum velocity). Equal drifts give equal bits. */
void drift_apply(struct drift *drift, size_t tensor, float *parameters, const float *mean);

/* What becomes of a drift in the long run. */
struct optimiser_reach drift_reach(const struct drift *drift);

#endif
