#include "optimiser.h"

#include <math.h>
#include <stdlib.h>

#define BETA1 0.9f
#define BETA2 0.999f
#define EPSILON 1e-8f

/* What the optimiser keeps of a tensor. */
struct moments {
    float *first;   /* SGD: the velocity */
    float *second;  /* AdamW; else NULL */
    float power[2]; /* AdamW: the betas to the power of the steps so far */
};

struct optimiser {
    struct optimiser_options options;
    const struct tensor *tensors;
    size_t count;
    struct moments *moments;
};

static int optimiser_allocate(struct optimiser *optimiser, size_t tensor)
{
    struct moments *moments = &optimiser->moments[tensor];
    const size_t size = tensor_size(&optimiser->tensors[tensor]);
    const int adamw = optimiser->options.kind == OPTIMISER_ADAMW;

    *moments = (struct moments){.power = {1, 1}};
    moments->first = calloc(size, sizeof(float));
    moments->second = adamw ? calloc(size, sizeof(float)) : NULL;
    return moments->first && (!adamw || moments->second) ? 0 : -1;
}

struct optimiser *optimiser_create(
    const struct optimiser_options *options, const struct tensor *tensors, size_t count)
{
    struct optimiser *optimiser = calloc(1, sizeof *optimiser);
    if (!optimiser) {
        return NULL;
    }
    optimiser->options = *options;
    optimiser->tensors = tensors;
    optimiser->count = count;
    optimiser->moments = calloc(count, sizeof *optimiser->moments);
    for (size_t t = 0; t < count; t++) {
        if (!optimiser->moments || optimiser_allocate(optimiser, t) != 0) {
            optimiser_destroy(optimiser);
            return NULL;
        }
    }
    return optimiser;
}

void optimiser_destroy(struct optimiser *optimiser)
{
    if (!optimiser) {
        return;
    }
    for (size_t t = 0; optimiser->moments && t < optimiser->count; t++) {
        free(optimiser->moments[t].first);
        free(optimiser->moments[t].second);
    }
    free(optimiser->moments);
    free(optimiser);
}

struct optimiser_state optimiser_state(struct optimiser *optimiser, size_t tensor)
{
    struct moments *moments = &optimiser->moments[tensor];
    return (struct optimiser_state){moments->first, moments->second, moments->power};
}

float optimiser_rate(const struct optimiser_options *options, uint64_t step)
{
    if (step < options->warmup) {
        return options->lr * (float)(step + 1) / (float)options->warmup;
    }
    if (step >= options->steps) {
        return 0;
    }
    const double left =
        (double)(options->steps - step) / (double)(options->steps - options->warmup);
    return options->lr * (float)left;
}

static float optimiser_decay(const struct optimiser *optimiser, size_t tensor)
{
    const int is_bias = optimiser->tensors[tensor].dims == 1;
    return is_bias ? 0 : optimiser->options.weight_decay;
}

static void apply_sgd(
    struct optimiser *optimiser, size_t tensor, float *parameters, const float *update, float rate)
{
    const struct optimiser_options *options = &optimiser->options;
    const size_t size = tensor_size(&optimiser->tensors[tensor]);
    const float momentum = options->corrected ? 0 : options->momentum;
    const float decay =
        optimiser_decay(optimiser, tensor) / (options->corrected ? 1 - options->momentum : 1);
    float *velocity = optimiser->moments[tensor].first;

    for (size_t i = 0; i < size; i++) {
        velocity[i] = momentum * velocity[i] + update[i] + decay * parameters[i];
        parameters[i] -= rate * velocity[i];
    }
}

static void apply_adamw(
    struct optimiser *optimiser, size_t tensor, float *parameters, const float *update, float rate)
{
    struct moments *moments = &optimiser->moments[tensor];
    const size_t size = tensor_size(&optimiser->tensors[tensor]);
    const float decay = optimiser_decay(optimiser, tensor);
    float *first = moments->first, *second = moments->second;

    moments->power[0] *= BETA1;
    moments->power[1] *= BETA2;
    const float corrects1 = 1 / (1 - moments->power[0]), corrects2 = 1 / (1 - moments->power[1]);
    for (size_t i = 0; i < size; i++) {
        first[i] = BETA1 * first[i] + (1 - BETA1) * update[i];
        second[i] = BETA2 * second[i] + (1 - BETA2) * update[i] * update[i];
        parameters[i] -= rate * (first[i] * corrects1 / (sqrtf(second[i] * corrects2) + EPSILON) +
                                    decay * parameters[i]);
    }
}

void optimiser_apply(
    struct optimiser *optimiser, size_t tensor, float *parameters, const float *update, float rate)
{
    if (optimiser->options.kind == OPTIMISER_ADAMW) {
        apply_adamw(optimiser, tensor, parameters, update, rate);
    } else {
        apply_sgd(optimiser, tensor, parameters, update, rate);
    }
}

void optimiser_forget(struct optimiser *optimiser)
{
    for (size_t t = 0; t < optimiser->count; t++) {
        struct moments *moments = &optimiser->moments[t];
        const size_t size = tensor_size(&optimiser->tensors[t]);
        for (size_t i = 0; i < size; i++) {
            moments->first[i] = 0;
        }
        for (size_t i = 0; moments->second && i < size; i++) {
            moments->second[i] = 0;
        }
        moments->power[0] = moments->power[1] = 1;
    }
}

struct optimiser_reach optimiser_reach(const struct optimiser *optimiser, size_t tensor, float rate)
{
    const struct optimiser_options *options = &optimiser->options;
    const struct moments *moments = &optimiser->moments[tensor];

    if (options->kind == OPTIMISER_ADAMW) {
        return (struct optimiser_reach){.rate = rate,
            .second_moment = moments->second,
            .correction = 1 - moments->power[1],
            .epsilon = EPSILON};
    }
    return (struct optimiser_reach){
        .rate = options->corrected ? rate : rate / (1 - options->momentum)};
}
