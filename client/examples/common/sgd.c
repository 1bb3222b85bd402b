#include "sgd.h"

#include <stdlib.h>

struct sgd {
    struct sgd_options options;
    const struct tensor *tensors;
    size_t count;
    float **velocity;
};

struct sgd *sgd_create(
    const struct sgd_options *options, const struct tensor *tensors, size_t count)
{
    struct sgd *sgd = calloc(1, sizeof *sgd);
    if (!sgd) {
        return NULL;
    }
    sgd->options = *options;
    sgd->tensors = tensors;
    sgd->count = count;
    sgd->velocity = calloc(count, sizeof *sgd->velocity);
    if (!sgd->velocity) {
        sgd_destroy(sgd);
        return NULL;
    }
    for (size_t t = 0; t < count; t++) {
        sgd->velocity[t] = calloc(tensor_size(&tensors[t]), sizeof(float));
        if (!sgd->velocity[t]) {
            sgd_destroy(sgd);
            return NULL;
        }
    }
    return sgd;
}

void sgd_destroy(struct sgd *sgd)
{
    if (!sgd) {
        return;
    }
    for (size_t t = 0; sgd->velocity && t < sgd->count; t++) {
        free(sgd->velocity[t]);
    }
    free(sgd->velocity);
    free(sgd);
}

float sgd_rate(const struct sgd_options *options, uint64_t step)
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

void sgd_apply(struct sgd *sgd, size_t tensor, const float *update, float rate)
{
    const size_t size = tensor_size(&sgd->tensors[tensor]);
    const int is_bias = sgd->tensors[tensor].dims == 1;
    const int corrected = sgd->options.corrected;
    const float momentum = corrected ? 0 : sgd->options.momentum;
    const float decay = is_bias     ? 0
                        : corrected ? sgd->options.weight_decay / (1 - sgd->options.momentum)
                                    : sgd->options.weight_decay;
    float *parameter = sgd->tensors[tensor].values, *velocity = sgd->velocity[tensor];

    for (size_t i = 0; i < size; i++) {
        velocity[i] = momentum * velocity[i] + update[i] + decay * parameter[i];
        parameter[i] -= rate * velocity[i];
    }
}
