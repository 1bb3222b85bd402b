/*
 * Updates in the 16-bit type of their tensor.
 *
 * A value is rounded to the nearest f16 or bf16, ties to even. A magnitude beyond the largest
 * finite number of the type becomes that number. Infinity stays infinity, a NaN stays a NaN.
 *
 * What rounding cut off is a value's *rest*: the value less what it was rounded to. It is exact in
 * f32 for every value that is not beyond the type's range. A value that is not finite has none.
 */
#ifndef ADTOPK_KERNELS_NARROW_H
#define ADTOPK_KERNELS_NARROW_H

#include <stdint.h>

#include "kernels/base/dtype.h"
#include "kernels/base/parallel.h"

/* An update, and where its 16-bit form goes. Either `dense` or the list is there. */
struct narrow {
    enum dtype dtype; /* DTYPE_F16 or DTYPE_BF16 */
    uint64_t numel;
    const float *dense;    /* NULL: see the list */
    const uint32_t *index; /* elements, each at most once; all others are 0 */
    const float *value;
    uint64_t count;
    uint16_t *half; /* receives numel elements */
    float *shown;   /* receives `count` values, rounded alike and widened again; NULL: not wanted */
};

/** Fills `half` and `shown`. The result does not depend on the threads. */
void narrow_update(const struct narrow *narrow, const struct parallel *parallel);

/** Rounds one value, and widens it again. */
float narrow_value(float value, enum dtype dtype);

/** The rest of one value. */
float narrow_rest(float value, enum dtype dtype);

/** x[i] += the rest of value[i] * shrink * unscale, in this order. */
void narrow_add_rests(
    float *x, const float *value, uint64_t n, enum dtype dtype, float shrink, float unscale);

#endif
