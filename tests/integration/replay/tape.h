/*
 * Gradients by a tape: every operation on matrices of f32 is noted, and tape_back() goes through
 * them from the last to the first. Plain loops, one thread, the same bits in every run.
 *
 * A matrix that an operation returns belongs to the tape until tape_clear(). What runs out (memory,
 * room on the tape) ends the program.
 */
#ifndef ADTOPK_TEST_TAPE_H
#define ADTOPK_TEST_TAPE_H

#include <stddef.h>
#include <stdint.h>

#define TAPE_OPS_MAX 4096
#define TAPE_NOWHERE UINT32_MAX /* in a map: 0 instead of an element */

struct mat {
    unsigned rows, cols;
    float *value, *grad; /* [rows * cols] each */
};

struct tape_op {
    void (*back)(const struct tape_op *op);
    struct mat out;
    struct mat *a, *b, *c;
    uint32_t *map;
    float *kept; /* what back() needs of the way forward */
    unsigned kind;
};

struct tape {
    struct tape_op op[TAPE_OPS_MAX];
    unsigned count;
};

enum tape_unary { TAPE_SIGMOID, TAPE_TANH, TAPE_RELU };

/** Memory of zeros. */
void *tape_need(size_t count, size_t size);

/** x w^T: a layer whose weights have a row for each output. */
struct mat *tape_linear(struct tape *tape, struct mat *x, struct mat *w);

/** a b. */
struct mat *tape_matmul(struct tape *tape, struct mat *a, struct mat *b);

/** a + b; b is as large, or one row that is added to every row. */
struct mat *tape_add(struct tape *tape, struct mat *a, struct mat *b);

/** Element by element. */
struct mat *tape_mul(struct tape *tape, struct mat *a, struct mat *b);
struct mat *tape_unary(struct tape *tape, enum tape_unary kind, struct mat *a);

/** out[i] = a[map[i]], or 0: slices, tables, patches of images. The map is copied. */
struct mat *tape_gather(
    struct tape *tape, struct mat *a, const uint32_t *map, unsigned rows, unsigned cols);

/** Softmax of each row i of a / sqrt(width) over its first i + 1 columns; the others are 0. */
struct mat *tape_attend(struct tape *tape, struct mat *a, unsigned width);

/** Each row to mean 0 and variance 1, times gain plus bias, one row each. */
struct mat *tape_normalise(struct tape *tape, struct mat *a, struct mat *gain, struct mat *bias);

/** The mean over the rows of -log softmax(logits)[label]: one element. */
struct mat *tape_cross_entropy(struct tape *tape, struct mat *logits, const uint32_t *label);

/** Adds the derivatives of the last operation's one element to all `grad`. */
void tape_back(struct tape *tape);

/** Frees all that the operations made. */
void tape_clear(struct tape *tape);

#endif
