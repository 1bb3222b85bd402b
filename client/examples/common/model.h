/* What every model offers. Its own header adds its sizes, its batch and how it is created. */
#ifndef EXAMPLE_MODEL_H
#define EXAMPLE_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "layer.h"
#include "tensor.h"

/* One thread uses it. All its numbers are f32. */
struct model;

/* Examples side by side. */
struct model_batch;

void model_destroy(struct model *model); /* NULL is allowed */

/* The trainable tensors, in the order of the forward pass; valid as long as the model. */
const struct tensor *model_tensors(const struct model *model, size_t *count);

/* Forward pass. The batch's memory must stay as it is until model_backward has returned. */
struct score model_forward(struct model *model, const struct model_batch *batch);

/* Backward pass of the last forward pass over training examples, each example's loss multiplied by
 * `scale`. An example's loss is the mean over its predictions.
 *
 * Writes (does not add) the gradient of tensor i to gradients[i], the last layer first. Calls
 * `ready` (unless NULL) as soon as a tensor's gradient is complete, so that its exchange overlaps
 * with the rest of the pass. From then on the pass neither reads nor writes this gradient. Returns
 * 0 or the result of `ready`. */
int model_backward(struct model *model, float scale, float *const *gradients, tensor_ready_fn ready,
    void *context);

#endif
