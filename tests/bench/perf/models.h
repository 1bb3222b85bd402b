/*
 * The shapes of real models: the tensors that trainers register. Public facts about the
 * architectures; no weights, no data.
 */
#ifndef PERF_MODELS_H
#define PERF_MODELS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/sparsify/sparsifier.h"

#define MODELS_NAME_SIZE 48

extern const char *const models_names[]; /* ends with NULL */

struct model_tensor {
    char name[MODELS_NAME_SIZE];
    struct tensor_shape shape;
};

/** Tensor number `index` of a model, which is an index of models_names. False: it has fewer. */
bool models_tensor(unsigned model, unsigned index, struct model_tensor *tensor);

#endif
