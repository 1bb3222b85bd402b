#include "norm.h"

#include <math.h>
#include <string.h>

#define EPSILON 1e-5
#define LEAST_WEIGHT 0.1f /* of a batch in the averages */

struct moments {
    double mean;
    double variance;
};

static struct moments norm_moments(const float *values, size_t count, size_t stride)
{
    struct moments moments = {0, 0};
    for (size_t i = 0; i < count; i++) {
        moments.mean += values[i * stride];
    }
    moments.mean /= (double)count;
    for (size_t i = 0; i < count; i++) {
        const double off = values[i * stride] - moments.mean;
        moments.variance += off * off;
    }
    moments.variance /= (double)count;
    return moments;
}

/* Row by row: output = (1 + scale) * normalised + bias */
static void norm_scale(
    const struct norm *norm, const struct tensor *tensors, size_t rows, float *output)
{
    const size_t width = norm->width;
    const float *scale = tensors[norm->scale].values, *bias = tensors[norm->bias].values;
    for (size_t row = 0; row < rows; row++) {
        for (size_t i = 0; i < width; i++) {
            const size_t at = row * width + i;
            output[at] = (1 + scale[i]) * norm->normalised[at] + bias[i];
        }
    }
}

void norm_layer(const struct norm *norm, const struct tensor *tensors, size_t rows,
    const float *input, float *output)
{
    const size_t width = norm->width;
    for (size_t row = 0; row < rows; row++) {
        const float *from = input + row * width;
        float *to = norm->normalised + row * width;
        const struct moments moments = norm_moments(from, width, 1);
        const float mean = (float)moments.mean;
        const float inverse = (float)(1 / sqrt(moments.variance + EPSILON));
        norm->inverse[row] = inverse;
        for (size_t i = 0; i < width; i++) {
            to[i] = (from[i] - mean) * inverse;
        }
    }
    norm_scale(norm, tensors, rows, output);
}

/* The derivative of a normalised value takes every value along which it was normalised into
 * account: d_input = (g - mean(g) - normalised * mean(g * normalised)) * inverse, where g =
 * d_output
 * * (1 + scale). */
void norm_layer_backward(const struct norm *norm, const struct tensor *tensors, size_t rows,
    const float *d_output, float *d_input)
{
    const size_t width = norm->width;
    const float *scale = tensors[norm->scale].values;
    for (size_t row = 0; row < rows; row++) {
        const float *normalised = norm->normalised + row * width, *d = d_output + row * width;
        double sum = 0, product = 0;
        for (size_t i = 0; i < width; i++) {
            const float g = d[i] * (1 + scale[i]);
            sum += g;
            product += g * normalised[i];
        }
        const float mean = (float)(sum / (double)width), along = (float)(product / (double)width);
        for (size_t i = 0; i < width; i++) {
            const float g = d[i] * (1 + scale[i]);
            d_input[row * width + i] += (g - mean - normalised[i] * along) * norm->inverse[row];
        }
    }
}

static void norm_remember(struct norm_averages *averages, size_t column, struct moments moments)
{
    const float mean = (float)moments.mean, variance = (float)moments.variance;
    const float share = 1 / (float)(averages->batches + 1);
    const float weight = share > LEAST_WEIGHT ? share : LEAST_WEIGHT;
    if (isfinite(mean) && isfinite(variance)) {
        averages->mean[column] += weight * (mean - averages->mean[column]);
        averages->variance[column] += weight * (variance - averages->variance[column]);
    }
}

static void norm_column(const struct norm *norm, size_t rows, size_t column, struct moments moments,
    const float *values)
{
    const float mean = (float)moments.mean;
    const float inverse = (float)(1 / sqrt(moments.variance + EPSILON));
    norm->inverse[column] = inverse;
    for (size_t row = 0; row < rows; row++) {
        const size_t at = row * norm->width + column;
        norm->normalised[at] = (values[at] - mean) * inverse;
    }
}

void norm_batch(const struct norm *norm, const struct tensor *tensors, size_t rows,
    struct norm_averages *averages, float *values)
{
    for (size_t column = 0; column < norm->width; column++) {
        const struct moments moments = norm_moments(values + column, rows, norm->width);
        norm_remember(averages, column, moments);
        norm_column(norm, rows, column, moments, values);
    }
    averages->batches++;
    norm_scale(norm, tensors, rows, values);
}

void norm_batch_by_averages(const struct norm *norm, const struct tensor *tensors, size_t rows,
    const struct norm_averages *averages, float *values)
{
    for (size_t column = 0; column < norm->width; column++) {
        const struct moments moments = {averages->mean[column], averages->variance[column]};
        norm_column(norm, rows, column, moments, values);
    }
    norm_scale(norm, tensors, rows, values);
}

/* As of a layer's, along a column. The scale is the same there. */
void norm_batch_backward(
    const struct norm *norm, const struct tensor *tensors, size_t rows, float *gradient)
{
    const size_t width = norm->width;
    for (size_t column = 0; column < width; column++) {
        const float factor = (1 + tensors[norm->scale].values[column]) * norm->inverse[column];
        double sum = 0, product = 0;
        for (size_t at = column; at < rows * width; at += width) {
            sum += gradient[at];
            product += gradient[at] * norm->normalised[at];
        }
        const float mean = (float)(sum / (double)rows), along = (float)(product / (double)rows);
        for (size_t at = column; at < rows * width; at += width) {
            gradient[at] = (gradient[at] - mean - norm->normalised[at] * along) * factor;
        }
    }
}

int norm_gradients(
    const struct norm *norm, const struct backward *pass, size_t rows, const float *d_output)
{
    const size_t width = norm->width;
    float *d_scale = pass->gradients[norm->scale];
    layer_bias_gradient(rows, width, d_output, pass->gradients[norm->bias]);
    const int result = layer_ready(pass, norm->bias);
    if (result != 0) {
        return result;
    }
    memset(d_scale, 0, width * sizeof(float));
    for (size_t row = 0; row < rows; row++) {
        for (size_t i = 0; i < width; i++) {
            const size_t at = row * width + i;
            d_scale[i] += d_output[at] * norm->normalised[at];
        }
    }
    return layer_ready(pass, norm->scale);
}
