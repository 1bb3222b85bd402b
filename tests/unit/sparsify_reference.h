/*
 * The rules of the sparsifiers in their plainest form: sorted magnitudes, double precision, sums in
 * plain order. A test includes this file once, after cmocka.h.
 */
#ifndef ADTOPK_TESTS_SPARSIFY_REFERENCE_H
#define ADTOPK_TESTS_SPARSIFY_REFERENCE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "daemon/sparsify/sparsifier.h"
#include "tests/unit/select_reference.h"

/* The state that rules keep between turns. */
struct memory {
    int seen, until_exact, tau; /* adtopk */
    double estimate;
    int stages, calls; /* sidco */
    double selected;
};

/* An input, its magnitudes in descending order, and the entries to select. */
struct plain {
    const float *x;
    uint64_t n, nonzeros, k;
    double density;
    double *sorted;
    bool close; /* a threshold is so near to a magnitude that rounding decides */
    struct ranked *list;
    uint64_t count;
};

static inline int descending(const void *left, const void *right)
{
    const double a = *(const double *)left;
    const double b = *(const double *)right;
    return a > b ? -1 : a < b;
}

static inline void plain_open(struct plain *plain, const float *x, uint64_t n, double density)
{
    const double share = floor((double)n * density + 1e-6);
    *plain = (struct plain){.x = x, .n = n, .density = density};
    plain->k = share < 1 ? 1 : (uint64_t)share;
    plain->sorted = allocate(n, sizeof *plain->sorted);
    plain->list = allocate(n, sizeof *plain->list);
    for (uint64_t i = 0; i < n; i++) {
        plain->sorted[i] = fabs((double)x[i]);
        plain->nonzeros += x[i] > 0 || x[i] < 0;
    }
    qsort(plain->sorted, n, sizeof *plain->sorted, descending);
}

static inline void plain_close(struct plain *plain)
{
    free(plain->sorted);
    free(plain->list);
}

