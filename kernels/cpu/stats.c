#include "kernels/cpu/stats.h"

/* Terms of the series in stats_log(): the first one left out is below 2^-60. */
enum { LOG_TERMS = 12 };

#define LN2 0x1.62e42fefa39efp-1
#define SQRT2 0x1.6a09e667f3bcdp+0

struct stats_lanes stats_lanes_none(void)
{
    struct stats_lanes lanes = {.least = UINT32_MAX};
    for (unsigned l = 0; l < STATS_LANES; l++) {
        lanes.product[l] = 1;
    }
    return lanes;
}

static double stats_tree(const double lane[STATS_LANES])
{
    double sum[STATS_LANES];
    memcpy(sum, lane, sizeof sum);
    for (unsigned half = STATS_LANES / 2; half > 0; half /= 2) {
        for (unsigned l = 0; l < half; l++) {
            sum[l] += sum[l + half];
        }
    }
    return sum[0];
}

struct stats stats_fold(const struct stats_lanes *lanes)
{
    struct stats stats = {.count = lanes->count,
        .sum = stats_tree(lanes->sum),
        .sum_abs = stats_tree(lanes->sum_abs),
        .sum_squares = stats_tree(lanes->sum_squares),
        .mantissa = 1,
        .exponent = -(int64_t)lanes->count * STATS_BIAS,
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

/* The elements behind the last full set of lanes, and zeros, which reach no bound. */
static unsigned stats_rest(float rest[STATS_LANES], const float *x, unsigned length)
{
    const unsigned whole = length - length % STATS_LANES;
    memset(rest, 0, STATS_LANES * sizeof *rest);
    memcpy(rest, x + whole, (length - whole) * sizeof *rest);
    return whole;
}

void stats_add(const struct stats_ops *ops, struct stats_lanes *lanes, const float *x,
    unsigned length, unsigned need)
{
    float rest[STATS_LANES];
    const unsigned whole = stats_rest(rest, x, length);
    ops->add(lanes, x, whole, need);
    if (whole < length) {
        ops->add(lanes, rest, STATS_LANES, need);
    }
}

struct stats stats_tail(
    const struct stats_ops *ops, const float *x, unsigned length, uint32_t least, bool squares)
{
    struct stats_lanes lanes = stats_lanes_none();
    float rest[STATS_LANES];
    const unsigned whole = stats_rest(rest, x, length);
    ops->tail(&lanes, x, whole, least, squares);
    if (whole < length) {
        ops->tail(&lanes, rest, STATS_LANES, least, squares);
    }
    return stats_fold(&lanes);
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

static bool stats_plain_supported(void)
{
    return true;
}

static void plain_tail(
    struct stats_lanes *lanes, const float *x, unsigned length, uint32_t least, bool squares)
{
    (void)squares;
    for (unsigned i = 0; i < length; i++) {
        if (select_key(x[i]) >= least) {
            stats_lane(lanes, i % STATS_LANES, x[i]);
        }
    }
}

/* A scalar loop saves little by leaving out statistics that nobody needs. */
static void stats_plain_add(
    struct stats_lanes *lanes, const float *x, unsigned length, unsigned need)
{
    (void)need;
    plain_tail(lanes, x, length, 1, true);
}

/* Signed, as SSE2 compares signed integers only. */
static unsigned stats_plain_count(const float *x, unsigned length, uint32_t least)
{
    const int32_t bound = (int32_t)least;
    unsigned count = 0;
    for (unsigned i = 0; i < length; i++) {
        count += (int32_t)select_key(x[i]) >= bound;
    }
    return count;
}

static const struct stats_ops stats_plain = {.name = "plain",
    .supported = stats_plain_supported,
    .add = stats_plain_add,
    .tail = plain_tail,
    .count = stats_plain_count};

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
