/* Momentum SGD with weight decay and its learning-rate schedule. */
#ifndef EXAMPLE_SGD_H
#define EXAMPLE_SGD_H

#include <stddef.h>
#include <stdint.h>

#include "tensor.h"

struct sgd_options {
    float lr;           /* highest learning rate */
    float momentum;     /* 0 <= momentum < 1 */
    int corrected;      /* updates have that momentum already, from the daemon */
    float weight_decay; /* on weights, not on biases */
    uint64_t warmup;    /* first steps, in which the rate rises linearly to lr */
    uint64_t steps;     /* all steps; after the warm-up it falls linearly to zero */
};

struct sgd;

/* For these tensors, which must outlive it. NULL when there is no memory. */
struct sgd *sgd_create(
    const struct sgd_options *options, const struct tensor *tensors, size_t count);
void sgd_destroy(struct sgd *sgd);

/* The learning rate of a step, counted from 0; without libm, so that all machines agree. */
float sgd_rate(const struct sgd_options *options, uint64_t step);

/* velocity = momentum velocity + update + weight_decay parameter; parameter -= rate velocity; with
 * corrected parameters move by rate (update + weight_decay / (1 - momentum) parameter).
 *
 * `update` is the dense mean gradient, zeros included: with momentum and weight decay every element
 * moves in every step, whether or not its gradient was sent. Equal updates give equal bits. */
void sgd_apply(struct sgd *sgd, size_t tensor, const float *update, float rate);

#endif
