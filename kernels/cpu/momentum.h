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

/** One step of n elements. sum: the gradients; on return what v grows by. Returns the number of
 * elements that are not finite. */
unsigned momentum_step(float *m, float *sum, unsigned n, float mu, bool nesterov);

/** Takes a step back: m becomes what it was before the step, to rounding (what mu multiplies is
 * off by no more than the step's own rounding); with mu = 0, where nothing depends on it, 0. sum:
 * the same gradients; on return what v shrinks by, the same bits. */
unsigned momentum_undo(float *m, float *sum, unsigned n, float mu, bool nesterov);

#endif
