/*
 * The tensors of a gradient of a given size. They are those of a model of adtopk-perf, with the
 * first dimension of each scaled by one factor, at least to 1. So a gradient of 100 MB has as many
 * tensors as the model, with sizes as different, and with fibres and rows as long.
 */
#ifndef CLUSTER_SHAPES_H
#define CLUSTER_SHAPES_H

#include <stdint.h>

#include "tests/bench/perf/models.h"

#define SHAPES_MAX 1024

struct shapes {
    unsigned count;
    uint64_t elements; /* of all of them */
    struct model_tensor tensor[SHAPES_MAX];
};

/** The model of this name (a name of models_names) with about so many elements. NULL if no model
 * has that name, or without memory. Free with free(). */
struct shapes *shapes_new(const char *model, uint64_t elements);

uint64_t shapes_numel(const struct tensor_shape *shape);

#endif
