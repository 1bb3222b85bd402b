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

unsigned momentum_step(float *m, float *sum, unsigned n, float mu, bool nesterov)
{
    unsigned left_out = 0;
    if (nesterov) {
        for (unsigned i = 0; i < n; i++) {
            const float g = momentum_finite(sum[i], &left_out);
            m[i] = momentum_finite(mu * (m[i] + g), &left_out);
            sum[i] = m[i] + g;
        }
    } else {
        for (unsigned i = 0; i < n; i++) {
            const float g = momentum_finite(sum[i], &left_out);
            m[i] = momentum_finite(mu * m[i] + g, &left_out);
            sum[i] = m[i];
        }
    }
    return left_out;
}

unsigned momentum_undo(float *m, float *sum, unsigned n, float mu, bool nesterov)
{
    unsigned left_out = 0;
    unsigned dropped = 0;
    for (unsigned i = 0; i < n; i++) {
        const float g = momentum_finite(sum[i], &left_out);
        const float before = nesterov ? m[i] / mu - g : (m[i] - g) / mu;
        sum[i] = nesterov ? m[i] + g : m[i];
        m[i] = momentum_finite(before, &dropped); /* mu = 0 gives no number */
    }
    return left_out;
}
