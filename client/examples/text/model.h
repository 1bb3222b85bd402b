/* A small language model of characters, with its own forward and backward pass (after Bengio et al.
 * 2003):
 *
 *   the last `context` symbols -> embedding of each, side by side
 *             -> linear to `hidden` -> ReLU, `layers` times -> linear -> softmax cross entropy
 *
 * Everything is f32. A model belongs to one thread at a time. */
#ifndef TEXT_MODEL_H
#define TEXT_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "../common/layer.h"
#include "../common/tensor.h"

enum { MODEL_MAX_LAYERS = 4, MODEL_MAX_TENSORS = 1 + 2 * (MODEL_MAX_LAYERS + 1) };

/* All at least 1. */
struct model_sizes {
    size_t symbols; /* at most 256 */
    size_t context;
    size_t embedding;
    size_t hidden;
    size_t layers; /* at most MODEL_MAX_LAYERS */
};

/* Examples side by side: contexts[count][context] and the symbols that follow. */
struct model_batch {
    const uint8_t *contexts;
    const uint8_t *labels;
    size_t count;
};

struct model;

/* Creates a model for batches of up to max_batch examples, with all parameters zero. NULL when
 * there is no memory. */
struct model *model_create(const struct model_sizes *sizes, size_t max_batch);
void model_destroy(struct model *model);

/* Its trainable tensors, in the order of the forward pass: the embedding [symbols, embedding], then
 * the weight and the bias of each layer. */
const struct tensor *model_tensors(const struct model *model, size_t *count);

/* Forward pass. The batch's memory must stay as it is until model_backward has returned; its count
 * is at most max_batch. */
struct score model_forward(struct model *model, const struct model_batch *batch);

/* Backward pass of the last forward pass, as task_backward() (../common/task.h). */
int model_backward(struct model *model, float scale, float *const *gradients, tensor_ready_fn ready,
    void *context);

#endif
