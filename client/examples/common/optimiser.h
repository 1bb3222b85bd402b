/* Momentum SGD and AdamW on dense updates, with a learning-rate schedule. */
#ifndef EXAMPLE_OPTIMISER_H
#define EXAMPLE_OPTIMISER_H

#include <stddef.h>
#include <stdint.h>

#include "tensor.h"

enum optimiser_kind { OPTIMISER_SGD, OPTIMISER_ADAMW };

struct optimiser_options {
    enum optimiser_kind kind;
    float lr;           /* highest learning rate */
    float momentum;     /* SGD: 0 <= momentum < 1 */
    int corrected;      /* SGD: updates have that momentum already, from the daemon */
    float weight_decay; /* on weights, not on biases */
    uint64_t warmup;    /* first steps, in which the rate rises linearly to lr */
    uint64_t steps;     /* all steps; after the warm-up it falls linearly to zero */
};

struct optimiser;

/* For these tensors, which must outlive it. NULL when there is no memory. */
struct optimiser *optimiser_create(
    const struct optimiser_options *options, const struct tensor *tensors, size_t count);
void optimiser_destroy(struct optimiser *optimiser);

/* The learning rate of a step, counted from 0; without libm, so that all machines agree. */
float optimiser_rate(const struct optimiser_options *options, uint64_t step);

/* Changes the tensor's parameters by an update.
 *
 * SGD: velocity = momentum velocity + update + weight_decay parameter; parameter -= rate velocity.
 * With `corrected`: parameter -= rate (update + weight_decay / (1 - momentum) parameter).
 * AdamW (Loshchilov, Hutter 2019), with betas 0.9 and 0.999: first = 0.9 first + 0.1 update; second
 * = 0.999 second + 0.001 update^2; parameter -= rate (first' / (sqrt(second') + 1e-8) +
 * weight_decay parameter), where ' corrects the bias of the first steps.
 *
 * `update` is the dense mean gradient, zeros included. Every element moves in every step, whether
 * or not its gradient was sent. Equal updates give equal bits. */
void optimiser_apply(
    struct optimiser *optimiser, size_t tensor, float *parameters, const float *update, float rate);

/* Forgets all updates so far, as a new optimiser. */
void optimiser_forget(struct optimiser *optimiser);

/* All that it keeps of a tensor, to be saved and read back. */
struct optimiser_state {
    float *first;  /* one per element, like `second` */
    float *second; /* NULL: none */
    float *powers; /* two */
};

struct optimiser_state optimiser_state(struct optimiser *optimiser, size_t tensor);

/* What becomes of an update in the long run: what adtopk_lookahead() asks for. */
struct optimiser_reach {
    float rate;                 /* in units of the parameters, or of AdamW's steps */
    const float *second_moment; /* AdamW; else NULL */
    float correction;           /* of the second moment */
    float epsilon;
};

/* Of the tensor, after optimiser_apply() with this rate. */
struct optimiser_reach optimiser_reach(
    const struct optimiser *optimiser, size_t tensor, float rate);

#endif
