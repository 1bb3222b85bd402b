/* The exponential function for loops that call it for every activation. libm's differs between
 * versions and processors; this one gives equal bits on every machine. */
#ifndef EXAMPLE_EXPONENTIAL_H
#define EXAMPLE_EXPONENTIAL_H

#include <stdint.h>
#include <string.h>

/* e^x to a relative error of 3e-7. Below -87 and above 88 it is e^-87 and e^88; NaN stays NaN.
 *
 * e^x = 2^n e^r with a whole n and |r| <= ln 2 / 2, and a Taylor series gives e^r. Without branches
 * and in the header, so that the compiler can compute several at once. */
static inline float exponential(float x)
{
    /* Adding 1.5 * 2^23 rounds to a whole number, and leaves it in the low bits of the sum. */
    const float rounder = 12582912.0f;
    const float log2_e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    const float inside = x < -87 ? -87 : x > 88 ? 88 : x;
    const float rounded = inside * log2_e + rounder, n = rounded - rounder;
    const float r = (inside - n * ln2_high) - n * ln2_low;
    float sum = 1.0f / 5040, power;
    uint32_t bits;

    sum = sum * r + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r + 1;
    sum = sum * r + 1;
    memcpy(&bits, &rounded, sizeof bits);
    bits = (bits + 127) << 23; /* the exponent of 2^n; the bits of `rounder` are shifted out */
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}

#endif
