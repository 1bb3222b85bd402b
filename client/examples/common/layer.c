#include "layer.h"

#include <math.h>
#include <string.h>

#include "exponential.h"
#include "gemm.h"

static size_t layer_inputs(const struct tensor *weight)
{
    return tensor_size(weight) / weight->shape[0];
}

static void layer_add_product(
    const struct tensor *weight, size_t rows, const float *input, float *output)
{
    const size_t outputs = weight->shape[0], inputs = layer_inputs(weight);
    gemm_add(rows, outputs, inputs, (struct gemm_matrix){input, inputs, 1},
        (struct gemm_matrix){weight->values, 1, inputs}, output);
}

void layer_affine(const struct tensor *tensors, size_t rows, const float *input, float *output)
{
    const size_t outputs = tensors[0].shape[0];
    for (size_t row = 0; row < rows; row++) {
        memcpy(output + row * outputs, tensors[1].values, outputs * sizeof(float));
    }
    layer_add_product(&tensors[0], rows, input, output);
}

void layer_product(const struct tensor *weight, size_t rows, const float *input, float *output)
{
    memset(output, 0, rows * weight->shape[0] * sizeof(float));
    layer_add_product(weight, rows, input, output);
}

int layer_ready(const struct backward *pass, size_t tensor)
{
    return pass->ready ? pass->ready(pass->context, tensor) : 0;
}

void layer_bias_gradient(size_t rows, size_t outputs, const float *d_output, float *gradient)
{
    memset(gradient, 0, outputs * sizeof(float));
    for (size_t row = 0; row < rows; row++) {
        for (size_t o = 0; o < outputs; o++) {
            gradient[o] += d_output[row * outputs + o];
        }
    }
}

int layer_weight_gradient(const struct backward *pass, size_t weight, size_t rows,
    const float *input, const float *d_output)
{
    const struct tensor *tensor = &pass->tensors[weight];
    const size_t outputs = tensor->shape[0], inputs = layer_inputs(tensor);
    float *d_weight = pass->gradients[weight];

    memset(d_weight, 0, outputs * inputs * sizeof(float));
    gemm_add(outputs, inputs, rows, (struct gemm_matrix){d_output, 1, outputs},
        (struct gemm_matrix){input, inputs, 1}, d_weight);
    return layer_ready(pass, weight);
}

int layer_affine_gradients(const struct backward *pass, size_t weight, size_t rows,
    const float *input, const float *d_output)
{
    const size_t bias = weight + 1;
    layer_bias_gradient(rows, pass->tensors[bias].shape[0], d_output, pass->gradients[bias]);
    const int result = layer_ready(pass, bias);
    return result != 0 ? result : layer_weight_gradient(pass, weight, rows, input, d_output);
}

void layer_affine_input(
    const struct tensor *weight, size_t rows, const float *d_output, float *d_input)
{
    const size_t outputs = weight->shape[0], inputs = layer_inputs(weight);
    memset(d_input, 0, rows * inputs * sizeof(float));
    gemm_add(rows, inputs, outputs, (struct gemm_matrix){d_output, outputs, 1},
        (struct gemm_matrix){weight->values, inputs, 1}, d_input);
}

void layer_add(const float *values, size_t count, float *to)
{
    for (size_t i = 0; i < count; i++) {
        to[i] += values[i];
    }
}

void layer_relu(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = values[i] < 0 ? 0 : values[i];
    }
}

void layer_relu_backward(const float *output, float *gradient, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        gradient[i] = output[i] <= 0 ? 0 : gradient[i];
    }
}

struct score layer_softmax(const uint8_t *labels, size_t rows, size_t classes, float *logits)
{
    struct score score = {.predictions = rows};
    for (size_t row = 0; row < rows; row++) {
        float *p = logits + row * classes;
        size_t best = 0;
        for (size_t c = 1; c < classes; c++) {
            best = p[c] > p[best] ? c : best;
        }
        const double largest = p[best], target = p[labels[row]];
        double sum = 0;
        for (size_t c = 0; c < classes; c++) {
            sum += exp(p[c] - largest);
        }
        for (size_t c = 0; c < classes; c++) {
            p[c] = (float)(exp(p[c] - largest) / sum);
        }
        score.loss += log(sum) + largest - target;
        score.correct += best == labels[row];
    }
    return score;
}

void layer_softmax_backward(const uint8_t *labels, size_t rows, size_t classes, float scale,
    const float *probabilities, float *d_logits)
{
    for (size_t row = 0; row < rows; row++) {
        for (size_t c = 0; c < classes; c++) {
            const size_t at = row * classes + c;
            const float target = c == labels[row] ? 1.0f : 0.0f;
            d_logits[at] = (probabilities[at] - target) * scale;
        }
    }
}

/* The tanh form of GELU is x times the logistic function of SLOPE (x + CUBIC x^3). */
#define GELU_SLOPE 1.59576912f /* sqrt(8 / pi) */
#define GELU_CUBIC 0.044715f

static float layer_gelu_gate(float x)
{
    return 1 / (1 + exponential(-GELU_SLOPE * (x + GELU_CUBIC * x * x * x)));
}

void layer_gelu(const float *input, size_t count, float *output)
{
    for (size_t i = 0; i < count; i++) {
        output[i] = input[i] * layer_gelu_gate(input[i]);
    }
}

void layer_gelu_backward(const float *input, float *gradient, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const float x = input[i], gate = layer_gelu_gate(x);
        const float slope = GELU_SLOPE * (1 + 3 * GELU_CUBIC * x * x);
        gradient[i] *= gate + x * gate * (1 - gate) * slope;
    }
}
