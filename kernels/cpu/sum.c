#include "kernels/cpu/kernels.h"

void sparse_scatter(float *dense, const struct view *view, const struct sparse *list)
{
    for (size_t i = 0; i < list->count; i++) {
        dense[view_element(view, list->position[i])] += list->value[i];
    }
}

void dense_add(float *acc, const float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        acc[i] += x[i];
    }
}

void dense_scale(float *x, uint64_t n, float factor)
{
    for (uint64_t i = 0; i < n; i++) {
        x[i] *= factor;
    }
}
