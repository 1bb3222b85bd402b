/*
 * Gradients of several ranks, and the exact result of accumulating them, element by element. A test
 * includes this file once, after cmocka.h.
 */
#ifndef ADTOPK_TESTS_PUSH_H
#define ADTOPK_TESTS_PUSH_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "kernels/cpu/plain.h"
#include "tests/unit/arrays.h"

/* The value of a code in a binary format with one sign bit, from the format's definition. */
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

/* Adds the float sums of each sign to the double sums of a lane. This happens every 8 words. */
static inline void reference_run(float run[2][16], double lane[2][16])
{
    for (int l = 0; l < 16; l++) {
        lane[0][l] += (double)(run[0][l] + run[1][l]);
        lane[1][l] += (double)(run[0][l] - run[1][l]);
        run[0][l] = run[1][l] = 0;
    }
}

/* Adds one word of up to 64 elements; `first` is its number in the tensor. */
static inline void reference_word(const float *x, uint64_t rest, uint64_t first, float run[2][16])
{
    float word[64] = {0};
    memcpy(word, x, (rest < 64 ? rest : 64) * sizeof *word);
    for (unsigned l = 0; l < 16; l++) {
        /* The sign of vector 0, relative to the lane's. */
        const int swap = ledger_sign(first + l) != ledger_sign(first / 4096 * 4096 + l);
        run[swap][l] += word[l] + word[l + 48];
        run[!swap][l] += word[l + 16] + word[l + 32];
    }
}

/* The sums of some chunks, with the signs of ledger_sign(). */
static inline void reference_chunks(const float *x, uint64_t first, uint64_t n, double sums[2])
{
    for (; first < n; first += 4096) {
        float run[2][16] = {{0}};
        double lane[2][16] = {{0}};
        for (uint64_t w = first; w < n && w < first + 4096; w += 64) {
            reference_word(x + w, n - w, w, run);
            if ((w - first) / 64 % 8 == 7) {
                reference_run(run, lane);
            }
        }
        reference_run(run, lane);
        for (unsigned i = 0; i < 16; i++) {
            lane[1][i] *= ledger_sign(first + i);
        }
        for (int s = 0; s < 2; s++) {
            double l[8];
            for (int i = 0; i < 8; i++) {
                l[i] = lane[s][i] + lane[s][i + 8];
            }
            sums[s] += ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
        }
    }
}

/* Adds the sums in the documented order: groups of 64 chunks. */
static inline void reference_ledger(const float *x, uint64_t n, double sums[2])
{
    const uint64_t group = 64 * 4096;
    for (uint64_t first = 0; first < n; first += group) {
        double some[2] = {0, 0};
        reference_chunks(x, first, n - first < group ? n : first + group, some);
        sums[0] += some[0];
        sums[1] += some[1];
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
                /* All codes may come, also infinities, NaN and subnormals. */
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

/* Computes the `acc` that accumulate() must leave; added[i] is what it added. Returns the number of
 * elements that it left out. */
static inline uint64_t reference_accumulate(float *acc, float *added, const struct push *push)
{
    uint64_t left_out = 0;
    for (uint64_t i = 0; i < push->n; i++) {
        float sum = -0.0f; /* the sum of no values, which changes nothing */
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
