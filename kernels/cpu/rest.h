/*
 * What rounding cuts off a sum that travels on in two bytes, kept in two bytes an element.
 *
 * A sum of any numbers is rounded to the nearest bf16, halves away from zero. The bits of the sum
 * are then those of what it became plus its own lower half, read as a signed number: with that, and
 * with what it became, the sum is back to the last bit.
 *
 * A sum of two bf16, or of two f16, rounded to the nearest of them, differs from the exact sum by
 * one of them, which is kept itself. (Dekker, "A floating-point technique for extending the
 * available precision", 1971. Rounding to f32 first changes nothing, as that has more than twice
 * the bits: Figueroa, "When is double rounding innocuous?", 1995.) It also does where f16 ends at
 * 65504.
 *
 * A sum that is not finite, or becomes so, has no rest.
 */
#ifndef ADTOPK_KERNELS_REST_H
#define ADTOPK_KERNELS_REST_H

#include "kernels/cpu/convert.h"
#include "kernels/cpu/quantise.h"

#include <stddef.h>

/* The rests of some elements of a tensor. */
struct rest {
    const float *rounded; /* what the sums became, from the first of them on; NULL: see type */
    const int16_t *low;   /* the sums' lower halves; the bits of the rests, if `rounded` is NULL */
    enum quantisation type; /* ... bf16 or f16 */
    uint64_t first, count;  /* elements first..first + count - 1 of the tensor */
    float unscale;          /* what is left of a sum times this was cut off the contributions */
};

/** Rounds n sums, and writes their lower halves. */
void rest_round(float *sum, int16_t *low, size_t n);

/** sum += x, n of bf16 or f16 each as `type` says, rounded to one; writes the rests' bits. */
void rest_sum(float *sum, const float *x, int16_t *low, size_t n, enum quantisation type);

/** Adds to x, elements first..first + n - 1 of the tensor, the rests that lie among them. */
void rest_add(const struct rest *rest, uint64_t first, size_t n, float *x);

#endif
