/* A model and its data. Each example implements these functions; the training loop (train.c) knows
 * nothing else of it. */
#ifndef EXAMPLE_TASK_H
#define EXAMPLE_TASK_H

#include <stddef.h>
#include <stdint.h>

#include "layer.h"
#include "options.h"
#include "tensor.h"

enum { TASK_ERROR_SIZE = 256 };

/* Two sets of examples, each numbered from 0. */
enum task_part { TASK_TRAIN, TASK_TEST };

/* A model with its data. One thread uses it. */
struct task;

/* Names, texts and defaults of the command line. */
extern const struct options_task task_options;

/* Reads the data. NULL on an error, with a sentence in `error`. */
struct task *task_create(const struct options *options, char error[TASK_ERROR_SIZE]);
void task_destroy(struct task *task); /* NULL is allowed */

/* Makes the model, with all parameters zero, for forward passes over up to options->batch examples.
 * Once, before all that follows but task_count(). -1 if there is no memory. */
int task_build(struct task *task, const struct options *options);

/* The trainable tensors, in the order of the forward pass; valid as long as the task. */
const struct tensor *task_tensors(const struct task *task, size_t *count);

/* What a model gathers from the examples of its own rank, such as the running averages of batch
 * normalisation, and needs for tests only. When training ends, the loop replaces it by its mean
 * over the ranks. *count is 0 for a model without. */
float *task_statistics(struct task *task, size_t *count);

/* Number of examples, at least 1. */
size_t task_count(const struct task *task, enum task_part part);

/* Forward pass over `count` examples, given by their numbers. */
struct score task_forward(
    struct task *task, enum task_part part, const size_t *examples, size_t count);

/* Backward pass of the last forward pass over training examples, each example's loss multiplied by
 * `scale`. An example's loss is the mean over its predictions.
 *
 * Writes (does not add) the gradient of tensor i to gradients[i], the last layer first. Calls
 * `ready` (unless NULL) as soon as a tensor's gradient is complete, so that its exchange overlaps
 * with the rest of the pass. From then on the pass neither reads nor writes this gradient. Returns
 * 0 or the result of `ready`. */
int task_backward(
    struct task *task, float scale, float *const *gradients, tensor_ready_fn ready, void *context);

#endif
