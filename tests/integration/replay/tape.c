#include "tests/integration/replay/tape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAPE_EPSILON 1e-5f

void *tape_need(size_t count, size_t size)
{
    void *memory = calloc(count, size);

    if (memory == NULL) {
        (void)fprintf(stderr, "no memory\n");
        exit(1);
    }
    return memory;
}

static struct tape_op *tape_note(struct tape *tape, unsigned rows, unsigned cols,
    void (*back)(const struct tape_op *op), struct mat *a, struct mat *b)
{
    struct tape_op *op = &tape->op[tape->count++];

    if (tape->count == TAPE_OPS_MAX) {
        (void)fprintf(stderr, "the tape is too short\n");
        exit(1);
    }
    *op = (struct tape_op){.back = back, .a = a, .b = b};
    op->out = (struct mat){.rows = rows,
        .cols = cols,
        .value = tape_need((size_t)rows * cols, sizeof(float)),
        .grad = tape_need((size_t)rows * cols, sizeof(float))};
    return op;
}

/* y[i] += factor x[i]. */
static void tape_axpy(float *y, float factor, const float *x, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        y[i] += factor * x[i];
    }
}

static float tape_dot(const float *x, const float *y, unsigned n)
{
    float sum = 0;

    for (unsigned i = 0; i < n; i++) {
        sum += x[i] * y[i];
    }
    return sum;
}

/* ------------------------------------------------------------------ products */

static void linear_back(const struct tape_op *op)
{
    const struct mat *x = op->a, *w = op->b, *out = &op->out;

    for (unsigned i = 0; i < out->rows; i++) {
        for (unsigned j = 0; j < out->cols; j++) {
            float grad = out->grad[i * out->cols + j];
            tape_axpy(x->grad + i * x->cols, grad, w->value + j * w->cols, w->cols);
            tape_axpy(w->grad + j * w->cols, grad, x->value + i * x->cols, w->cols);
        }
    }
}

struct mat *tape_linear(struct tape *tape, struct mat *x, struct mat *w)
{
    struct tape_op *op = tape_note(tape, x->rows, w->rows, linear_back, x, w);

    for (unsigned i = 0; i < x->rows; i++) {
        for (unsigned j = 0; j < w->rows; j++) {
            op->out.value[i * w->rows + j] =
                tape_dot(x->value + i * x->cols, w->value + j * w->cols, w->cols);
        }
    }
    return &op->out;
}

static void matmul_back(const struct tape_op *op)
{
    const struct mat *a = op->a, *b = op->b, *out = &op->out;

    for (unsigned i = 0; i < a->rows; i++) {
        const float *grad = out->grad + i * out->cols;
        for (unsigned k = 0; k < a->cols; k++) {
            a->grad[i * a->cols + k] += tape_dot(grad, b->value + k * b->cols, b->cols);
            tape_axpy(b->grad + k * b->cols, a->value[i * a->cols + k], grad, b->cols);
        }
    }
}

struct mat *tape_matmul(struct tape *tape, struct mat *a, struct mat *b)
{
    struct tape_op *op = tape_note(tape, a->rows, b->cols, matmul_back, a, b);

    for (unsigned i = 0; i < a->rows; i++) {
        for (unsigned k = 0; k < a->cols; k++) {
            tape_axpy(op->out.value + i * b->cols, a->value[i * a->cols + k],
                b->value + k * b->cols, b->cols);
        }
    }
    return &op->out;
}

/* ------------------------------------------------------------------ element by element */

static void add_back(const struct tape_op *op)
{
    const unsigned n = op->out.rows * op->out.cols, repeat = op->b->rows * op->b->cols;

    for (unsigned i = 0; i < n; i++) {
        op->a->grad[i] += op->out.grad[i];
        op->b->grad[i % repeat] += op->out.grad[i];
    }
}

struct mat *tape_add(struct tape *tape, struct mat *a, struct mat *b)
{
    struct tape_op *op = tape_note(tape, a->rows, a->cols, add_back, a, b);
    const unsigned repeat = b->rows * b->cols;

