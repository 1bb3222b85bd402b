/*
 * Exact selection by sorting, and inputs on which selections failed. A test includes this file
 * once, after cmocka.h.
 */
#ifndef ADTOPK_TESTS_SELECT_REFERENCE_H
#define ADTOPK_TESTS_SELECT_REFERENCE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/arrays.h"

struct ranked {
    double magnitude; /* NaN as 2^200, infinity as 2^199 */
    uint32_t position;
    float value;
};

static inline int by_rank(const void *left, const void *right)
{
    const struct ranked *a = left;
    const struct ranked *b = right;
    if (a->magnitude != b->magnitude) {
        return a->magnitude > b->magnitude ? -1 : 1;
    }
    return a->position < b->position ? -1 : a->position > b->position;
}

static inline int by_position(const void *left, const void *right)
{
    const struct ranked *a = left;
    const struct ranked *b = right;
    return a->position < b->position ? -1 : a->position > b->position;
}

/* Moves the k best of list[0..n) to its first k places, in the order of positions. */
static inline void reference_select(struct ranked *list, uint64_t n, uint64_t k)
{
    qsort(list, n, sizeof *list, by_rank);
    qsort(list, k, sizeof *list, by_position);
}

static inline struct ranked *reference_list(const float *x, const uint64_t *map, uint64_t n)
{
    struct ranked *list = allocate(n, sizeof *list);
    for (uint64_t p = 0; p < n; p++) {
        const float v = x[map[p]];
        const double magnitude = isnan(v) ? 0x1p200 : isinf(v) ? 0x1p199 : fabs((double)v);
        list[p] = (struct ranked){.magnitude = magnitude, .position = (uint32_t)p, .value = v};
    }
    return list;
}

static inline void assert_selected(const struct sparse *out, const struct ranked *list, uint64_t k)
{
    for (uint64_t i = 0; i < k; i++) {
        assert_int_equal(out->position[i], list[i].position);
        assert_int_equal(bits_of(out->value[i]), bits_of(list[i].value));
    }
}

enum pattern {
    RANDOM,
    QUANTISED,
    CONSTANT,
    ASCENDING,
    DESCENDING,
    MOSTLY_ZERO,
    ZERO,
    HOT_BLOCK,
    SUBNORMAL,
    NOT_FINITE,
    ANY_BITS,
    PATTERN_COUNT
};

static inline float pattern_value(enum pattern pattern, uint64_t i, uint64_t n)
{
    const float sign = random_below(2) == 0 ? 1.0f : -1.0f;
    uint32_t bits = (uint32_t)random_next();
    float value;
    switch (pattern) {
    case QUANTISED: return sign * (float)random_below(4);
    case CONSTANT: return sign * 0.75f;
    case ASCENDING: return sign * (float)(i + 1);
    case DESCENDING: return sign * (float)(n - i);
    case MOSTLY_ZERO: return random_below(50) == 0 ? random_value() : sign * 0.0f;
    case ZERO: return sign * 0.0f;
    case HOT_BLOCK: return random_value() * (i >= n / 3 && i < n / 3 + 40 ? 1e6f : 1.0f);
    case NOT_FINITE:
        return random_below(20) == 0 ? NAN : random_below(20) == 0 ? sign * INFINITY : sign;
    case SUBNORMAL: bits &= 0x800007ffu; break;
    case ANY_BITS: bits &= (bits & 0x7f800000u) == 0x7f800000u ? 0xff800000u : UINT32_MAX; break;
    default: return random_value();
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float *pattern_make(enum pattern pattern, uint64_t n)
{
    float *x = allocate(n, sizeof *x);
    for (uint64_t i = 0; i < n; i++) {
        x[i] = pattern_value(pattern, i, n);
    }
    return x;
}

/* A random count, often one of those at which off-by-one errors show. */
static inline uint64_t random_count(uint64_t length)
{
    switch (random_below(8)) {
    case 0: return 0;
    case 1: return 1;
    case 2: return length;
    case 3: return length + 5;
    case 4: return length > 0 ? length - 1 : 0;
    case 5: return length / 100 + 1;
    default: return random_below(length + 1);
    }
}

#endif
