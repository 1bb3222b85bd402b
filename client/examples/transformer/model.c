#include "model.h"

#include <stdlib.h>
#include <string.h>

#include "../common/place.h"

/* The first tensors; those of the blocks and of the output follow. */
enum { EMBEDDING, POSITION, FIRST_BLOCK };

/* Arrays are [rows][...], a row for each position of each example. */
struct model {
    struct model_sizes sizes;
    struct model_batch batch; /* of the last forward pass */
    size_t count;             /* of tensors */
    struct tensor tensors[MODEL_MAX_TENSORS];
    char names[MODEL_MAX_LAYERS * BLOCK_TENSORS][BLOCK_NAME_SIZE];
    float *memory; /* all that follows */
    struct block blocks[MODEL_MAX_LAYERS];
    struct block_room room;
    struct norm norm;
    float *stream;  /* what the blocks change, then its gradient */
    float *outputs; /* of the last normalisation */
    float *symbols; /* probabilities of the symbols, then the gradient of their logits */
};

static size_t model_output(const struct model *model)
{
    return model->norm.bias + 1;
}

static void model_describe_all(struct model *model)
{
    const struct model_sizes *sizes = &model->sizes;
    const size_t width = sizes->width, last = FIRST_BLOCK + sizes->layers * BLOCK_TENSORS;
    struct tensor *tensors = model->tensors;

    tensors[EMBEDDING] = (struct tensor){"embedding.weight", 2, {sizes->symbols, width}, NULL};
    tensors[POSITION] = (struct tensor){"position.weight", 2, {sizes->context, width}, NULL};
    for (size_t l = 0; l < sizes->layers; l++) {
        struct block *block = &model->blocks[l];
        block->sizes = (struct attention_sizes){sizes->context, width, sizes->heads};
        block->first = FIRST_BLOCK + l * BLOCK_TENSORS;
        block_describe(
            width, l, model->names + l * BLOCK_TENSORS, tensors + FIRST_BLOCK + l * BLOCK_TENSORS);
    }
    model->norm = (struct norm){.scale = last, .bias = last + 1, .width = width};
    tensors[last] = (struct tensor){"norm.scale", 1, {width}, NULL};
    tensors[last + 1] = (struct tensor){"norm.bias", 1, {width}, NULL};
    tensors[last + 2] = (struct tensor){"output.weight", 2, {sizes->symbols, width}, NULL};
    tensors[last + 3] = (struct tensor){"output.bias", 1, {sizes->symbols}, NULL};
    model->count = last + 4;
}

/* As place_all(), for parameters and activations. */
static size_t model_place(struct model *model, size_t examples, float *memory)
{
    const struct model_sizes *sizes = &model->sizes;
    const size_t rows = examples * sizes->context, width = sizes->width;
    const struct place places[] = {
        {&model->room.narrow, rows * width},
        {&model->room.wide, rows * 4 * width},
        {&model->room.attention, attention_room(&model->blocks[0].sizes)},
        {&model->norm.normalised, rows * width},
        {&model->norm.inverse, rows},
        {&model->stream, rows * width},
        {&model->outputs, rows * width},
        {&model->symbols, rows * sizes->symbols},
    };
    size_t used = place_all(places, sizeof places / sizeof places[0], memory);
    for (size_t l = 0; l < sizes->layers; l++) {
        used += block_place(&model->blocks[l], examples, memory ? memory + used : NULL);
    }
    for (size_t t = 0; t < model->count; t++) {
        const struct place place = {&model->tensors[t].values, tensor_size(&model->tensors[t])};
        used += place_all(&place, 1, memory ? memory + used : NULL);
    }
    return used;
}

struct model *model_create(const struct model_sizes *sizes, size_t max_batch)
{
    struct model *model = calloc(1, sizeof *model);
    if (!model) {
        return NULL;
    }
    model->sizes = *sizes;
    model_describe_all(model);
    model->memory = calloc(model_place(model, max_batch, NULL), sizeof(float));
    if (!model->memory) {
        free(model);
        return NULL;
    }
    model_place(model, max_batch, model->memory);
    return model;
}

void model_destroy(struct model *model)
{
    if (!model) {
        return;
    }
    free(model->memory);
    free(model);
}

const struct tensor *model_tensors(const struct model *model, size_t *count)
{
    *count = model->count;
    return model->tensors;
}

