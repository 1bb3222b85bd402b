/* Normalisation of activations, forward and backward: layer normalisation (Ba, Kiros and Hinton
 * 2016) over each row, batch normalisation (Ioffe and Szegedy 2015) over each column.
 *
 *   output = (1 + scale) * normalised + bias
 *   normalised = (input - mean) / sqrt(variance + 1e-5)
 *
 * The scale is kept as its distance from 1, so that it starts from zero as biases do. */
#ifndef EXAMPLE_NORM_H
#define EXAMPLE_NORM_H

#include <stddef.h>
#include <stdint.h>

#include "layer.h"
#include "tensor.h"

/* One normalisation: the numbers of its two tensors, which have `width` elements, and what its
 * backward pass needs of the last forward pass. */
struct norm {
    size_t scale;
    size_t bias;
    size_t width;
    float *normalised; /* [rows][width] */
    float *inverse;    /* 1 / sqrt(variance + 1e-5): [rows] of a layer's, [width] of a batch's */
};

/* Means and variances of the columns over past batches; each batch has a weight of 0.1, or more
 * while there are fewer than ten. */
struct norm_averages {
    float *mean;
    float *variance;
    uint64_t batches;
};

/* Each row by its own mean and variance. */
void norm_layer(const struct norm *norm, const struct tensor *tensors, size_t rows,
    const float *input, float *output);

/* Adds to d_input[rows][width] what comes of d_output. */
void norm_layer_backward(const struct norm *norm, const struct tensor *tensors, size_t rows,
    const float *d_output, float *d_input);

/* Each column of values[rows][width], in place, by its mean and variance over the rows. Adds these
 * to the averages if they are finite. */
void norm_batch(const struct norm *norm, const struct tensor *tensors, size_t rows,
    struct norm_averages *averages, float *values);

/* The same by the averages; there is no backward pass from it. */
void norm_batch_by_averages(const struct norm *norm, const struct tensor *tensors, size_t rows,
    const struct norm_averages *averages, float *values);

/* Turns the gradient of norm_batch()'s result into that of its input, in place. */
void norm_batch_backward(
    const struct norm *norm, const struct tensor *tensors, size_t rows, float *gradient);

/* The gradients of bias and scale, of either kind. Announces both; returns 0 or the result of an
 * announcement. */
int norm_gradients(
    const struct norm *norm, const struct backward *pass, size_t rows, const float *d_output);

#endif