/* Counts the magnitudes that are not zero and reach the threshold. */
static inline uint64_t plain_count(struct plain *plain, double threshold)
{
    uint64_t low = 0, high = plain->nonzeros;
    while (low < high) {
        const uint64_t middle = (low + high) / 2;
        if (plain->sorted[middle] >= threshold) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    for (uint64_t i = low > 0 ? low - 1 : 0; i < low + 1 && i < plain->nonzeros; i++) {
        const double off = fabs(plain->sorted[i] - threshold);
        plain->close = plain->close || (off > 0 && off < 1e-8 * threshold);
    }
    return low;
}

/* Selects the entries that exceed the threshold, or the `most` largest of them. */
static inline void plain_above(struct plain *plain, double threshold, uint64_t most)
{
    plain->count = 0;
    for (uint64_t i = 0; i < plain->n; i++) {
        const double magnitude = fabs((double)plain->x[i]);
        if (magnitude > threshold) {
            plain->list[plain->count++] = (struct ranked){
                .magnitude = magnitude, .position = (uint32_t)i, .value = plain->x[i]};
        }
    }
    qsort(plain->list, plain->count, sizeof *plain->list, by_rank);
    plain->count = plain->count < most ? plain->count : most;
    qsort(plain->list, plain->count, sizeof *plain->list, by_position);
}

/* Selects entries that reach the threshold and are not zero, at most `most`. */
static inline void plain_take(struct plain *plain, double threshold, uint64_t most)
{
    (void)plain_count(plain, threshold);
    plain_above(plain, threshold > 0 ? nextafter(threshold, 0) : 0, most);
}

/* Selects the k largest, also zeros. Returns the smallest of them. */
static inline double plain_top(struct plain *plain)
{
    for (uint64_t i = 0; i < plain->n; i++) {
        plain->list[i] = (struct ranked){
            .magnitude = fabs((double)plain->x[i]), .position = (uint32_t)i, .value = plain->x[i]};
    }
    plain->count = plain->k;
    reference_select(plain->list, plain->n, plain->k);
    return plain->sorted[plain->k - 1];
}

/* floor(k * factor), although a factor like 1.3 is slightly inexact. */
static inline uint64_t times(const struct plain *plain, double factor)
{
    const uint64_t count = (uint64_t)((double)plain->k * factor + 1e-6);
    return count < plain->n ? count : plain->n;
}

/* ------------------------------------------------------------------ distributions */

/* Solves for z: a standard normal variable exceeds z with probability `tail`. Newton's method from
 * 0 on never overshoots, because the function is convex. */
static inline double normal_tail(double tail)
{
    double z = 0;
    for (int i = 0; i < 200; i++) {
        z += (erfc(z * M_SQRT1_2) / 2 - tail) / (exp(-z * z / 2) / sqrt(2 * M_PI));
    }
    return z;
}

/* The probability that a gamma variable exceeds x. It sums the density at x + s over s = exp(v -
 * exp(-v)). With this substitution the trapezoid rule is exact to double precision. */
static inline double gamma_exceeds(double shape, double x, double log_gamma)
{
    double sum = 0;
    const double h = 1.0 / 12;
    for (double v = -4.5; v < 7; v += h) {
        const double small = exp(-v);
        const double s = exp(v - small);
        const double t = x + s;
        sum += h * exp((shape - 1) * log(t) - t - log_gamma) * s * (1 + small);
    }
    return sum;
}

static inline double gamma_tail(double shape, double tail)
{
    const double log_gamma = lgamma(shape);
    double low = 0, high = 20 * shape + 200;
    for (int i = 0; i < 56; i++) {
        const double middle = (low + high) / 2;
        if (gamma_exceeds(shape, middle, log_gamma) > tail) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* ------------------------------------------------------------------ the rules */

/* start: the place at which the sample begins, of `starts` places. */
static inline void plain_dgc(struct plain *plain, double share, uint64_t random)
{
    const double least = ceil(2 / plain->density);
    uint64_t stride = 1, start = 0, samples = 0;
    double *sample = allocate(plain->n, sizeof *sample);
    if ((double)plain->n > least) {
        const double need = fmax(ceil((double)plain->n * share), least);
        stride = (uint64_t)ceil((double)plain->n / need / 32) * 32 + 1;
        const uint64_t starts = stride < plain->n ? stride : plain->n;
        start = (uint64_t)(ldexpl((long double)random, -64) * (long double)starts);
    }
    for (uint64_t i = start; i < plain->n; i += stride) {
        sample[samples++] = fabs((double)plain->x[i]);
    }
    qsort(sample, samples, sizeof *sample, descending);
    double threshold = sample[(uint64_t)ceil((double)samples * plain->density) - 1];
    free(sample);
    for (int round = 0;
         round < 10 && (double)plain_count(plain, threshold) < 0.8 * (double)plain->k; round++) {
        threshold *= 0.8;
    }
    const bool over = (double)plain_count(plain, threshold) > 1.3 * (double)plain->k + 1e-6;
    plain_take(plain, threshold, over ? plain->k : plain->n);
}

/* The threshold with which Gaussian-k begins. */
static inline double plain_gaussian(const struct plain *plain)
{
    double mean = 0, variance = 0, square = 0;
    for (uint64_t i = 0; i < plain->n; i++) {
        mean += (double)plain->x[i] / (double)plain->n;
    }
    for (uint64_t i = 0; i < plain->n; i++) {
        const double x = (double)plain->x[i];
        variance += (x - mean) * (x - mean) / (double)plain->n;
        square += x * x / (double)plain->n;
    }
    const double sigma = variance > 1e-10 * square ? sqrt(variance) : 0;
    return fabs(mean) + sigma * normal_tail(plain->density / 2);
}

static inline void plain_gaussiank(struct plain *plain)
{
    const double k = (double)plain->k;
    double few = -1, many = -1; /* thresholds that selected too few and too many entries */
    double threshold = plain_gaussian(plain);
    for (int adjusted = 0; adjusted <= 5; adjusted++) {
        const double count = (double)plain_count(plain, threshold);
        if (count > 4 * k / 3) {
            many = threshold;
        } else if (count < 2 * k / 3) {
            few = threshold;
        } else {
            plain_take(plain, threshold, plain->n);
            return;
        }
        if (adjusted < 5) {
            threshold *= few < 0 ? 1.5 : 0.5;
            threshold = few >= 0 && many >= 0 ? (few + many) / 2 : threshold;
        }
    }
    plain_take(plain, many >= 0 ? many : threshold, times(plain, 4.0 / 3));
}

static inline double plain_mean(const struct plain *plain)
{
    double sum = 0;
    for (uint64_t i = 0; i < plain->n; i++) {
        sum += fabs((double)plain->x[i]);
    }
    return sum / (double)plain->n;
}

static inline double between(const struct plain *plain, double r)
{
    const double mean = plain_mean(plain);
    return fmin(mean + r * (plain->sorted[0] - mean), plain->sorted[0]);
}

static inline void plain_redsync(struct plain *plain)
{
    double r = 0.5, half = 0.25;
    for (; half > 0.05; half /= 2) { /* r = 1/2, then 1/4 or 3/4, then an eighth more or less */
        const uint64_t count = plain_count(plain, between(plain, r));
        if (half < 0.1 || (count > plain->k && count < 2 * plain->k)) {
            break;
        }
        r += count <= plain->k ? -half : half;
    }
    plain_take(plain, between(plain, r), times(plain, 2 - 1 / (double)plain->k));
}

static inline void plain_redsync_trim(struct plain *plain)
{
    const double rs[] = {0.8, 0.6, 0.4, 0.2, 0};
    int i = 0;
    while (i < 4 && plain_count(plain, between(plain, rs[i])) < plain->k) {
        i++;
    }
    plain_take(plain, between(plain, rs[i]), plain->k);
}

static inline void plain_threshold(struct plain *plain, double value)
{
    plain_above(plain, value, plain->k);
}

/* ------------------------------------------------------------------ sidco */

/* The threshold that, by the table of formulas, `q` of the first `count` sorted magnitudes should
 * reach. It is for the `first` stage or a later one. */
static inline double plain_fit(
    const struct plain *plain, uint64_t count, enum sidco_fit fit, bool first, double q)
{
    const double min = first ? 0 : plain->sorted[count - 1];
    double mean = 0, variance = 0, square = 0, mean_log = 0;
    for (uint64_t i = 0; i < count; i++) {
        mean += (plain->sorted[i] - min) / (double)count;
        mean_log += log(plain->sorted[i]) / (double)count;
        square += plain->sorted[i] * plain->sorted[i] / (double)count;
    }
    for (uint64_t i = 0; i < count; i++) {
        const double off = plain->sorted[i] - min - mean;
        variance += off * off / (double)count;
    }
    if (variance < 1e-10 * square) {
        return mean + min;
    }
    if (fit == SIDCO_EXPONENTIAL) {
        return -mean * log(q) + min;
    }
    if (fit == SIDCO_GAMMA && first) {
        const double s = log(mean) - mean_log;
        const double shape = (3 - s + sqrt((s - 3) * (s - 3) + 24 * s)) / (12 * s);
        return mean / shape * gamma_tail(shape, q);
    }
    const double a = 0.5 * mean * (mean * mean / variance + 1);
    const double power = 0.5 * (mean * mean / variance - 1);
    return (fabs(power) < 1e-12 ? -a * log(q) : a * (1 - pow(q, power)) / power) + min;
}

static inline double plain_stages(struct plain *plain, enum sidco_fit fit, int stages)
{
    const double rho = (double)plain->k / (double)plain->nonzeros;
    const double most = plain->sorted[0];
    if (stages == 1 || rho >= 0.25) {
        return fmin(plain_fit(plain, plain->nonzeros, fit, true, rho), most);
    }
    double threshold = fmin(plain_fit(plain, plain->nonzeros, fit, true, 0.25), most);
    for (int stage = 1; stage < stages; stage++) {
        const double q = pow(rho / 0.25, 1.0 / (stages - 1));
        const uint64_t count = plain_count(plain, threshold);
        threshold = fmin(plain_fit(plain, count, fit, false, q), most);
    }
    return threshold;
}

static inline void plain_sidco(struct plain *plain, enum sidco_fit fit, struct memory *memory)
{
    const int most = (int)fmax(1, ceil(log(plain->density) / log(0.5)));
    const bool first = memory->stages == 0;
    double threshold = 0;
    memory->stages += first;
    if (plain->k < plain->nonzeros) {
        threshold = plain_stages(plain, fit, memory->stages);
        while (first && memory->stages < most &&
               (double)plain_count(plain, threshold) < 0.8 * (double)plain->k) {
            threshold = plain_stages(plain, fit, ++memory->stages);
        }
    }
    plain_take(plain, threshold, times(plain, 1.5));
    memory->selected += (double)plain->count / (double)plain->k;
    if (++memory->calls == 5) {
        memory->stages -= memory->selected > 6 && memory->stages > 1;
        memory->stages += memory->selected < 4 && memory->stages < most;
        memory->calls = 0;
        memory->selected = 0;
    }
}

/* ------------------------------------------------------------------ adtopk's estimate */

static inline void plain_estimate(struct plain *plain, int start, struct memory *memory)
{
    if (memory->seen++ >= 15 && --memory->until_exact > 0) {
        plain_above(plain, memory->estimate, times(plain, 1.5));
        return;
    }
    const double eps = memory->estimate / 10;
    const double least = plain_top(plain);
    const double d = fabs(memory->estimate - least);
    if (memory->seen <= 15) {
        memory->tau = start;
    } else if (d < eps / 2) {
        memory->tau += 2;
    } else if (d < eps) {
        memory->tau += 1;
    } else if (d > 2 * eps) {
        memory->tau -= 2;
    } else if (d > eps) {
        memory->tau -= 1;
    }
    memory->tau = memory->tau < 5 ? 5 : memory->tau;
    memory->until_exact = memory->tau;
    memory->estimate = least;
}

#endif
