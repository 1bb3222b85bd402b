#include "tests/integration/replay/models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SYMBOLS 96u /* of a text */

#define LSTM_BATCH 4u
#define LSTM_TIME 16u
#define LSTM_WIDTH 31u
#define LSTM_HIDDEN 59u
#define LSTM_LAYERS 2u

#define FORMER_TIME 32u
#define FORMER_WIDTH 48u
#define FORMER_HEADS 2u
#define FORMER_LAYERS 2u

#define CNN_BATCH 8u
#define CNN_SIDE 8u
#define CNN_PIXELS (CNN_SIDE * CNN_SIDE)
#define CNN_CHANNELS 16u
#define CNN_MAPS 32u
#define CNN_HIDDEN 64u
#define CNN_DIGITS 10u

#define MAP_MAX 65536u

/* ------------------------------------------------------------------ parameters, random numbers */

static uint64_t model_random(struct model *model)
{
    uint64_t z = model->random += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static float model_uniform(struct model *model)
{
    return (float)(model_random(model) >> 40) * 0x1p-24f - 0.5f;
}

/* Appends a parameter: rows of weights as wide as the other sizes together, or, of one dimension,
 * one row of `constant`. */
static void model_param(
    struct model *model, const char *name, const uint64_t *shape, float constant)
{
    struct mat *mat = &model->param[model->params.header.tensors];
    const struct capture_tensor *tensor;
    float scale;

    capture_add(&model->params, name, shape);
    tensor = &model->params.tensor[model->params.header.tensors - 1];
    mat->rows = tensor->dims > 1 ? (unsigned)tensor->shape[0] : 1;
    mat->cols = (unsigned)(tensor->numel / mat->rows);
    mat->value = tape_need(tensor->numel, sizeof(float));
    mat->grad = tape_need(tensor->numel, sizeof(float));
    scale = 2 / sqrtf((float)mat->cols);
    for (uint64_t i = 0; i < tensor->numel; i++) {
        mat->value[i] = tensor->dims > 1 ? scale * model_uniform(model) : constant;
    }
}

static void model_weights(struct model *model, const char *name, uint64_t rows, uint64_t cols)
{
    model_param(model, name, (const uint64_t[]){rows, cols, 0}, 0);
}

static void model_bias(struct model *model, const char *name, uint64_t size, float constant)
{
    model_param(model, name, (const uint64_t[]){size, 0}, constant);
}

/* ------------------------------------------------------------------ layers */

static struct mat *model_affine(struct model *model, struct mat *x, struct mat *weights)
{
    return tape_add(&model->tape, tape_linear(&model->tape, x, weights), weights + 1);
}

static struct mat *model_columns(struct model *model, struct mat *x, unsigned first, unsigned count)
{
    static uint32_t map[MAP_MAX];

    for (unsigned i = 0; i < x->rows * count; i++) {
        map[i] = i / count * x->cols + first + i % count;
    }
    return tape_gather(&model->tape, x, map, x->rows, count);
}

/* A row of the table for each symbol. */
static struct mat *model_look_up(
    struct model *model, struct mat *table, const uint32_t *symbol, unsigned count)
{
    static uint32_t map[MAP_MAX];

    for (unsigned i = 0; i < count * table->cols; i++) {
        map[i] = symbol[i / table->cols] * table->cols + i % table->cols;
    }
    return tape_gather(&model->tape, table, map, count, table->cols);
}

static uint32_t model_symbol(const struct model *model, size_t at)
{
    return model->data[at] >= 32 && model->data[at] < 32 + SYMBOLS - 1 ? model->data[at] - 31u : 0;
}

/* ------------------------------------------------------------------ LSTM */

static void lstm_params(struct model *model)
{
    model_weights(model, "embedding", SYMBOLS, LSTM_WIDTH);
    for (unsigned layer = 0; layer < LSTM_LAYERS; layer++) {
        char name[CAPTURE_NAME];
        (void)snprintf(name, sizeof(name), "input.%u", layer);
        model_weights(model, name, 4 * LSTM_HIDDEN, layer == 0 ? LSTM_WIDTH : LSTM_HIDDEN);
        (void)snprintf(name, sizeof(name), "bias.%u", layer);
        model_bias(model, name, 4 * LSTM_HIDDEN, 0);
        (void)snprintf(name, sizeof(name), "hidden.%u", layer);
        model_weights(model, name, 4 * LSTM_HIDDEN, LSTM_HIDDEN);
    }
    model_weights(model, "out", SYMBOLS, LSTM_HIDDEN);
    model_bias(model, "out.bias", SYMBOLS, 0);
}

struct lstm_state {
    struct mat *hidden, *cell; /* NULL: zeros */
};

/* weights: input, its bias, hidden. */
static void lstm_cell(
    struct model *model, struct mat *x, struct mat *weights, struct lstm_state *state)
{
    struct tape *tape = &model->tape;
    struct mat *gates = model_affine(model, x, weights), *gate[4], *fresh;

    if (state->hidden != NULL) {
        gates = tape_add(tape, gates, tape_linear(tape, state->hidden, weights + 2));
    }
    for (unsigned g = 0; g < 4; g++) {
        gate[g] = tape_unary(tape, g == 2 ? TAPE_TANH : TAPE_SIGMOID,
            model_columns(model, gates, g * LSTM_HIDDEN, LSTM_HIDDEN));
    }
    fresh = tape_mul(tape, gate[0], gate[2]);
    state->cell =
        state->cell != NULL ? tape_add(tape, fresh, tape_mul(tape, gate[1], state->cell)) : fresh;
    state->hidden = tape_mul(tape, gate[3], tape_unary(tape, TAPE_TANH, state->cell));
}

static struct mat *lstm_loss(struct model *model)
{
    struct tape *tape = &model->tape;
    struct lstm_state state[LSTM_LAYERS] = {{NULL, NULL}};
    struct mat *out = &model->param[1 + 3 * LSTM_LAYERS], *loss = NULL;
    size_t at[LSTM_BATCH];

    for (unsigned b = 0; b < LSTM_BATCH; b++) {
        at[b] = model_random(model) % (model->size - LSTM_TIME - 1);
    }
    for (unsigned t = 0; t < LSTM_TIME; t++) {
        uint32_t symbol[LSTM_BATCH], next[LSTM_BATCH];
        struct mat *x, *one;
        for (unsigned b = 0; b < LSTM_BATCH; b++) {
            symbol[b] = model_symbol(model, at[b] + t);
            next[b] = model_symbol(model, at[b] + t + 1);
        }
        x = model_look_up(model, &model->param[0], symbol, LSTM_BATCH);
        for (unsigned layer = 0; layer < LSTM_LAYERS; layer++) {
            lstm_cell(model, x, &model->param[1 + 3 * layer], &state[layer]);
            x = state[layer].hidden;
        }
        one = tape_cross_entropy(tape, model_affine(model, x, out), next);
        loss = loss != NULL ? tape_add(tape, loss, one) : one;
    }
    return loss;
}

/* ------------------------------------------------------------------ transformer */

/* Of a layer: norm, its bias, queries with keys and values, a projection for each head, norm, its
 * bias, two layers with biases. */
#define FORMER_LAYER (9u + FORMER_HEADS)

static void former_params(struct model *model)
{
    model_weights(model, "embedding", SYMBOLS, FORMER_WIDTH);
    model_weights(model, "position", FORMER_TIME, FORMER_WIDTH);
    for (unsigned layer = 0; layer < FORMER_LAYERS; layer++) {
        static const char *const names[] = {"norm1", "norm1.bias", "qkv", "project.0", "project.1",
            "norm2", "norm2.bias", "wide", "wide.bias", "narrow", "narrow.bias"};
        static const uint64_t shape[][3] = {{FORMER_WIDTH}, {FORMER_WIDTH},
            {3 * FORMER_WIDTH, FORMER_WIDTH}, {FORMER_WIDTH, FORMER_WIDTH / FORMER_HEADS},
            {FORMER_WIDTH, FORMER_WIDTH / FORMER_HEADS}, {FORMER_WIDTH}, {FORMER_WIDTH},
            {4 * FORMER_WIDTH, FORMER_WIDTH}, {4 * FORMER_WIDTH}, {FORMER_WIDTH, 4 * FORMER_WIDTH},
            {FORMER_WIDTH}};
        for (unsigned i = 0; i < FORMER_LAYER; i++) {
            char name[CAPTURE_NAME];
            (void)snprintf(name, sizeof(name), "%u.%s", layer, names[i]);
            model_param(model, name, shape[i], i == 0 || i == 5 ? 1 : 0);
        }
    }
    model_bias(model, "norm", FORMER_WIDTH, 1);
    model_bias(model, "norm.bias", FORMER_WIDTH, 0);
    model_weights(model, "out", SYMBOLS, FORMER_WIDTH);
    model_bias(model, "out.bias", SYMBOLS, 0);
}

static struct mat *former_heads(struct model *model, struct mat *x, struct mat *weights)
{
    const unsigned width = FORMER_WIDTH / FORMER_HEADS;
    struct tape *tape = &model->tape;
    struct mat *qkv = tape_linear(tape, x, weights), *sum = NULL;

    for (unsigned head = 0; head < FORMER_HEADS; head++) {
        struct mat *part[3], *out;
        for (unsigned i = 0; i < 3; i++) {
            part[i] = model_columns(model, qkv, i * FORMER_WIDTH + head * width, width);
        }
        out = tape_attend(tape, tape_linear(tape, part[0], part[1]), width);
        out = tape_linear(tape, tape_matmul(tape, out, part[2]), weights + 1 + head);
        sum = sum != NULL ? tape_add(tape, sum, out) : out;
    }
    return sum;
}

static struct mat *former_layer(struct model *model, struct mat *x, struct mat *weights)
{
    struct tape *tape = &model->tape;
    struct mat *inner = tape_normalise(tape, x, weights, weights + 1);

    x = tape_add(tape, x, former_heads(model, inner, weights + 2));
    weights += 3 + FORMER_HEADS;
    inner = tape_normalise(tape, x, weights, weights + 1);
    inner = tape_unary(tape, TAPE_RELU, model_affine(model, inner, weights + 2));
    return tape_add(tape, x, model_affine(model, inner, weights + 4));
}

static struct mat *former_loss(struct model *model)
{
    const size_t at = model_random(model) % (model->size - FORMER_TIME - 1);
    struct mat *last = &model->param[2 + FORMER_LAYERS * FORMER_LAYER], *x;
    uint32_t symbol[FORMER_TIME], next[FORMER_TIME];

    for (unsigned t = 0; t < FORMER_TIME; t++) {
        symbol[t] = model_symbol(model, at + t);
        next[t] = model_symbol(model, at + t + 1);
    }
    x = model_look_up(model, &model->param[0], symbol, FORMER_TIME);
    x = tape_add(&model->tape, x, &model->param[1]);
    for (unsigned layer = 0; layer < FORMER_LAYERS; layer++) {
        x = former_layer(model, x, &model->param[2 + layer * FORMER_LAYER]);
    }
    x = tape_normalise(&model->tape, x, last, last + 1);
    return tape_cross_entropy(&model->tape, model_affine(model, x, last + 2), next);
}

/* ------------------------------------------------------------------ convolutional network */

static void cnn_params(struct model *model)
{
    model_param(model, "conv1", (const uint64_t[]){CNN_CHANNELS, 1, 3, 3, 0}, 0);
    model_bias(model, "conv1.bias", CNN_CHANNELS, 0);
    model_param(model, "conv2", (const uint64_t[]){CNN_MAPS, CNN_CHANNELS, 3, 3, 0}, 0);
    model_bias(model, "conv2.bias", CNN_MAPS, 0);
    model_weights(model, "linear1", CNN_HIDDEN, CNN_MAPS * CNN_PIXELS / 4);
    model_bias(model, "linear1.bias", CNN_HIDDEN, 0);
    model_weights(model, "linear2", CNN_DIGITS, CNN_HIDDEN);
    model_bias(model, "linear2.bias", CNN_DIGITS, 0);
}

/* The 3x3 neighbourhoods of x, whose rows are pixels of images and whose columns are channels. */
static struct mat *cnn_patches(struct model *model, struct mat *x, unsigned side, unsigned stride)
{
    const unsigned out = side / stride, images = x->rows / (side * side), cols = 9 * x->cols;
    uint32_t *map = tape_need((size_t)images * out * out * cols, sizeof(*map));
    struct mat *patches;

    for (unsigned i = 0; i < images * out * out * cols; i++) {
        const unsigned tap = i % 9, channel = i % cols / 9, pixel = i / cols % (out * out);
        const unsigned row = pixel / out * stride + tap / 3, col = pixel % out * stride + tap % 3;
        const unsigned first = i / cols / (out * out) * side * side;
        const int inside = row >= 1 && row <= side && col >= 1 && col <= side;
        map[i] = inside ? (first + (row - 1) * side + col - 1) * x->cols + channel : TAPE_NOWHERE;
    }
    patches = tape_gather(&model->tape, x, map, images * out * out, cols);
    free(map);
    return patches;
}

static struct mat *cnn_loss(struct model *model)
{
    struct tape *tape = &model->tape;
    struct mat *weights = model->param, *x;
    const size_t images = model->size / (CNN_PIXELS + 1);
    static uint32_t nowhere[CNN_BATCH * CNN_PIXELS], flat[CNN_BATCH * CNN_MAPS * CNN_PIXELS / 4];
    uint32_t digit[CNN_BATCH];

    memset(nowhere, 0xff, sizeof(nowhere));
    x = tape_gather(tape, weights, nowhere, CNN_BATCH * CNN_PIXELS, 1);
    for (unsigned b = 0; b < CNN_BATCH; b++) {
        const uint8_t *image = model->data + model_random(model) % images * (CNN_PIXELS + 1);
        for (unsigned p = 0; p < CNN_PIXELS; p++) {
            x->value[b * CNN_PIXELS + p] = (float)image[p] / 16;
        }
        digit[b] = image[CNN_PIXELS];
    }
    x = model_affine(model, cnn_patches(model, x, CNN_SIDE, 1), weights);
    x = tape_unary(tape, TAPE_RELU, x);
    x = model_affine(model, cnn_patches(model, x, CNN_SIDE, 2), weights + 2);
    x = tape_unary(tape, TAPE_RELU, x);
    for (uint32_t i = 0; i < CNN_BATCH * CNN_MAPS * CNN_PIXELS / 4; i++) {
        flat[i] = i;
    }
    x = tape_gather(tape, x, flat, CNN_BATCH, CNN_MAPS * CNN_PIXELS / 4);
    x = tape_unary(tape, TAPE_RELU, model_affine(model, x, weights + 4));
    return tape_cross_entropy(tape, model_affine(model, x, weights + 6), digit);
}

/* ------------------------------------------------------------------ all of them */

/* The bytes of a file, or of lines of numbers. */
static int model_read(struct model *model, const char *path, int numbers)
{
    FILE *in = fopen(path, "r");
    size_t room = 1 << 21;
    int value;

    if (in == NULL) {
        perror(path);
        return 0;
    }
    model->data = tape_need(1, room);
    if (!numbers) {
        model->size = fread(model->data, 1, room, in);
    } else {
        while (model->size < room && fscanf(in, "%d%*[,]", &value) == 1) {
            model->data[model->size++] = (uint8_t)value;
        }
    }
    (void)fclose(in);
    return model->size > CNN_PIXELS;
}

int model_init(struct model *model, const char *kind, const char *path)
{
    static const struct {
        const char *name;
        void (*params)(struct model *model);
        struct mat *(*loss)(struct model *model);
        float learning_rate;
    } kinds[] = {{"lstm", lstm_params, lstm_loss, 0.05f},
        {"transformer", former_params, former_loss, 0.1f}, {"cnn", cnn_params, cnn_loss, 0.4f}};

    *model = (struct model){.random = 1};
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(kinds[i].name, kind) == 0) {
            kinds[i].params(model);
            model->loss = kinds[i].loss;
            model->learning_rate = kinds[i].learning_rate;
        }
    }
    return model->loss != NULL && model_read(model, path, strcmp(kind, "cnn") == 0);
}

float model_batch(struct model *model, uint64_t seed)
{
    float loss;

    model->random = seed;
    for (uint32_t p = 0; p < model->params.header.tensors; p++) {
        memset(model->param[p].grad, 0, model->params.tensor[p].numel * sizeof(float));
    }
    loss = *model->loss(model)->value;
    tape_back(&model->tape);
    tape_clear(&model->tape);
    return loss;
}

void model_free(struct model *model)
{
    for (uint32_t p = 0; p < model->params.header.tensors; p++) {
        free(model->param[p].value);
        free(model->param[p].grad);
    }
    free(model->params.tensor);
    free(model->data);
}