static const uint8_t *model_symbols(const struct model *model, size_t example)
{
    return model->batch.symbols + example * (model->sizes.context + 1);
}

static void model_start_stream(struct model *model)
{
    const size_t width = model->sizes.width, context = model->sizes.context;
    for (size_t row = 0; row < model->batch.count * context; row++) {
        const size_t place = row % context, symbol = model_symbols(model, row / context)[place];
        float *to = model->stream + row * width;
        memcpy(to, model->tensors[EMBEDDING].values + symbol * width, width * sizeof(float));
        layer_add(model->tensors[POSITION].values + place * width, width, to);
    }
}

struct score model_forward(struct model *model, const struct model_batch *batch)
{
    const struct model_sizes *sizes = &model->sizes;
    const size_t rows = batch->count * sizes->context;
    struct score sum = {0};

    model->batch = *batch;
    model_start_stream(model);
    for (size_t l = 0; l < sizes->layers; l++) {
        block_forward(&model->blocks[l], model->tensors, batch->count, &model->room, model->stream);
    }
    norm_layer(&model->norm, model->tensors, rows, model->stream, model->outputs);
    layer_affine(&model->tensors[model_output(model)], rows, model->outputs, model->symbols);
    for (size_t n = 0; n < batch->count; n++) {
        const struct score score = layer_softmax(model_symbols(model, n) + 1, batch->scored[n],
            sizes->symbols, model->symbols + n * sizes->context * sizes->symbols);
        sum.loss += score.loss;
        sum.correct += score.correct;
        sum.predictions += score.predictions;
    }
    return sum;
}

/* Positions that are not scored pass no gradient. */
static void model_softmax_backward(struct model *model, float scale)
{
    const size_t context = model->sizes.context, symbols = model->sizes.symbols;
    for (size_t n = 0; n < model->batch.count; n++) {
        const size_t scored = model->batch.scored[n];
        float *p = model->symbols + n * context * symbols;
        layer_softmax_backward(
            model_symbols(model, n) + 1, scored, symbols, scale / (float)context, p, p);
        memset(p + scored * symbols, 0, (context - scored) * symbols * sizeof *p);
    }
}

static int model_output_backward(struct model *model, const struct backward *pass)
{
    const size_t rows = model->batch.count * model->sizes.context, output = model_output(model);
    const int result = layer_affine_gradients(pass, output, rows, model->outputs, model->symbols);
    if (result != 0) {
        return result;
    }
    layer_affine_input(&model->tensors[output], rows, model->symbols, model->room.narrow);
    memset(model->stream, 0, rows * model->sizes.width * sizeof(float));
    norm_layer_backward(&model->norm, model->tensors, rows, model->room.narrow, model->stream);
    return norm_gradients(&model->norm, pass, rows, model->room.narrow);
}

/* A symbol's embedding gets the sum of the gradients of all places where it stands, a position's
 * that of all examples. */
static int model_start_backward(const struct model *model, const struct backward *pass)
{
    const size_t width = model->sizes.width, context = model->sizes.context;
    const size_t rows = model->batch.count * context;
    float *d_embedding = pass->gradients[EMBEDDING], *d_position = pass->gradients[POSITION];

    memset(d_position, 0, context * width * sizeof(float));
    for (size_t row = 0; row < rows; row++) {
        layer_add(model->stream + row * width, width, d_position + row % context * width);
    }
    const int result = layer_ready(pass, POSITION);
    if (result != 0) {
        return result;
    }
    memset(d_embedding, 0, model->sizes.symbols * width * sizeof(float));
    for (size_t row = 0; row < rows; row++) {
        const size_t symbol = model_symbols(model, row / context)[row % context];
        layer_add(model->stream + row * width, width, d_embedding + symbol * width);
    }
    return layer_ready(pass, EMBEDDING);
}

int model_backward(
    struct model *model, float scale, float *const *gradients, tensor_ready_fn ready, void *context)
{
    const struct backward pass = {model->tensors, gradients, ready, context};

    model_softmax_backward(model, scale);
    int result = model_output_backward(model, &pass);
    for (size_t l = model->sizes.layers; result == 0 && l-- > 0;) {
        result = block_backward(
            &model->blocks[l], &pass, model->batch.count, &model->room, model->stream);
    }
    return result != 0 ? result : model_start_backward(model, &pass);
}
