#include "kernels/cpu/stats.h"

/* A double's exponent of 0 is stored as this. */
enum { BIAS = 1023 };

/* Terms of the series in stats_log(): the first one left out is below 2^-60. */
enum { LOG_TERMS = 12 };

#define LN2 0x1.62e42fefa39efp-1
#define SQRT2 0x1.6a09e667f3bcdp+0

struct stats_lanes stats_lanes_none(void)
{
    return (struct stats_lanes){.product = {1, 1, 1, 1, 1, 1, 1, 1}, .least = UINT32_MAX};
}

struct stats stats_none(void)
{
    return (struct stats){.mantissa = 1, .least = UINT32_MAX};
}

/* Moves the exponent of a positive number of at least 1 out of it. */
static void stats_normalise(double *mantissa, int64_t *exponent)
{
    uint64_t bits;
    memcpy(&bits, mantissa, sizeof bits);
    *exponent += (int64_t)(bits >> 52 & 0x7ff) - BIAS;
    bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
    memcpy(mantissa, &bits, sizeof bits);
}

static double stats_tree(const double lane[STATS_LANES])
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

struct stats stats_fold(const struct stats_lanes *lanes)
{
    struct stats stats = {.count = lanes->count,
        .sum = stats_tree(lanes->sum),
        .sum_abs = stats_tree(lanes->sum_abs),
        .sum_squares = stats_tree(lanes->sum_squares),
        .mantissa = 1,
        .exponent = -(int64_t)lanes->count * BIAS,
        .most = lanes->most,
        .least = lanes->least};
    for (unsigned l = 0; l < STATS_LANES; l++) {
        double product = lanes->product[l];
        stats_normalise(&product, &stats.exponent);
        stats.mantissa *= product;
        stats.exponent += (int64_t)lanes->exponent[l];
    }
    stats_normalise(&stats.mantissa, &stats.exponent);
    return stats;
}

struct stats stats_chunk(
    const struct stats_ops *ops, const float *x, unsigned length, uint32_t least, bool logarithms)
{
    const unsigned rest = length % STATS_LANES;
    struct stats_lanes lanes = stats_lanes_none();
    ops->add(&lanes, x, length - rest, least, logarithms);
    if (rest != 0) {
        float tail[STATS_LANES] = {0}; /* zeros do not reach the bound */
        memcpy(tail, x + length - rest, rest * sizeof *tail);
        ops->add(&lanes, tail, STATS_LANES, least, logarithms);
    }
    return stats_fold(&lanes);
}

void stats_join(struct stats *total, const struct stats *next)
{
    total->count += next->count;
    total->sum += next->sum;
    total->sum_abs += next->sum_abs;
    total->sum_squares += next->sum_squares;
    total->mantissa *= next->mantissa;
    total->exponent += next->exponent;
    stats_normalise(&total->mantissa, &total->exponent);
    total->most = next->most > total->most ? next->most : total->most;
    total->least = next->least < total->least ? next->least : total->least;
}

/* ln m = 2 atanh((m - 1) / (m + 1)), a series in s of at most 0.172 for m around 1. */
double stats_log(const struct stats *stats)
{
    const bool halve = stats->mantissa > SQRT2;
    const double m = halve ? stats->mantissa / 2 : stats->mantissa;
    const double exponent = (double)(stats->exponent + halve);
    const double s = (m - 1) / (m + 1);
    double series = 0;
    for (int term = LOG_TERMS; term >= 0; term--) {
        series = series * (s * s) + 1.0 / (2 * term + 1);
    }
    return exponent * LN2 + 2 * s * series;
}

static bool plain_supported(void)
{
    return true;
}

static void plain_add(
    struct stats_lanes *lanes, const float *x, unsigned length, uint32_t least, bool logarithms)
{
    (void)logarithms; /* a scalar loop saves little without them */
    for (unsigned i = 0; i < length; i++) {
        if (select_key(x[i]) >= least) {
            stats_lane(lanes, i % STATS_LANES, x[i]);
        }
    }
}

/* Signed, as SSE2 compares signed integers only. */
static unsigned plain_count(const float *x, unsigned length, uint32_t least)
{
    const int32_t bound = (int32_t)least;
    unsigned count = 0;
    for (unsigned i = 0; i < length; i++) {
        count += (int32_t)select_key(x[i]) >= bound;
    }
    return count;
}

static const struct stats_ops stats_plain = {
    .name = "plain", .supported = plain_supported, .add = plain_add, .count = plain_count};

#ifdef __x86_64__
extern const struct stats_ops stats_avx2;
extern const struct stats_ops stats_avx512;
#endif

const struct stats_ops *const stats_table[] = {
    &stats_plain,
#ifdef __x86_64__
    &stats_avx2,
    &stats_avx512,
#endif
    NULL,
};

const struct stats_ops *stats_best(void)
{
    const struct stats_ops *best = &stats_plain;
    for (size_t i = 0; stats_table[i] != NULL; i++) {
        best = stats_table[i]->supported() ? stats_table[i] : best;
    }
    return best;
}
