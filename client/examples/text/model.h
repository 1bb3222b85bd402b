/* A small language model of characters, with its own forward and backward pass (after Bengio et al.
 * 2003):
 *
 *   the last `context` symbols -> embedding of each, side by side
 *             -> linear to `hidden` -> ReLU, `layers` times -> linear -> softmax cross entropy */
#ifndef TEXT_MODEL_H
#define TEXT_MODEL_H

#include "../common/model.h"

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

/* Creates a model for batches of up to max_batch examples, with all parameters zero. NULL when
 * there is no memory. Its tensors are the embedding [symbols, embedding], then the weight and the
 * bias of each layer. */
struct model *model_create(const struct model_sizes *sizes, size_t max_batch);

#endif