    for (unsigned i = 0; i < a->rows * a->cols; i++) {
        op->out.value[i] = a->value[i] + b->value[i % repeat];
    }
    return &op->out;
}

static void mul_back(const struct tape_op *op)
{
    for (unsigned i = 0; i < op->out.rows * op->out.cols; i++) {
        op->a->grad[i] += op->out.grad[i] * op->b->value[i];
        op->b->grad[i] += op->out.grad[i] * op->a->value[i];
    }
}

struct mat *tape_mul(struct tape *tape, struct mat *a, struct mat *b)
{
    struct tape_op *op = tape_note(tape, a->rows, a->cols, mul_back, a, b);

    for (unsigned i = 0; i < a->rows * a->cols; i++) {
        op->out.value[i] = a->value[i] * b->value[i];
    }
    return &op->out;
}

static void unary_back(const struct tape_op *op)
{
    for (unsigned i = 0; i < op->out.rows * op->out.cols; i++) {
        float y = op->out.value[i];
        float slope = op->kind == TAPE_SIGMOID ? y * (1 - y)
                      : op->kind == TAPE_TANH  ? 1 - y * y
                      : y > 0                  ? 1
                                               : 0;
        op->a->grad[i] += op->out.grad[i] * slope;
    }
}

struct mat *tape_unary(struct tape *tape, enum tape_unary kind, struct mat *a)
{
    struct tape_op *op = tape_note(tape, a->rows, a->cols, unary_back, a, NULL);

    op->kind = kind;
    for (unsigned i = 0; i < a->rows * a->cols; i++) {
        float x = a->value[i];
        op->out.value[i] = kind == TAPE_SIGMOID ? 1 / (1 + expf(-x))
                           : kind == TAPE_TANH  ? tanhf(x)
                           : x > 0              ? x
                                                : 0;
    }
    return &op->out;
}

static void gather_back(const struct tape_op *op)
{
    for (unsigned i = 0; i < op->out.rows * op->out.cols; i++) {
        if (op->map[i] != TAPE_NOWHERE) {
            op->a->grad[op->map[i]] += op->out.grad[i];
        }
    }
}

struct mat *tape_gather(
    struct tape *tape, struct mat *a, const uint32_t *map, unsigned rows, unsigned cols)
{
    struct tape_op *op = tape_note(tape, rows, cols, gather_back, a, NULL);

    op->map = tape_need((size_t)rows * cols, sizeof(*map));
    memcpy(op->map, map, (size_t)rows * cols * sizeof(*map));
    for (unsigned i = 0; i < rows * cols; i++) {
        op->out.value[i] = map[i] != TAPE_NOWHERE ? a->value[map[i]] : 0;
    }
    return &op->out;
}

/* ------------------------------------------------------------------ rows */

/* out = softmax(scale in) of n numbers; returns the logarithm of the sum. */
static float softmax_row(const float *in, float scale, float *out, unsigned n)
{
    float most = scale * in[0], sum = 0;

    for (unsigned i = 1; i < n; i++) {
        most = fmaxf(most, scale * in[i]);
    }
    for (unsigned i = 0; i < n; i++) {
        sum += out[i] = expf(scale * in[i] - most);
    }
    for (unsigned i = 0; i < n; i++) {
        out[i] /= sum;
    }
    return most + logf(sum);
}

static void attend_back(const struct tape_op *op)
{
    const unsigned n = op->out.cols;

    for (unsigned i = 0; i < op->out.rows; i++) {
        const float *y = op->out.value + i * n, *grad = op->out.grad + i * n;
        float mean = tape_dot(y, grad, i + 1);
        for (unsigned j = 0; j <= i; j++) {
            op->a->grad[i * n + j] += *op->kept * y[j] * (grad[j] - mean);
        }
    }
}

struct mat *tape_attend(struct tape *tape, struct mat *a, unsigned width)
{
    struct tape_op *op = tape_note(tape, a->rows, a->cols, attend_back, a, NULL);

