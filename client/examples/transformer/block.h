/* One block of the transformer, with the normalisation before each half (Xiong et al. 2020):
 *
 *   stream += linear(attention(linear(norm(stream)))), width to 3 width to width
 *   stream += linear(GELU(linear(norm(stream)))), width to 4 width to width */
#ifndef TRANSFORMER_BLOCK_H
#define TRANSFORMER_BLOCK_H

#include <stddef.h>

#include "../common/layer.h"
#include "../common/norm.h"
#include "../common/tensor.h"
#include "attention.h"

/* The tensors of a block, in the order of the forward pass. */
enum {
    BLOCK_NORM1_SCALE,
    BLOCK_NORM1_BIAS,
    BLOCK_QKV,
    BLOCK_QKV_BIAS,
    BLOCK_MIX,
    BLOCK_MIX_BIAS,
    BLOCK_NORM2_SCALE,
    BLOCK_NORM2_BIAS,
    BLOCK_EXPAND,
    BLOCK_EXPAND_BIAS,
    BLOCK_CONTRACT,
    BLOCK_CONTRACT_BIAS,
    BLOCK_TENSORS
};

enum { BLOCK_NAME_SIZE = 32 };

/* What the backward pass of a block needs of its last forward pass. Everything is [rows][...], a
 * row for each position of each example; places by block_place(). */
struct block {
    struct attention_sizes sizes;
    size_t first; /* number of its first tensor */
    struct norm norm1;
    float *inputs1;
    float *qkv;
    float *probabilities; /* [examples][heads][context][context] */
    float *mixed;
    struct norm norm2;
    float *inputs2;
    float *hidden; /* before GELU */
    float *active; /* after it */
};

/* Memory that all blocks use in turn. */
struct block_room {
    float *narrow; /* [rows][width] */
    float *wide;   /* [rows][4 width] */
    float *attention;
};

/* Describes the tensors of block number `number`, counted from 0, and keeps their names in
 * `names`. */
void block_describe(size_t width, size_t number, char (*names)[BLOCK_NAME_SIZE],
    struct tensor tensors[BLOCK_TENSORS]);

/* As place_all(), for up to `examples` examples. sizes and first must be set. */
size_t block_place(struct block *block, size_t examples, float *memory);

/* Changes stream[examples * context][width]. `tensors` are those of the whole model. */
void block_forward(struct block *block, const struct tensor *tensors, size_t examples,
    const struct block_room *room, float *stream);

/* Turns the gradient of the stream after the block into the gradient of the stream before it. All
 * tensors are announced, the last one first. Returns 0 or the result of an announcement. */
int block_backward(const struct block *block, const struct backward *pass, size_t examples,
    const struct block_room *room, float *d_stream);

#endif
