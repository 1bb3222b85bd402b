#include "model.h"

#include <stdlib.h>
#include <string.h>

#include "../common/norm.h"
#include "../common/place.h"

/* Activations lie as [example][pixel][channel], so every layer is a matrix product whose inner loop
 * runs over contiguous numbers. A convolution is a product with the patches around each pixel; a
 * patch is ordered [channel][ky][kx] like the weights. */
enum {
    SIDE = 8,        /* of the image and the first convolution */
    HALF = SIDE / 2, /* after the pool */
    TAPS = 9,        /* of a 3x3 kernel */
    CHANNELS1 = 32,
    CHANNELS2 = 64,
    FEATURES = HALF * HALF * CHANNELS2,
    HIDDEN = 128,
    PATCH1 = TAPS,
    PATCH2 = CHANNELS1 * TAPS
};

enum {
    CONV1,
    CONV1_BIAS,
    CONV2,
    CONV2_BIAS,
    LINEAR1,
    LINEAR1_BIAS,
    LINEAR2,
    LINEAR2_BIAS,
    TENSORS, /* without batch normalisation */
    CONV1_SCALE = TENSORS,
    CONV2_SCALE
};

static const struct tensor shapes[MODEL_MAX_TENSORS] = {
    [CONV1] = {"conv1.weight", 4, {CHANNELS1, 1, 3, 3}, NULL},
    [CONV1_BIAS] = {"conv1.bias", 1, {CHANNELS1}, NULL},
    [CONV2] = {"conv2.weight", 4, {CHANNELS2, CHANNELS1, 3, 3}, NULL},
    [CONV2_BIAS] = {"conv2.bias", 1, {CHANNELS2}, NULL},
    [LINEAR1] = {"linear1.weight", 2, {HIDDEN, FEATURES}, NULL},
    [LINEAR1_BIAS] = {"linear1.bias", 1, {HIDDEN}, NULL},
    [LINEAR2] = {"linear2.weight", 2, {MODEL_CLASSES, HIDDEN}, NULL},
    [LINEAR2_BIAS] = {"linear2.bias", 1, {MODEL_CLASSES}, NULL},
    [CONV1_SCALE] = {"conv1.scale", 1, {CHANNELS1}, NULL},
    [CONV2_SCALE] = {"conv2.scale", 1, {CHANNELS2}, NULL},
};

/* Batch normalisation after a convolution. */
struct model_norm {
    struct norm norm;
    struct norm_averages averages;
};

struct model {
    struct model_batch batch; /* of the last forward pass */
    int batch_norm;
    struct model_norm norm1;
    struct model_norm norm2;
    size_t count;  /* of tensors */
    float *memory; /* all that follows */
    float *statistics;
    struct tensor tensors[MODEL_MAX_TENSORS];
    /* Outputs after their ReLU, and the patches that the convolutions saw. */
    float *patches1; /* [batch][8][8][PATCH1] */
    float *conv1;    /* [batch][8][8][CHANNELS1] */
    float *pooled;   /* [batch][4][4][CHANNELS1] */
    float *patches2; /* [batch][4][4][PATCH2] */
    float *conv2;    /* [batch][4][4][CHANNELS2] = [batch][FEATURES] */
    float *hidden;   /* [batch][HIDDEN] */
    float *classes;  /* [batch][MODEL_CLASSES], probabilities */
    /* Gradients of the loss with respect to them. */
    float *d_conv1;
    float *d_pooled;
    float *d_patches2;
    float *d_conv2;
    float *d_hidden;
    float *d_classes;
};

/* Means and variances of both normalisations. */
enum { STATISTICS = 2 * (CHANNELS1 + CHANNELS2) };

