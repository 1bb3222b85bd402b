#include "kernels/base/wide.h"
#include "kernels/cpu/plain.h"

WIDE_BODY void add(float *acc, const float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        acc[i] += x[i];
    }
}

WIDE static void add_wide(float *acc, const float *x, uint64_t n)
{
    add(acc, x, n);
}

void dense_add(float *acc, const float *x, uint64_t n)
{
    if (wide_is_there()) {
        add_wide(acc, x, n);
    } else {
        add(acc, x, n);
    }
}

WIDE_BODY void scale(float *x, uint64_t n, float factor)
{
    for (uint64_t i = 0; i < n; i++) {
        x[i] *= factor;
    }
}

WIDE static void scale_wide(float *x, uint64_t n, float factor)
{
    scale(x, n, factor);
}

void dense_scale(float *x, uint64_t n, float factor)
{
    if (wide_is_there()) {
        scale_wide(x, n, factor);
    } else {
        scale(x, n, factor);
    }
}
