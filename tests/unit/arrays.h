/*
 * Random arrays and lists, and comparisons of them, for the tests of kernels and sparsifiers. A
 * test includes this file once, after cmocka.h.
 */
#ifndef ADTOPK_TESTS_ARRAYS_H
#define ADTOPK_TESTS_ARRAYS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/sparse.h"

static uint64_t random_state = 0x9d2c5680u; /* a fixed seed: every run tests the same cases */

static inline uint64_t random_next(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static inline uint64_t random_below(uint64_t bound)
{
    return (random_next() >> 11) % bound;
}

/* A random value in -1..1, more often near 0. */
static inline float random_value(void)
{
    const double u = (double)(random_next() >> 11) * 0x1p-52 - 1.0;
    return (float)(u * u * u);
}

static inline void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size);
    assert_non_null(memory);
    return memory;
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline void assert_same_bits(const float *a, const float *b, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (bits_of(a[i]) != bits_of(b[i])) {
            fail_msg("element %llu: %a, not %a", (unsigned long long)i, (double)a[i], (double)b[i]);
        }
    }
}

static inline struct sparse sparse_make(size_t capacity)
{
    return (struct sparse){.position = allocate(capacity, sizeof(uint32_t)),
        .value = allocate(capacity, sizeof(float)),
        .capacity = capacity};
}

static inline void sparse_drop(struct sparse *list)
{
    free(list->position);
    free(list->value);
}

/* Returns a map: map[p] is the element at position p of a tensor [outer][length][stride]. */
static inline uint64_t *reference_map(uint64_t outer, uint64_t length, uint64_t stride)
{
    uint64_t *map = allocate(outer * length * stride, sizeof *map);
    uint64_t p = 0;
    for (uint64_t o = 0; o < outer; o++) {
        for (uint64_t y = 0; y < stride; y++) {
            for (uint64_t j = 0; j < length; j++) {
                map[p++] = (o * length + j) * stride + y;
            }
        }
    }
    return map;
}

#endif
