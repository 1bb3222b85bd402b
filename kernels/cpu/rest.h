/*
 * What rounding cuts off a sum that travels on as bf16, kept in two bytes an element.
 *
 * A sum is rounded to the nearest bf16, halves away from zero. The bits of the sum are then those
 * of what it became plus its own lower half, read as a signed number: with that, and with what it
 * became, the sum is back to the last bit. A sum that is not finite, or becomes so, has no rest.
 */
#ifndef ADTOPK_KERNELS_REST_H
#define ADTOPK_KERNELS_REST_H

#include "kernels/cpu/convert.h"

#include <stddef.h>

/* The rests of some elements of a tensor. */
struct rest {
    const float *rounded;  /* what the sums became, from the first of them on */
    const int16_t *low;    /* their lower halves */
    uint64_t first, count; /* elements first..first + count - 1 of the tensor */
    float unscale;         /* what is left of a sum times this was cut off the contributions */
};

/** Rounds n sums, and writes their lower halves. */
void rest_round(float *sum, int16_t *low, size_t n);

/** Adds to x, elements first..first + n - 1 of the tensor, the rests that lie among them. */
void rest_add(const struct rest *rest, uint64_t first, size_t n, float *x);

#endif