/* As place_all(), for parameters and activations. */
static size_t digits_model_place(struct model *model, size_t batch, float *memory)
{
    const size_t pixels1 = batch * SIDE * SIDE, pixels2 = batch * HALF * HALF;
    const size_t norms = model->batch_norm ? 1 : 0;
    const struct place places[] = {
        {&model->patches1, pixels1 * PATCH1},
        {&model->conv1, pixels1 * CHANNELS1},
        {&model->pooled, pixels2 * CHANNELS1},
        {&model->patches2, pixels2 * PATCH2},
        {&model->conv2, batch * FEATURES},
        {&model->hidden, batch * HIDDEN},
        {&model->classes, batch * MODEL_CLASSES},
        {&model->d_conv1, pixels1 * CHANNELS1},
        {&model->d_pooled, pixels2 * CHANNELS1},
        {&model->d_patches2, pixels2 * PATCH2},
        {&model->d_conv2, batch * FEATURES},
        {&model->d_hidden, batch * HIDDEN},
        {&model->d_classes, batch * MODEL_CLASSES},
        {&model->norm1.norm.normalised, norms * pixels1 * CHANNELS1},
        {&model->norm1.norm.inverse, norms * CHANNELS1},
        {&model->norm2.norm.normalised, norms * pixels2 * CHANNELS2},
        {&model->norm2.norm.inverse, norms * CHANNELS2},
        {&model->statistics, norms * STATISTICS},
    };
    size_t used = place_all(places, sizeof places / sizeof places[0], memory);
    for (size_t t = 0; t < model->count; t++) {
        const struct place place = {&model->tensors[t].values, tensor_size(&model->tensors[t])};
        used += place_all(&place, 1, memory ? memory + used : NULL);
    }
    return used;
}

static void model_place_statistics(struct model *model)
{
    const struct place places[] = {
        {&model->norm1.averages.mean, CHANNELS1},
        {&model->norm1.averages.variance, CHANNELS1},
        {&model->norm2.averages.mean, CHANNELS2},
        {&model->norm2.averages.variance, CHANNELS2},
    };
    place_all(places, sizeof places / sizeof places[0], model->statistics);
}

