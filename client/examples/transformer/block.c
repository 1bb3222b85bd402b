#include "block.h"

#include <stdio.h>

#include "../common/place.h"

void block_describe(size_t width, size_t number, char (*names)[BLOCK_NAME_SIZE],
    struct tensor tensors[BLOCK_TENSORS])
{
    const struct {
        const char *name;
        size_t outputs;
        size_t inputs; /* 0: one dimension */
    } parts[BLOCK_TENSORS] = {
        [BLOCK_NORM1_SCALE] = {"norm1.scale", width, 0},
        [BLOCK_NORM1_BIAS] = {"norm1.bias", width, 0},
        [BLOCK_QKV] = {"qkv.weight", 3 * width, width},
        [BLOCK_QKV_BIAS] = {"qkv.bias", 3 * width, 0},
        [BLOCK_MIX] = {"mix.weight", width, width},
        [BLOCK_MIX_BIAS] = {"mix.bias", width, 0},
        [BLOCK_NORM2_SCALE] = {"norm2.scale", width, 0},
        [BLOCK_NORM2_BIAS] = {"norm2.bias", width, 0},
        [BLOCK_EXPAND] = {"expand.weight", 4 * width, width},
        [BLOCK_EXPAND_BIAS] = {"expand.bias", 4 * width, 0},
        [BLOCK_CONTRACT] = {"contract.weight", width, 4 * width},
        [BLOCK_CONTRACT_BIAS] = {"contract.bias", width, 0},
    };
    for (size_t t = 0; t < BLOCK_TENSORS; t++) {
        snprintf(names[t], BLOCK_NAME_SIZE, "block%zu.%s", number + 1, parts[t].name);
        tensors[t] = (struct tensor){
            names[t], parts[t].inputs > 0 ? 2 : 1, {parts[t].outputs, parts[t].inputs}, NULL};
    }
}

size_t block_place(struct block *block, size_t examples, float *memory)
{
    const struct attention_sizes *sizes = &block->sizes;
    const size_t context = sizes->context, width = sizes->width, rows = examples * context;
    const struct place places[] = {
        {&block->norm1.normalised, rows * width},
        {&block->norm1.inverse, rows},
        {&block->inputs1, rows * width},
        {&block->qkv, rows * 3 * width},
        {&block->probabilities, rows * sizes->heads * context},
        {&block->mixed, rows * width},
        {&block->norm2.normalised, rows * width},
        {&block->norm2.inverse, rows},
        {&block->inputs2, rows * width},
        {&block->hidden, rows * 4 * width},
        {&block->active, rows * 4 * width},
    };
    const size_t first = block->first;
    block->norm1.scale = first + BLOCK_NORM1_SCALE;
    block->norm1.bias = first + BLOCK_NORM1_BIAS;
    block->norm2.scale = first + BLOCK_NORM2_SCALE;
    block->norm2.bias = first + BLOCK_NORM2_BIAS;
    block->norm1.width = block->norm2.width = width;
    return place_all(places, sizeof places / sizeof places[0], memory);
}

/* The first number of an example among `width` numbers of each position. */
static size_t block_start(const struct block *block, size_t example, size_t width)
{
    return example * block->sizes.context * width;
}

static float *block_probabilities(const struct block *block, size_t example)
{
    return block->probabilities +
           block_start(block, example, block->sizes.heads * block->sizes.context);
}

static void block_attend(struct block *block, const struct tensor *tensors, size_t examples,
    const struct block_room *room, float *stream)
{
    const size_t width = block->sizes.width, rows = examples * block->sizes.context;
    const struct tensor *own = tensors + block->first;
    norm_layer(&block->norm1, tensors, rows, stream, block->inputs1);
    layer_affine(&own[BLOCK_QKV], rows, block->inputs1, block->qkv);
    for (size_t n = 0; n < examples; n++) {
        attention_forward(&block->sizes, block->qkv + block_start(block, n, 3 * width),
            room->attention, block_probabilities(block, n),
            block->mixed + block_start(block, n, width));
    }
    layer_affine(&own[BLOCK_MIX], rows, block->mixed, room->narrow);
    layer_add(room->narrow, rows * width, stream);
}

void block_forward(struct block *block, const struct tensor *tensors, size_t examples,
    const struct block_room *room, float *stream)
{
    const size_t width = block->sizes.width, rows = examples * block->sizes.context;
    const struct tensor *own = tensors + block->first;
    block_attend(block, tensors, examples, room, stream);
    norm_layer(&block->norm2, tensors, rows, stream, block->inputs2);
    layer_affine(&own[BLOCK_EXPAND], rows, block->inputs2, block->hidden);
    layer_gelu(block->hidden, rows * 4 * width, block->active);
    layer_affine(&own[BLOCK_CONTRACT], rows, block->active, room->narrow);
    layer_add(room->narrow, rows * width, stream);
}

static int block_expand_backward(const struct block *block, const struct backward *pass,
    size_t rows, const struct block_room *room, float *d_stream)
{
    const size_t contract = block->first + BLOCK_CONTRACT, expand = block->first + BLOCK_EXPAND;
    int result = layer_affine_gradients(pass, contract, rows, block->active, d_stream);
    if (result != 0) {
        return result;
    }
    layer_affine_input(&pass->tensors[contract], rows, d_stream, room->wide);
    layer_gelu_backward(block->hidden, room->wide, rows * 4 * block->sizes.width);
    result = layer_affine_gradients(pass, expand, rows, block->inputs2, room->wide);
    if (result != 0) {
        return result;
    }
    layer_affine_input(&pass->tensors[expand], rows, room->wide, room->narrow);
    norm_layer_backward(&block->norm2, pass->tensors, rows, room->narrow, d_stream);
    return norm_gradients(&block->norm2, pass, rows, room->narrow);
}

static int block_attend_backward(const struct block *block, const struct backward *pass,
    size_t examples, const struct block_room *room, float *d_stream)
{
    const size_t mix = block->first + BLOCK_MIX, qkv = block->first + BLOCK_QKV;
    const size_t width = block->sizes.width, rows = examples * block->sizes.context;
    int result = layer_affine_gradients(pass, mix, rows, block->mixed, d_stream);
    if (result != 0) {
        return result;
    }
    layer_affine_input(&pass->tensors[mix], rows, d_stream, room->narrow);
    for (size_t n = 0; n < examples; n++) {
        const size_t start = block_start(block, n, width);
        attention_backward(&block->sizes, block->qkv + 3 * start, block_probabilities(block, n),
            room->narrow + start, room->attention, room->wide + 3 * start);
    }
    result = layer_affine_gradients(pass, qkv, rows, block->inputs1, room->wide);
    if (result != 0) {
        return result;
    }
    layer_affine_input(&pass->tensors[qkv], rows, room->wide, room->narrow);
    norm_layer_backward(&block->norm1, pass->tensors, rows, room->narrow, d_stream);
    return norm_gradients(&block->norm1, pass, rows, room->narrow);
}

int block_backward(const struct block *block, const struct backward *pass, size_t examples,
    const struct block_room *room, float *d_stream)
{
    const size_t rows = examples * block->sizes.context;
    const int result = block_expand_backward(block, pass, rows, room, d_stream);
    return result != 0 ? result : block_attend_backward(block, pass, examples, room, d_stream);
}
