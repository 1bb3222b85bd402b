/*
 * Momentum correction (Deep Gradient Compression, Lin et al. 2018): with gradient g and momentum m,
 *
 *     m = mu * m + g, then v += m;    Nesterov: m = mu * (m + g), then v += m + g.
 *
 * The residual v takes what an optimiser's velocity would have been, so the optimiser itself runs
 * without momentum. Internal to kernels/cpu.
 *
 * A gradient element that is not finite (KERNEL_FINITE_LIMIT) counts as 0. A momentum that grows
 * beyond that limit starts again at 0, and counts as not finite.
 */
#ifndef ADTOPK_KERNELS_MOMENTUM_H
#define ADTOPK_KERNELS_MOMENTUM_H

#include <stdbool.h>

/** One step of n elements with gradient g. sum: on return what v grows by. No two arrays overlap.
 * Returns the number of elements that are not finite. */
unsigned momentum_step(float *restrict m, const float *restrict g, float *restrict sum, unsigned n,
    float mu, bool nesterov);

/** Takes a step back: m becomes what it was before the step, to rounding (what mu multiplies is
 * off by no more than the step's own rounding); with mu = 0, where nothing depends on it, 0. sum:
 * what v shrinks by, the bits that it grew by. */
unsigned momentum_undo(float *restrict m, const float *restrict g, float *restrict sum, unsigned n,
    float mu, bool nesterov);

#endif
