#include "drift.h"

#include <stdlib.h>
#include <string.h>

struct drift {
    struct drift_options options;
    const struct tensor *tensors;
    size_t count;
    float **gradients, **velocities;
};

static void drift_free(float **arrays, size_t count)
{
    for (size_t t = 0; arrays && t < count; t++) {
        free(arrays[t]);
    }
    free(arrays);
}

/* An array of zeros a tensor; NULL without memory. */
static float **drift_arrays(const struct tensor *tensors, size_t count)
{
    float **arrays = calloc(count, sizeof *arrays);
    for (size_t t = 0; arrays && t < count; t++) {
        arrays[t] = calloc(tensor_size(&tensors[t]), sizeof(float));
        if (!arrays[t]) {
            drift_free(arrays, t);
            return NULL;
        }
    }
    return arrays;
}

struct drift *drift_create(
    const struct drift_options *options, const struct tensor *tensors, size_t count)
{
    struct drift *drift = calloc(1, sizeof *drift);
    if (!drift) {
        return NULL;
    }
    drift->options = *options;
    drift->tensors = tensors;
    drift->count = count;
    drift->gradients = drift_arrays(tensors, count);
    drift->velocities = drift_arrays(tensors, count);
    if (!drift->gradients || !drift->velocities) {
        drift_destroy(drift);
        return NULL;
    }
    return drift;
}

void drift_destroy(struct drift *drift)
{
    if (!drift) {
        return;
    }
    drift_free(drift->gradients, drift->count);
    drift_free(drift->velocities, drift->count);
    free(drift);
}

float *const *drift_gradients(const struct drift *drift)
{
    return drift->gradients;
}

void drift_begin(const struct drift *drift, float *const *pushed)
{
    for (size_t t = 0; t < drift->count; t++) {
        const struct tensor *tensor = &drift->tensors[t];
        memcpy(pushed[t], tensor->values, tensor_size(tensor) * sizeof(float));
    }
}

void drift_take(const struct drift *drift, size_t tensor, float *pushed)
{
    const float *values = drift->tensors[tensor].values;
    const size_t size = tensor_size(&drift->tensors[tensor]);
    for (size_t i = 0; i < size; i++) {
        pushed[i] -= values[i];
    }
}

void drift_apply(struct drift *drift, size_t tensor, float *parameters, const float *mean)
{
    const float rate = drift->options.rate, momentum = drift->options.momentum;
    const size_t size = tensor_size(&drift->tensors[tensor]);
    float *velocity = drift->velocities[tensor];
    for (size_t i = 0; i < size; i++) {
        velocity[i] = momentum * velocity[i] + mean[i];
        parameters[i] -= rate * (mean[i] + momentum * velocity[i]);
    }
}

struct optimiser_reach drift_reach(const struct drift *drift)
{
    return (struct optimiser_reach){.rate = drift->options.rate / (1 - drift->options.momentum)};
}