    op->kept = tape_need(1, sizeof(float));
    *op->kept = 1 / sqrtf((float)width);
    for (unsigned i = 0; i < a->rows; i++) {
        (void)softmax_row(a->value + i * a->cols, *op->kept, op->out.value + i * a->cols, i + 1);
    }
    return &op->out;
}

static void normalise_back(const struct tape_op *op)
{
    const unsigned n = op->out.cols;
    const struct mat *a = op->a, *gain = op->b, *bias = op->c;

    for (unsigned i = 0; i < op->out.rows; i++) {
        const float *grad = op->out.grad + i * n, *kept = op->kept + i * (n + 1);
        float sum = 0, along = 0;
        for (unsigned j = 0; j < n; j++) {
            sum += grad[j] * gain->value[j];
            along += grad[j] * gain->value[j] * kept[j];
            gain->grad[j] += grad[j] * kept[j];
            bias->grad[j] += grad[j];
        }
        for (unsigned j = 0; j < n; j++) {
            a->grad[i * n + j] +=
                kept[n] * (grad[j] * gain->value[j] - (sum + kept[j] * along) / (float)n);
        }
    }
}

struct mat *tape_normalise(struct tape *tape, struct mat *a, struct mat *gain, struct mat *bias)
{
    struct tape_op *op = tape_note(tape, a->rows, a->cols, normalise_back, a, gain);
    const unsigned n = a->cols;

    op->c = bias;
    op->kept = tape_need((size_t)a->rows * (n + 1), sizeof(float));
    for (unsigned i = 0; i < a->rows; i++) {
        const float *x = a->value + i * n;
        float *kept = op->kept + i * (n + 1), mean = 0, variance = 0;
        for (unsigned j = 0; j < n; j++) {
            mean += x[j] / (float)n;
        }
        for (unsigned j = 0; j < n; j++) {
            variance += (x[j] - mean) * (x[j] - mean) / (float)n;
        }
        kept[n] = 1 / sqrtf(variance + TAPE_EPSILON);
        for (unsigned j = 0; j < n; j++) {
            kept[j] = (x[j] - mean) * kept[n];
            op->out.value[i * n + j] = kept[j] * gain->value[j] + bias->value[j];
        }
    }
    return &op->out;
}

static void cross_entropy_back(const struct tape_op *op)
{
    const struct mat *logits = op->a;

    for (unsigned i = 0; i < logits->rows; i++) {
        for (unsigned j = 0; j < logits->cols; j++) {
            logits->grad[i * logits->cols + j] +=
                *op->out.grad * (op->kept[i * logits->cols + j] - (op->map[i] == j ? 1.0f : 0.0f)) /
                (float)logits->rows;
        }
    }
}

struct mat *tape_cross_entropy(struct tape *tape, struct mat *logits, const uint32_t *label)
{
    struct tape_op *op = tape_note(tape, 1, 1, cross_entropy_back, logits, NULL);
    const unsigned rows = logits->rows, cols = logits->cols;

    op->kept = tape_need((size_t)rows * cols, sizeof(float));
    op->map = tape_need(rows, sizeof(*label));
    memcpy(op->map, label, rows * sizeof(*label));
    for (unsigned i = 0; i < rows; i++) {
        const float *row = logits->value + i * cols;
        *op->out.value +=
            (softmax_row(row, 1, op->kept + i * cols, cols) - row[label[i]]) / (float)rows;
    }
    return &op->out;
}

/* ------------------------------------------------------------------ the way back */

void tape_back(struct tape *tape)
{
    *tape->op[tape->count - 1].out.grad = 1;
    for (unsigned i = tape->count; i-- > 0;) {
        tape->op[i].back(&tape->op[i]);
    }
}

void tape_clear(struct tape *tape)
{
    for (unsigned i = 0; i < tape->count; i++) {
        free(tape->op[i].out.value);
        free(tape->op[i].out.grad);
        free(tape->op[i].map);
        free(tape->op[i].kept);
    }
    tape->count = 0;
}
