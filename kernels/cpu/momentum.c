#include "kernels/cpu/momentum.h"

#include <math.h>
#include <stddef.h>

#include "kernels/cpu/plain.h"

/* The bodies are compiled once for every implementation. */
#define BODY static inline __attribute__((always_inline))

/* Replaces what is not finite by zero and counts it. Selects instead of branches, so that loops
 * vectorise. */
BODY float momentum_finite(float value, unsigned *left_out)
{
    const bool finite = fabsf(value) < KERNEL_FINITE_LIMIT;
    *left_out += !finite;
    return finite ? value : 0;
}

BODY unsigned momentum_step(struct momentum_rule rule, float *restrict m, const float *restrict g,
    float *restrict sum, unsigned n)
{
    unsigned left_out = 0;
    for (unsigned i = 0; rule.nesterov && i < n; i++) {
        const float added = momentum_finite(g[i], &left_out);
        const float moved = momentum_finite(rule.mu * (m[i] + added), &left_out);
        m[i] = moved;
        sum[i] = moved + added;
    }
    for (unsigned i = 0; !rule.nesterov && i < n; i++) {
        const float added = momentum_finite(g[i], &left_out);
        const float moved = momentum_finite(rule.mu * m[i] + added, &left_out);
        m[i] = moved;
        sum[i] = moved;
    }
    return left_out;
}

BODY unsigned momentum_undo(struct momentum_rule rule, float *restrict m, const float *restrict g,
    float *restrict sum, unsigned n)
{
    unsigned left_out = 0;
    unsigned dropped = 0;
    for (unsigned i = 0; i < n; i++) {
        const float added = momentum_finite(g[i], &left_out);
        const float before = rule.nesterov ? m[i] / rule.mu - added : (m[i] - added) / rule.mu;
        sum[i] = rule.nesterov ? m[i] + added : m[i];
        m[i] = momentum_finite(before, &dropped); /* mu = 0 gives no number */
    }
    return left_out;
}

static bool momentum_plain_supported(void)
{
    return true;
}

static unsigned plain_step(struct momentum_rule rule, float *restrict m, const float *restrict g,
    float *restrict sum, unsigned n)
{
    return momentum_step(rule, m, g, sum, n);
}

static unsigned plain_undo(struct momentum_rule rule, float *restrict m, const float *restrict g,
    float *restrict sum, unsigned n)
{
    return momentum_undo(rule, m, g, sum, n);
}

static const struct momentum_ops momentum_plain = {
    .name = "plain", .supported = momentum_plain_supported, .step = plain_step, .undo = plain_undo};

#ifdef __x86_64__
#define AVX2 __attribute__((target("avx2")))

static bool momentum_avx2_supported(void)
{
    return __builtin_cpu_supports("avx2");
}

AVX2 static unsigned avx2_step(struct momentum_rule rule, float *restrict m,
    const float *restrict g, float *restrict sum, unsigned n)
{
    return momentum_step(rule, m, g, sum, n);
}

AVX2 static unsigned avx2_undo(struct momentum_rule rule, float *restrict m,
    const float *restrict g, float *restrict sum, unsigned n)
{
    return momentum_undo(rule, m, g, sum, n);
}

static const struct momentum_ops momentum_avx2 = {
    .name = "avx2", .supported = momentum_avx2_supported, .step = avx2_step, .undo = avx2_undo};
#endif

const struct momentum_ops *const momentum_table[] = {
    &momentum_plain,
#ifdef __x86_64__
    &momentum_avx2,
#endif
    NULL,
};

const struct momentum_ops *momentum_best(void)
{
    const struct momentum_ops *best = &momentum_plain;
    for (size_t i = 0; momentum_table[i] != NULL; i++) {
        best = momentum_table[i]->supported() ? momentum_table[i] : best;
    }
    return best;
}
