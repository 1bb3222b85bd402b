/* A model and its data. Each example implements these functions; the training loop (train.c) knows
 * nothing else of it. */
#ifndef EXAMPLE_TASK_H
#define EXAMPLE_TASK_H

#include <stddef.h>
#include <stdint.h>

#include "model.h"
#include "options.h"

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

/* The model that task_build() has made. */
struct model *task_model(const struct task *task);

/* What a model gathers from the examples of its own rank, such as the running averages of batch
 * normalisation, and needs for tests only. When training ends, the loop replaces it by its mean
 * over the ranks. *count is 0 for a model without. */
float *task_statistics(struct task *task, size_t *count);

/* Number of examples, at least 1. */
size_t task_count(const struct task *task, enum task_part part);

/* Forward pass over `count` examples, given by their numbers. */
struct score task_forward(
    struct task *task, enum task_part part, const size_t *examples, size_t count);

#endif
