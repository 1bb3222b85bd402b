#include "model.h"

#include <stdlib.h>
#include <string.h>

/* Activations lie as [example][pixel][channel], so that every layer is a matrix product whose
 * inner loop runs over contiguous numbers. A convolution is a product with the patches around each
 * pixel; a patch is ordered [channel][ky][kx] as the weights are. */
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

enum { CONV1, CONV1_BIAS, CONV2, CONV2_BIAS, LINEAR1, LINEAR1_BIAS, LINEAR2, LINEAR2_BIAS };

static const struct tensor shapes[MODEL_TENSORS] = {
    [CONV1] = {"conv1.weight", 4, {CHANNELS1, 1, 3, 3}, NULL},
    [CONV1_BIAS] = {"conv1.bias", 1, {CHANNELS1}, NULL},
    [CONV2] = {"conv2.weight", 4, {CHANNELS2, CHANNELS1, 3, 3}, NULL},
    [CONV2_BIAS] = {"conv2.bias", 1, {CHANNELS2}, NULL},
    [LINEAR1] = {"linear1.weight", 2, {HIDDEN, FEATURES}, NULL},
    [LINEAR1_BIAS] = {"linear1.bias", 1, {HIDDEN}, NULL},
    [LINEAR2] = {"linear2.weight", 2, {MODEL_CLASSES, HIDDEN}, NULL},
    [LINEAR2_BIAS] = {"linear2.bias", 1, {MODEL_CLASSES}, NULL},
};

struct model {
    size_t max_batch;
    struct model_batch batch; /* of the last forward pass */
    float *memory;            /* all that follows */
    struct tensor tensors[MODEL_TENSORS];
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

static int model_allocate(struct model *model, size_t batch)
{
    struct {
        float **slot;
        size_t count;
    } parts[] = {
        {&model->patches1, batch * SIDE * SIDE * PATCH1},
        {&model->conv1, batch * SIDE * SIDE * CHANNELS1},
        {&model->pooled, batch * HALF * HALF * CHANNELS1},
        {&model->patches2, batch * HALF * HALF * PATCH2},
        {&model->conv2, batch * FEATURES},
        {&model->hidden, batch * HIDDEN},
        {&model->classes, batch * MODEL_CLASSES},
        {&model->d_conv1, batch * SIDE * SIDE * CHANNELS1},
        {&model->d_pooled, batch * HALF * HALF * CHANNELS1},
        {&model->d_patches2, batch * HALF * HALF * PATCH2},
        {&model->d_conv2, batch * FEATURES},
        {&model->d_hidden, batch * HIDDEN},
        {&model->d_classes, batch * MODEL_CLASSES},
    };
    const size_t count = sizeof parts / sizeof parts[0];
    size_t total = 0;

    for (size_t i = 0; i < count; i++) {
        total += parts[i].count;
    }
    for (size_t t = 0; t < MODEL_TENSORS; t++) {
        total += tensor_size(&shapes[t]);
    }
    model->memory = calloc(total, sizeof(float));
    if (!model->memory) {
        return -1;
    }

    float *next = model->memory;
    for (size_t i = 0; i < count; i++) {
        *parts[i].slot = next;
        next += parts[i].count;
    }
    for (size_t t = 0; t < MODEL_TENSORS; t++) {
        model->tensors[t] = shapes[t];
        model->tensors[t].values = next;
        next += tensor_size(&shapes[t]);
    }
    return 0;
}

struct model *model_create(size_t max_batch)
{
    if (max_batch == 0 || max_batch > SIZE_MAX / (1u << 20)) {
        return NULL;
    }
    struct model *model = calloc(1, sizeof *model);
    if (!model) {
        return NULL;
    }
    model->max_batch = max_batch;
    if (model_allocate(model, max_batch) != 0) {
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

const struct tensor *model_tensors(const struct model *model)
{
    return model->tensors;
}

/* The part of a 3x3 kernel that falls on the image at one coordinate: taps begin..end-1, where tap
 * k looks at coordinate + k - 1. */
struct taps {
    size_t begin;
    size_t end;
};

static struct taps model_taps(size_t coordinate, size_t side)
{
    return (struct taps){coordinate == 0 ? 1 : 0, coordinate + 1 == side ? 2 : 3};
}

/* patches[pixel][channel][tap] = the input under that tap; what lies outside stays zero, as the
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

struct score model_forward(struct model *model, const struct model_batch *batch)
{
    const size_t count = batch->count;
    model->batch = *batch;

    model_gather_patches(count, SIDE, 1, batch->images, model->patches1);
    model_affine(model, CONV1, count * SIDE * SIDE, model->patches1, model->conv1);
    model_pool(count, model->conv1, model->pooled);

    model_gather_patches(count, HALF, CHANNELS1, model->pooled, model->patches2);
    model_affine(model, CONV2, count * HALF * HALF, model->patches2, model->conv2);
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

static int model_backward_convolutions(struct model *m, const struct backward *pass)
{
    const size_t count = m->batch.count;
    const size_t pixels1 = count * SIDE * SIDE, pixels2 = count * HALF * HALF;
    int result = layer_affine_gradients(pass, CONV2, pixels2, m->patches2, m->d_conv2);
    if (result != 0) {
        return result;
    }
    layer_affine_input(&m->tensors[CONV2], pixels2, m->d_conv2, m->d_patches2);
    model_scatter_patches(count, HALF, CHANNELS1, m->d_patches2, m->d_pooled);

    model_pool_backward(count, m->conv1, m->pooled, m->d_pooled, m->d_conv1);
    layer_relu_backward(m->conv1, m->d_conv1, pixels1 * CHANNELS1);
    return layer_affine_gradients(pass, CONV1, pixels1, m->patches1, m->d_conv1);
}

int model_backward(struct model *model, float scale, float *const gradients[MODEL_TENSORS],
    tensor_ready_fn ready, void *context)
{
    const struct backward pass = {model->tensors, gradients, ready, context};

    layer_softmax_backward(model->batch.labels, model->batch.count, MODEL_CLASSES, scale,
        model->classes, model->d_classes);
    int result = model_backward_linears(model, &pass);
    return result != 0 ? result : model_backward_convolutions(model, &pass);
}