struct model *model_create(size_t max_batch, int batch_norm)
{
    if (max_batch == 0 || max_batch > SIZE_MAX / (1u << 20)) {
        return NULL;
    }
    struct model *model = calloc(1, sizeof *model);
    if (!model) {
        return NULL;
    }
    memcpy(model->tensors, shapes, sizeof shapes);
    model->batch_norm = batch_norm;
    model->count = batch_norm ? MODEL_MAX_TENSORS : TENSORS;
    model->norm1.norm = (struct norm){.scale = CONV1_SCALE, .bias = CONV1_BIAS, .width = CHANNELS1};
    model->norm2.norm = (struct norm){.scale = CONV2_SCALE, .bias = CONV2_BIAS, .width = CHANNELS2};
    model->memory = calloc(digits_model_place(model, max_batch, NULL), sizeof(float));
    if (!model->memory) {
        free(model);
        return NULL;
    }
    digits_model_place(model, max_batch, model->memory);
    if (batch_norm) {
        model_place_statistics(model);
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

float *model_statistics(struct model *model, size_t *count)
{
    *count = model->batch_norm ? STATISTICS : 0;
    return model->statistics;
}

/* The part of a 3x3 kernel that lies in the image at one coordinate: taps begin..end-1, where tap k
 * reads coordinate + k - 1. */
struct taps {
    size_t begin;
    size_t end;
};

static struct taps model_taps(size_t coordinate, size_t side)
{
    return (struct taps){coordinate == 0 ? 1 : 0, coordinate + 1 == side ? 2 : 3};
}

/* patches[pixel][channel][tap] = the input under that tap. Taps outside the image stay zero, as the
 * memory was allocated. */
static void model_gather_patches(
    size_t count, size_t side, size_t channels, const float *input, float *patches)
{
    for (size_t pixel = 0; pixel < count * side * side; pixel++) {
        const size_t y = pixel / side % side, x = pixel % side;
        const struct taps rows = model_taps(y, side), cols = model_taps(x, side);
        float *patch = patches + pixel * channels * TAPS;
        for (size_t ky = rows.begin; ky < rows.end; ky++) {
            for (size_t kx = cols.begin; kx < cols.end; kx++) {
                const float *from = input + (pixel + ky * side + kx - side - 1) * channels;
                float *to = patch + ky * 3 + kx;
                for (size_t c = 0; c < channels; c++) {
                    to[c * TAPS] = from[c];
                }
            }
        }
    }
}

/* The transpose of the above: adds every patch entry to the input that it came from. */
static void model_scatter_patches(
    size_t count, size_t side, size_t channels, const float *patches, float *input)
{
    memset(input, 0, count * side * side * channels * sizeof(float));
    for (size_t pixel = 0; pixel < count * side * side; pixel++) {
        const size_t y = pixel / side % side, x = pixel % side;
        const struct taps rows = model_taps(y, side), cols = model_taps(x, side);
        const float *patch = patches + pixel * channels * TAPS;
        for (size_t ky = rows.begin; ky < rows.end; ky++) {
            for (size_t kx = cols.begin; kx < cols.end; kx++) {
                float *to = input + (pixel + ky * side + kx - side - 1) * channels;
                const float *from = patch + ky * 3 + kx;
                for (size_t c = 0; c < channels; c++) {
                    to[c] += from[c * TAPS];
                }
            }
        }
    }
}

/* The first of the four conv1 pixels under one pooled pixel. */
static size_t model_pool_corner(size_t pooled_pixel)
{
    const size_t x = pooled_pixel % HALF, y = pooled_pixel / HALF % HALF;
    return pooled_pixel / (HALF * HALF) * (SIDE * SIDE) + 2 * y * SIDE + 2 * x;
}

static const size_t pool_offsets[4] = {0, 1, SIDE, SIDE + 1};

static void model_pool(size_t count, const float *input, float *output)
{
    for (size_t pixel = 0; pixel < count * HALF * HALF; pixel++) {
        const float *corner = input + model_pool_corner(pixel) * CHANNELS1;
        float *out = output + pixel * CHANNELS1;
        memcpy(out, corner, CHANNELS1 * sizeof(float));
        for (size_t k = 1; k < 4; k++) {
            const float *in = corner + pool_offsets[k] * CHANNELS1;
            for (size_t c = 0; c < CHANNELS1; c++) {
                out[c] = in[c] > out[c] ? in[c] : out[c];
            }
        }
    }
}

/* The gradient of a pooled value goes to the first of the four that has this value, or to the last
 * one (NaN equals nothing). */
static void model_pool_backward(
    size_t count, const float *input, const float *output, const float *d_output, float *d_input)
{
    for (size_t pixel = 0; pixel < count * HALF * HALF; pixel++) {
        const size_t corner = model_pool_corner(pixel) * CHANNELS1;
        for (size_t c = 0; c < CHANNELS1; c++) {
            float left = d_output[pixel * CHANNELS1 + c];
            for (size_t k = 0; k < 4; k++) {
                const size_t at = corner + pool_offsets[k] * CHANNELS1 + c;
                const int winner = k == 3 || input[at] == output[pixel * CHANNELS1 + c];
                d_input[at] = winner ? left : 0;
                left = winner ? 0 : left;
            }
        }
    }
}

/* An affine layer and, unless it is the last one, its ReLU. */
static void model_affine(
    struct model *model, size_t weight, size_t rows, const float *input, float *output)
{
    const struct tensor *tensors = &model->tensors[weight];
    layer_affine(tensors, rows, input, output);
    if (weight != LINEAR2) {
        layer_relu(output, rows * tensors->shape[0]);
    }
}

/* A convolution of the patches, and its ReLU. */
static void model_convolve(struct model *model, struct model_norm *norm, size_t weight, size_t rows,
    const float *patches, float *output)
{
    const struct tensor *tensors = model->tensors;
    if (!model->batch_norm) {
        model_affine(model, weight, rows, patches, output);
        return;
    }
    layer_product(&tensors[weight], rows, patches, output);
    if (model->batch.training) {
        norm_batch(&norm->norm, tensors, rows, &norm->averages, output);
    } else {
        norm_batch_by_averages(&norm->norm, tensors, rows, &norm->averages, output);
    }
    layer_relu(output, rows * norm->norm.width);
}

struct score model_forward(struct model *model, const struct model_batch *batch)
{
    const size_t count = batch->count;
    model->batch = *batch;

    model_gather_patches(count, SIDE, 1, batch->images, model->patches1);
    model_convolve(model, &model->norm1, CONV1, count * SIDE * SIDE, model->patches1, model->conv1);
    model_pool(count, model->conv1, model->pooled);

    model_gather_patches(count, HALF, CHANNELS1, model->pooled, model->patches2);
    model_convolve(model, &model->norm2, CONV2, count * HALF * HALF, model->patches2, model->conv2);
    model_affine(model, LINEAR1, count, model->conv2, model->hidden);
    model_affine(model, LINEAR2, count, model->hidden, model->classes);
    return layer_softmax(batch->labels, count, MODEL_CLASSES, model->classes);
}

static int model_backward_linears(struct model *m, const struct backward *pass)
{
    const size_t count = m->batch.count;
    int result = layer_affine_gradients(pass, LINEAR2, count, m->hidden, m->d_classes);
    if (result != 0) {
        return result;
    }
    layer_affine_input(&m->tensors[LINEAR2], count, m->d_classes, m->d_hidden);
    layer_relu_backward(m->hidden, m->d_hidden, count * HIDDEN);

    result = layer_affine_gradients(pass, LINEAR1, count, m->conv2, m->d_hidden);
    if (result != 0) {
        return result;
    }
    layer_affine_input(&m->tensors[LINEAR1], count, m->d_hidden, m->d_conv2);
    layer_relu_backward(m->conv2, m->d_conv2, count * FEATURES);
    return 0;
}

/* The gradients of a convolution's tensors. Turns the gradient of what ReLU took, `gradient`, into
 * that of the product with the weight. */
static int model_convolve_gradients(const struct model *model, const struct model_norm *norm,
    const struct backward *pass, size_t weight, size_t rows, const float *patches, float *gradient)
{
    if (!model->batch_norm) {
        return layer_affine_gradients(pass, weight, rows, patches, gradient);
    }
    const int result = norm_gradients(&norm->norm, pass, rows, gradient);
    if (result != 0) {
        return result;
    }
    norm_batch_backward(&norm->norm, model->tensors, rows, gradient);
    return layer_weight_gradient(pass, weight, rows, patches, gradient);
}

static int model_backward_convolutions(struct model *m, const struct backward *pass)
{
    const size_t count = m->batch.count;
    const size_t pixels1 = count * SIDE * SIDE, pixels2 = count * HALF * HALF;
    int result =
        model_convolve_gradients(m, &m->norm2, pass, CONV2, pixels2, m->patches2, m->d_conv2);
    if (result != 0) {
        return result;
    }
    layer_affine_input(&m->tensors[CONV2], pixels2, m->d_conv2, m->d_patches2);
    model_scatter_patches(count, HALF, CHANNELS1, m->d_patches2, m->d_pooled);

    model_pool_backward(count, m->conv1, m->pooled, m->d_pooled, m->d_conv1);
    layer_relu_backward(m->conv1, m->d_conv1, pixels1 * CHANNELS1);
    return model_convolve_gradients(m, &m->norm1, pass, CONV1, pixels1, m->patches1, m->d_conv1);
}

int model_backward(
    struct model *model, float scale, float *const *gradients, tensor_ready_fn ready, void *context)
{
    const struct backward pass = {model->tensors, gradients, ready, context};

    layer_softmax_backward(model->batch.labels, model->batch.count, MODEL_CLASSES, scale,
        model->classes, model->d_classes);
    int result = model_backward_linears(model, &pass);
    return result != 0 ? result : model_backward_convolutions(model, &pass);
}
