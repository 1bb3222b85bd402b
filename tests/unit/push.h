/*
 * Gradients of several ranks and what accumulating them must give, element by element. To be
 * included once, after cmocka.h.
 */
#ifndef ADTOPK_TESTS_PUSH_H
#define ADTOPK_TESTS_PUSH_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "kernels/cpu/kernels.h"
#include "tests/unit/arrays.h"

/* The value of a binary format with one sign bit, from its definition. */
static inline double format_value(uint32_t code, int exponent_bits, int fraction_bits)
{
    const uint32_t fraction = code & ((1u << fraction_bits) - 1);
    const int exponent = (int)(code >> fraction_bits) & ((1 << exponent_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double sign = (code >> (exponent_bits + fraction_bits)) & 1u ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) {
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    }
    const uint32_t hidden = exponent > 0 ? 1u << fraction_bits : 0;
    const int scale = (exponent > 0 ? exponent : 1) - bias - fraction_bits;
    return sign * ldexp((double)(fraction + hidden), scale);
}

static inline float element_of(const void *gradient, enum dtype dtype, uint64_t i)
{
    if (dtype == DTYPE_F32) {
        return ((const float *)gradient)[i];
    }
    const uint16_t code = ((const uint16_t *)gradient)[i];
    return (float)(dtype == DTYPE_F16 ? format_value(code, 5, 10) : format_value(code, 8, 7));
}

/* One lane of 64 elements: vectors of even and of odd parity apart, in the documented order. */
static inline double reference_vectors(const double *word, const int order[4])
{
    double sum = word[8 * order[0]];
    for (int v = 1; v < 4; v++) {
        sum += word[8 * order[v]];
    }
    return sum;
}

/* The documented order of summation, with the signs as ledger_sign() gives them. */
static inline void reference_ledger(const float *x, uint64_t n, double sums[2])
{
    static const int even[] = {0, 3, 5, 6};
    static const int odd[] = {1, 2, 4, 7};
    for (uint64_t first = 0; first < n; first += 4096) {
        double lane[2][8] = {{0}};
        for (uint64_t w = first; w < n && w < first + 4096; w += 64) {
            double word[2][64] = {{0}};
            for (uint64_t i = w; i < n && i < w + 64; i++) {
                word[0][i - w] = (double)x[i];
                word[1][i - w] = (double)x[i] * ledger_sign(i);
            }
            for (int s = 0; s < 2; s++) {
                for (int l = 0; l < 8; l++) {
                    lane[s][l] +=
                        reference_vectors(word[s] + l, even) + reference_vectors(word[s] + l, odd);
                }
            }
        }
        for (int s = 0; s < 2; s++) {
            const double *l = lane[s];
            sums[s] += ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
        }
    }
}

struct push {
    enum dtype dtype;
    unsigned ranks;
    uint64_t n;
    void **gradients;
};

static inline struct push push_make(enum dtype dtype, unsigned ranks, uint64_t n)
{
    struct push push = {.dtype = dtype, .ranks = ranks, .n = n};
    push.gradients = allocate(ranks, sizeof *push.gradients);
    for (unsigned r = 0; r < ranks; r++) {
        if (random_below(8) == 0) {
            continue; /* a rank that did not push */
        }
        push.gradients[r] = allocate(n, dtype_size(dtype));
        for (uint64_t i = 0; i < n; i++) {
            if (dtype == DTYPE_F32) {
                ((float *)push.gradients[r])[i] = random_value();
            } else {
                /* Any code: infinities, NaN and subnormals are among them. */
                ((uint16_t *)push.gradients[r])[i] = (uint16_t)random_next();
            }
        }
        if (dtype == DTYPE_F32 && n > 0 && random_below(2) == 0) {
            static const float odd[] = {INFINITY, -INFINITY, NAN, 0x1p120f, -0x1.8p127f, -0.0f};
            ((float *)push.gradients[r])[random_below(n)] = odd[random_below(6)];
        }
    }
    return push;
}

static inline void push_drop(struct push *push)
{
    for (unsigned r = 0; r < push->ranks; r++) {
        free(push->gradients[r]);
    }
    free(push->gradients);
}

/* acc as accumulate() must leave it; added[i] is what was added. Returns what was left out. */
static inline uint64_t reference_accumulate(float *acc, float *added, const struct push *push)
{
    uint64_t left_out = 0;
    for (uint64_t i = 0; i < push->n; i++) {
        float sum = -0.0f; /* the sum of nothing changes nothing */
        for (unsigned r = 0; r < push->ranks; r++) {
            if (push->gradients[r] != NULL) {
                sum += element_of(push->gradients[r], push->dtype, i);
            }
        }
        added[i] = 0;
        if (isnan(sum) || fabs((double)sum) >= 0x1p120) {
            left_out++;
        } else {
            added[i] = sum;
            acc[i] += sum;
        }
    }
    return left_out;
}

#endif
