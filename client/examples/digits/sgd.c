#include "sgd.h"

#include <stdlib.h>

struct sgd {
    struct sgd_options options;
    float *velocity[MODEL_TENSORS];
};

struct sgd *sgd_create(const struct sgd_options *options)
{
    struct sgd *sgd = calloc(1, sizeof *sgd);
    if (!sgd) {
        return NULL;
    }
    sgd->options = *options;
    for (size_t t = 0; t < MODEL_TENSORS; t++) {
        sgd->velocity[t] = calloc(model_tensor_size(t), sizeof(float));
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
    for (size_t t = 0; t < MODEL_TENSORS; t++) {
        free(sgd->velocity[t]);
    }
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

void sgd_apply(struct sgd *sgd, struct model *model, size_t tensor, const float *update, float rate)
{
    const size_t size = model_tensor_size(tensor);
    const int is_bias = model_tensor(tensor)->dims == 1;
    const float momentum = sgd->options.momentum;
    const float decay = is_bias ? 0 : sgd->options.weight_decay;
    float *parameter = model_parameters(model, tensor), *velocity = sgd->velocity[tensor];

    for (size_t i = 0; i < size; i++) {
        velocity[i] = momentum * velocity[i] + update[i] + decay * parameter[i];
        parameter[i] -= rate * velocity[i];
    }
}
