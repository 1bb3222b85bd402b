/*
 * The value types in double precision, by their plain definitions, for tests to compare with.
 */
#ifndef ADTOPK_TEST_VALUES_REFERENCE_H
#define ADTOPK_TEST_VALUES_REFERENCE_H

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The nearest multiple of 2^(e - bits), where 2^e <= |x| or e = least; ties to even. */
static inline double reference_round(double x, int bits, int least)
{
    int e = x == 0 ? least : ilogb(x);
    double unit = ldexp(1, (e > least ? e : least) - bits);

    return copysign(nearbyint(fabs(x) / unit) * unit, x);
}

static inline float reference_bf16(float x)
{
    return (float)reference_round((double)x, 7, -126); /* infinity lies beyond the largest value */
}

static inline float reference_f16(float x)
{
    double rounded = reference_round(fabs((double)x) < 65504 ? (double)x : 65504, 10, -14);

    return (float)copysign(fabs(rounded) < 65504 ? rounded : 65504, (double)x);
}

/* The largest bfloat16 of which this many multiples are finite. */
static inline double reference_step_max(int levels)
{
    double step = 0x1p128 / levels, unit = ldexp(1, ilogb(step) - 7);

    step = floor(step / unit) * unit;
    return step * levels < 0x1p128 ? step : step - unit;
}

/* The magnitude that a block with this many levels uses. */
static inline double reference_magnitude(float x, int levels)
{
    return isnan(x) ? 0 : fmin(fabs((double)x), levels * reference_step_max(levels));
}

/* The least bfloat16 of which this many multiples reach x. */
static inline double reference_step(double x, int levels)
{
    int e = x == 0 ? -126 : ilogb(x / levels);
    double unit = ldexp(1, (e > -126 ? e : -126) - 7);
    double step = (floor(x / levels / unit) - 1) * unit;

    while (levels * step < x) {
        step += unit;
    }
    return fmax(step, 0);
}

/* Converts one block of n values to levels. The definition adds u, in single precision, before it
 * cuts off the fraction of a number of steps. */
static inline void reference_levels(
    const float *x, size_t n, int levels, const float *u, float *decoded)
{
    double largest = 0, step;
    int found = 0;

    for (size_t i = 0; i < n; i++) {
        largest = fmax(largest, reference_magnitude(x[i], levels));
    }
    step = reference_step(largest, levels);
    for (size_t i = 0; i < n; i++) {
        double m = reference_magnitude(x[i], levels), level = 0;

        if (step > 0) {
            level = floor((double)((float)(m / step) + u[i]));
        }
        if (m == largest && step > 0 && !found) {
            found = 1;
            level = levels;
        }
        decoded[i] = level == 0 ? 0.0f : (float)copysign(level * step, (double)x[i]);
    }
}

/* ------------------------------------------------------------------ means of groups */

/* The magnitude that a block of `two` or `sign` uses: at most the largest bfloat16. */
static inline double reference_size(float x)
{
    return isnan(x) ? 0 : fmin(fabs((double)x), 255 * 0x1p120);
}

/* The mean, as bfloat16, of the magnitudes above `above` and at most `most`. */
static inline double reference_mean(const float *x, size_t n, double above, double most)
{
    double sum = 0, mean;
    size_t count = 0;

    for (size_t i = 0; i < n; i++) {
        double m = reference_size(x[i]);

        if (m > above && m <= most) {
            sum += m;
            count++;
        }
    }
    mean = count > 0 ? (double)reference_bf16((float)(sum / (double)count)) : 0;
    return sum > 0 ? fmax(mean, 0x1p-133) : 0;
}

static inline int reference_is_bf16(double x)
{
    return x == (double)reference_bf16((float)x);
}

/* The magnitude at which the upper group of a block begins. */
static inline double reference_split(const float *x, size_t n)
{
    double least = INFINITY, most = 0, sum = 0;
    int others = 0;

    for (size_t i = 0; i < n; i++) {
        double m = reference_size(x[i]);

        least = fmin(least, m);
        most = fmax(most, m);
        sum += m;
    }
    for (size_t i = 0; i < n; i++) {
        others += reference_size(x[i]) != least && reference_size(x[i]) != most;
    }
    if (least == 0 || (others == 0 && reference_is_bf16(least) && reference_is_bf16(most))) {
        return least;
    }
    return (double)(float)fmin(1.15 * (sum / (double)n), (double)FLT_MAX);
}

static inline void reference_two(const float *x, size_t n, float *decoded)
{
    double split = reference_split(x, n);
    double low = reference_mean(x, n, split == 0 ? 0 : -1, split);
    double high = reference_mean(x, n, split, INFINITY);

    for (size_t i = 0; i < n; i++) {
        double m = reference_size(x[i]);

        decoded[i] = m == 0 ? 0.0f : (float)copysign(m > split ? high : low, (double)x[i]);
    }
}

static inline void reference_sign(const float *x, size_t n, float *decoded)
{
    double mean = reference_mean(x, n, -1, INFINITY);

    for (size_t i = 0; i < n; i++) {
        decoded[i] = (float)(reference_size(x[i]) != 0 && x[i] < 0 ? -mean : mean);
    }
}

/* Decodes what a payload would make of one block; `value` is an enum payload_value. */
static inline void reference_block(const float *x, size_t n, unsigned value, float *decoded)
{
    float half[128];

    for (size_t i = 0; i < 128; i++) {
        half[i] = 0.5f;
    }
    switch (value) {
    case 4: reference_two(x, n, decoded); break;
    case 5: reference_sign(x, n, decoded); break;
    default: reference_levels(x, n, value == 3 ? 127 : value == 6 ? 7 : 3, half, decoded);
    }
}

/* Does the same for n values of any type. */
static inline void reference_values(const float *x, size_t n, unsigned value, float *decoded)
{
    for (size_t i = 0; i < n && value > 2; i += 128) {
        reference_block(x + i, n - i < 128 ? n - i : 128, value, decoded + i);
    }
    for (size_t i = 0; i < n && value <= 2; i++) {
        decoded[i] = value == 1 ? reference_bf16(x[i]) : value == 2 ? reference_f16(x[i]) : x[i];
    }
}

#endif
