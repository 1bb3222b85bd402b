/*
 * Keeps the rounding error of a sum that is sent on in two bytes. The error itself, the *rest*,
 * takes two bytes per element.
 *
 * A sum of any numbers is rounded to the nearest bf16, halves away from zero. The bits of the sum
 * are then the bits of the rounded value plus the sum's own lower half, read as a signed number. So
 * the lower half and the rounded value restore the sum to the last bit.
 *
 * A sum of two bf16, or of two f16, is rounded to the nearest of its type. Its rounding error is
 * itself a number of that type, and is kept as such. This also holds where f16 ends at 65504.
 * (Dekker, "A floating-point technique for extending the available precision", 1971. Rounding to
 * f32 first changes nothing, because f32 has more than twice the bits: Figueroa, "When is double
 * rounding innocuous?", 1995.)
 *
 * A sum that is not finite, or becomes so by rounding, has no rest.
 */
#ifndef ADTOPK_KERNELS_REST_H
#define ADTOPK_KERNELS_REST_H

#include "kernels/base/convert.h"
#include "kernels/base/quantise.h"
#include "kernels/cpu/narrow.h"

#include <stddef.h>

/* The rests of some elements of a tensor. */
struct rest {
    const float *rounded; /* the rounded sums, from the first of the elements on; NULL: see
                           * `type` */
    const int16_t *low;   /* the sums' lower halves; the bits of the rests, if `rounded` is NULL */
    enum quantisation type; /* QUANTISE_BF16 or QUANTISE_F16 */
    uint64_t first, count;  /* elements first..first + count - 1 of the tensor */
    float unscale;          /* the rest times this was cut off the contributions */
    float shrink;       /* `rounded` times this was rounded; nearly so if it is no power of 2. Of
                         * `exact`: the rest times this has no loss scale */
    const float *exact; /* not NULL, and the two above are: updates before narrow.h rounded them,
                         * from the first of the elements on */
    enum dtype narrow;  /* their tensor's type */
};

/** Rounds n sums, and writes their lower halves. */
void rest_round(float *sum, int16_t *low, size_t n);

/** sum += x, n of bf16 or f16 each as `type` says, rounded to one; writes the rests' bits. */
void rest_sum(float *sum, const float *x, int16_t *low, size_t n, enum quantisation type);

/** Adds to x, elements first..first + n - 1 of the tensor, the rests that lie among them. */
void rest_add(const struct rest *rest, uint64_t first, size_t n, float *x);

#endif
