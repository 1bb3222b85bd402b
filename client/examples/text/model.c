#include "model.h"

#include <stdlib.h>
#include <string.h>

enum { EMBEDDING, FIRST_WEIGHT, OUTPUTS = MODEL_MAX_LAYERS + 1 };

static const char *const weight_names[MODEL_MAX_LAYERS] = {
    "hidden1.weight", "hidden2.weight", "hidden3.weight", "hidden4.weight"};
static const char *const bias_names[MODEL_MAX_LAYERS] = {
    "hidden1.bias", "hidden2.bias", "hidden3.bias", "hidden4.bias"};

/* outputs[0] are the embeddings, and outputs[l] those of hidden layer l after its ReLU.
 * outputs[layers + 1] are the probabilities. Each is [batch][widths of the same number]. */
struct model {
    struct model_sizes sizes;
    struct model_batch batch; /* of the last forward pass */
    size_t count;             /* of tensors */
    struct tensor tensors[MODEL_MAX_TENSORS];
    size_t widths[OUTPUTS + 1];
    float *memory; /* all that follows */
    float *outputs[OUTPUTS + 1];
    float *d_outputs[OUTPUTS + 1]; /* gradients of the loss with respect to them */
};

static void model_describe(struct model *model)
{
    const struct model_sizes *sizes = &model->sizes;
    model->widths[0] = sizes->context * sizes->embedding;
    model->widths[sizes->layers + 1] = sizes->symbols;
    model->tensors[EMBEDDING] =
        (struct tensor){"embedding.weight", 2, {sizes->symbols, sizes->embedding}, NULL};
    model->count = FIRST_WEIGHT;
    for (size_t l = 0; l <= sizes->layers; l++) {
        const int last = l == sizes->layers;
        if (!last) {
            model->widths[l + 1] = sizes->hidden;
        }
        const size_t inputs = model->widths[l], outputs = model->widths[l + 1];
        model->tensors[model->count++] =
            (struct tensor){last ? "output.weight" : weight_names[l], 2, {outputs, inputs}, NULL};
        model->tensors[model->count++] =
            (struct tensor){last ? "output.bias" : bias_names[l], 1, {outputs}, NULL};
    }
}

static int text_model_allocate(struct model *model, size_t batch)
{
    const size_t ends = model->sizes.layers + 2;
    size_t total = 0;
    for (size_t i = 0; i < ends; i++) {
        total += 2 * batch * model->widths[i];
    }
    for (size_t t = 0; t < model->count; t++) {
        total += tensor_size(&model->tensors[t]);
    }
    model->memory = calloc(total, sizeof(float));
    if (!model->memory) {
        return -1;
    }

    float *next = model->memory;
    for (size_t i = 0; i < ends; i++) {
        model->outputs[i] = next;
        model->d_outputs[i] = next + batch * model->widths[i];
        next += 2 * batch * model->widths[i];
    }
    for (size_t t = 0; t < model->count; t++) {
        model->tensors[t].values = next;
        next += tensor_size(&model->tensors[t]);
    }
    return 0;
}

struct model *model_create(const struct model_sizes *sizes, size_t max_batch)
{
    struct model *model = calloc(1, sizeof *model);
    if (!model) {
        return NULL;
    }
    model->sizes = *sizes;
    model_describe(model);
    if (text_model_allocate(model, max_batch) != 0) {
        free(model);
        return NULL;
    }
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

static void model_embed(struct model *model)
{
    const size_t width = model->sizes.embedding;
    const size_t places = model->batch.count * model->sizes.context;
    for (size_t place = 0; place < places; place++) {
        memcpy(model->outputs[0] + place * width,
            model->tensors[EMBEDDING].values + model->batch.contexts[place] * width,
            width * sizeof(float));
    }
}

struct score model_forward(struct model *model, const struct model_batch *batch)
{
    const size_t layers = model->sizes.layers;
    model->batch = *batch;
    model_embed(model);
    for (size_t l = 0; l <= layers; l++) {
        layer_affine(&model->tensors[FIRST_WEIGHT + 2 * l], batch->count, model->outputs[l],
            model->outputs[l + 1]);
        if (l < layers) {
            layer_relu(model->outputs[l + 1], batch->count * model->widths[l + 1]);
        }
    }
    return layer_softmax(
        batch->labels, batch->count, model->sizes.symbols, model->outputs[layers + 1]);
}

/* A symbol's embedding gets the sum of the gradients of all places where it stands. */
static void model_embed_backward(const struct model *model, float *gradient)
{
    const size_t width = model->sizes.embedding;
    const size_t places = model->batch.count * model->sizes.context;
    memset(gradient, 0, model->sizes.symbols * width * sizeof(float));
    for (size_t place = 0; place < places; place++) {
        const float *from = model->d_outputs[0] + place * width;
        float *to = gradient + model->batch.contexts[place] * width;
        for (size_t i = 0; i < width; i++) {
            to[i] += from[i];
        }
    }
}

int model_backward(
    struct model *model, float scale, float *const *gradients, tensor_ready_fn ready, void *context)
{
    const struct backward pass = {model->tensors, gradients, ready, context};
    const size_t layers = model->sizes.layers, count = model->batch.count;

    layer_softmax_backward(model->batch.labels, count, model->sizes.symbols, scale,
        model->outputs[layers + 1], model->d_outputs[layers + 1]);
    for (size_t l = layers + 1; l-- > 0;) {
        const size_t weight = FIRST_WEIGHT + 2 * l;
        const float *d_output = model->d_outputs[l + 1];
        const int result =
            layer_affine_gradients(&pass, weight, count, model->outputs[l], d_output);
        if (result != 0) {
            return result;
        }
        layer_affine_input(&model->tensors[weight], count, d_output, model->d_outputs[l]);
        if (l > 0) {
            layer_relu_backward(model->outputs[l], model->d_outputs[l], count * model->widths[l]);
        }
    }
    model_embed_backward(model, gradients[EMBEDDING]);
    return layer_ready(&pass, EMBEDDING);
}
