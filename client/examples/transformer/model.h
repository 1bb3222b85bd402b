/* A decoder-only transformer of characters, with its own forward and backward pass:
 *
 *   `context` symbols -> embedding of each + embedding of its position -> blocks (block.h)
 *             -> layer normalisation -> linear -> softmax cross entropy, at every position */
#ifndef TRANSFORMER_MODEL_H
#define TRANSFORMER_MODEL_H

#include "../common/model.h"
#include "block.h"

enum { MODEL_MAX_LAYERS = 16, MODEL_MAX_TENSORS = 6 + MODEL_MAX_LAYERS * BLOCK_TENSORS };

/* All at least 1. */
struct model_sizes {
    size_t symbols; /* at most 256 */
    size_t context;
    size_t width;
    size_t layers; /* at most MODEL_MAX_LAYERS */
    size_t heads;  /* divides width */
};

/* Examples side by side: symbols[count][context + 1]. From symbols 0 to i of an example the model
 * predicts symbol i + 1, for each i below scored[example], which is 1 to context. */
struct model_batch {
    const uint8_t *symbols;
    const size_t *scored;
    size_t count;
};

/* Creates a model for batches of up to max_batch examples, with all parameters zero. NULL when
 * there is no memory. Its tensors are the embeddings of symbols and positions, those of each block,
 * the last normalisation's, and weight and bias of the output. */
struct model *model_create(const struct model_sizes *sizes, size_t max_batch);

#endif
