/*
 * The value types in double precision, by their plain definitions: what tests compare with.
 */
#ifndef ADTOPK_TEST_VALUES_REFERENCE_H
#define ADTOPK_TEST_VALUES_REFERENCE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The nearest multiple of 2^(e - bits), for 2^e <= |x| or e = least; ties to even. */
static inline double reference_round(double x, int bits, int least)
{
    int e = x == 0 ? least : ilogb(x);
    double unit = ldexp(1, (e > least ? e : least) - bits);

    return copysign(nearbyint(fabs(x) / unit) * unit, x);
}

static inline float reference_bf16(float x)
{
    return (float)reference_round((double)x, 7, -126); /* past the largest one lies infinity */
}

static inline float reference_f16(float x)
{
    double rounded = reference_round(fabs((double)x) < 65504 ? (double)x : 65504, 10, -14);

    return (float)copysign(fabs(rounded) < 65504 ? rounded : 65504, (double)x);
}

/* The magnitude that an int8 block sees. */
static inline double reference_magnitude(float x)
{
    double largest = 127.0 * 129 / 128 * 0x1p121; /* 127 of the largest steps that stay finite */

    return isnan(x) ? 0 : fmin(fabs((double)x), largest);
}

/* The least bfloat16 of which 127 reach x. */
static inline double reference_step(double x)
{
    int e = x == 0 ? -126 : ilogb(x / 127);
    double unit = ldexp(1, (e > -126 ? e : -126) - 7);
    double step = (floor(x / 127 / unit) - 1) * unit;

    while (127 * step < x) {
        step += unit;
    }
    return fmax(step, 0);
}

/* One block of n values as int8; u is added before a number of steps is cut off, in single
 * precision as the definition says. */
static inline void reference_int8(const float *x, size_t n, const float *u, float *decoded)
{
    double largest = 0, step;
    int found = 0;

    for (size_t i = 0; i < n; i++) {
        largest = fmax(largest, reference_magnitude(x[i]));
    }
    step = reference_step(largest);
    for (size_t i = 0; i < n; i++) {
        double m = reference_magnitude(x[i]), level = 0;

        if (step > 0) {
            level = floor((double)((float)(m / step) + u[i]));
        }
        if (m == largest && step > 0 && !found) {
            found = 1;
            level = 127;
        }
        decoded[i] = level == 0 ? 0.0f : (float)copysign(level * step, (double)x[i]);
    }
}

/* What a payload makes of n values that are not rounded yet; `value` is an enum payload_value. */
static inline void reference_values(const float *x, size_t n, unsigned value, float *decoded)
{
    float half[128];

    for (size_t i = 0; i < 128; i++) {
        half[i] = 0.5f;
    }
    for (size_t i = 0; i < n; i++) {
        if (value == 3) {
            if (i % 128 == 0) {
                reference_int8(x + i, n - i < 128 ? n - i : 128, half, decoded + i);
            }
        } else {
            decoded[i] = value == 1   ? reference_bf16(x[i])
                         : value == 2 ? reference_f16(x[i])
                                      : x[i];
        }
    }
}

#endif
