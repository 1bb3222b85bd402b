/* Layers that networks are made of, forward and backward. Everything is f32, row by row; a row is
 * an example, or a pixel of one. */
#ifndef EXAMPLE_LAYER_H
#define EXAMPLE_LAYER_H

#include <stddef.h>
#include <stdint.h>

#include "tensor.h"

/* The results of a forward pass, summed over its predictions. */
struct score {
    double loss; /* cross entropy in nats */
    size_t correct;
    size_t predictions;
};

/* output[row][o] = bias[o] + sum over i of input[row][i] weight[o][i], where tensors[0] is the
 * weight, [O, ...] with I numbers an output, and tensors[1] its bias. */
void layer_affine(const struct tensor *tensors, size_t rows, const float *input, float *output);

/* The same without a bias. */
void layer_product(const struct tensor *weight, size_t rows, const float *input, float *output);

/* Where a backward pass writes the gradients of `tensors`, and the function that it calls. */
struct backward {
    const struct tensor *tensors;
    float *const *gradients;
    tensor_ready_fn ready; /* NULL: no function is called */
    void *context;
};

/* Announces that the gradient of a tensor is complete. Returns the result of `ready`. */
int layer_ready(const struct backward *pass, size_t tensor);

/* Gradients of the affine layer whose weight is tensor number `weight` and its bias the next one,
 * from the gradient of its output. d_bias[o] = sum over rows of d_output[row][o]. d_weight[o][i] =
 * the same times input[row][i]. Announces both; returns 0 or the result of an announcement. */
int layer_affine_gradients(const struct backward *pass, size_t weight, size_t rows,
    const float *input, const float *d_output);

/* Its two halves; only the second announces. gradient[o] = sum over rows of d_output[row][o]. */
void layer_bias_gradient(size_t rows, size_t outputs, const float *d_output, float *gradient);
int layer_weight_gradient(const struct backward *pass, size_t weight, size_t rows,
    const float *input, const float *d_output);

/* d_input[row][i] = sum over o of d_output[row][o] weight[o][i] */
void layer_affine_input(
    const struct tensor *weight, size_t rows, const float *d_output, float *d_input);

/* to[i] += values[i] */
void layer_add(const float *values, size_t count, float *to);

/* Negative values become 0; NaN passes: a diverged model must not look like a dead one. */
void layer_relu(float *values, size_t count);

/* A unit that put out zero passes no gradient. */
void layer_relu_backward(const float *output, float *gradient, size_t count);

/* GELU (Hendrycks and Gimpel 2016) in its tanh form. Its backward pass needs the input. */
void layer_gelu(const float *input, size_t count, float *output);
void layer_gelu_backward(const float *input, float *gradient, size_t count);

/* Turns logits[rows][classes] into probabilities and adds up the loss. */
struct score layer_softmax(const uint8_t *labels, size_t rows, size_t classes, float *logits);

/* d_logits = scale * (probabilities - target) */
void layer_softmax_backward(const uint8_t *labels, size_t rows, size_t classes, float scale,
    const float *probabilities, float *d_logits);

#endif
