#include "kernels/cpu/momentum.h"

#include <math.h>

#include "kernels/cpu/kernels.h"

/* Zero instead of what is not finite, which is counted. Selects, so that loops vectorise. */
static inline float momentum_finite(float value, unsigned *left_out)
{
    const bool finite = fabsf(value) < KERNEL_FINITE_LIMIT;
    *left_out += !finite;
    return finite ? value : 0;
}

unsigned momentum_step(float *restrict m, const float *restrict g, float *restrict sum, unsigned n,
    float mu, bool nesterov)
{
    unsigned left_out = 0;
    for (unsigned i = 0; nesterov && i < n; i++) {
        const float added = momentum_finite(g[i], &left_out);
        const float moved = momentum_finite(mu * (m[i] + added), &left_out);
        m[i] = moved;
        sum[i] = moved + added;
    }
    for (unsigned i = 0; !nesterov && i < n; i++) {
        const float added = momentum_finite(g[i], &left_out);
        const float moved = momentum_finite(mu * m[i] + added, &left_out);
        m[i] = moved;
        sum[i] = moved;
    }
    return left_out;
}

unsigned momentum_undo(float *restrict m, const float *restrict g, float *restrict sum, unsigned n,
    float mu, bool nesterov)
{
    unsigned left_out = 0;
    unsigned dropped = 0;
    for (unsigned i = 0; i < n; i++) {
        const float added = momentum_finite(g[i], &left_out);
        const float before = nesterov ? m[i] / mu - added : (m[i] - added) / mu;
        sum[i] = nesterov ? m[i] + added : m[i];
        m[i] = momentum_finite(before, &dropped); /* mu = 0 gives no number */
    }
    return left_out;
}
