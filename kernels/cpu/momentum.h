/*
 * Momentum correction (Deep Gradient Compression, Lin et al. 2018): with gradient g and momentum m,
 *
 *     m = mu * m + g, then v += m;    Nesterov: m = mu * (m + g), then v += m + g.
 *
 * The residual v takes what an optimiser's velocity would have been, so the optimiser itself runs
 * without momentum. Internal to kernels/cpu and its tests.
 *
 * A gradient element that is not finite (KERNEL_FINITE_LIMIT) counts as 0. A momentum that grows
 * beyond that limit starts again at 0, and counts as not finite.
 */
#ifndef ADTOPK_KERNELS_MOMENTUM_H
#define ADTOPK_KERNELS_MOMENTUM_H

#include <stdbool.h>

struct momentum_rule {
    float mu; /* in [0, 1) */
    bool nesterov;
};

/* One implementation; all give the same bits. */
struct momentum_ops {
    const char *name;
    bool (*supported)(void);

    /* One step of n elements with gradient g. sum: on return what v grows by. No two arrays
     * overlap. Returns the number of elements that are not finite. */
    unsigned (*step)(struct momentum_rule rule, float *restrict m, const float *restrict g,
        float *restrict sum, unsigned n);

    /* Takes a step back. m becomes what it was before the step; the error is at most the step's own
     * rounding. With mu = 0 nothing depends on m, and it becomes 0. sum: what v shrinks by, the
     * same bits that it grew by. */
    unsigned (*undo)(struct momentum_rule rule, float *restrict m, const float *restrict g,
        float *restrict sum, unsigned n);
};

/** All implementations of this build, the best last, NULL-terminated. */
extern const struct momentum_ops *const momentum_table[];

/** The best one that this processor supports. */
const struct momentum_ops *momentum_best(void);

#endif
