#include "kernels/cpu/plain.h"

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
