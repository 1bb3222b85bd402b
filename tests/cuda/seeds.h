/*
 * A test that repeats a case with many seeds: SEEDS_TIMES as many as it names. With
 * ADTOPK_TEST_LONG it takes 50 times as many.
 */
#ifndef ADTOPK_TESTS_CUDA_SEEDS_H
#define ADTOPK_TESTS_CUDA_SEEDS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "tests/host/sanitized.h"

/* All tests of kernels together take a minute of a processor. meson.build has fewer for the thread
 * sanitizer, which is slow. */
#ifndef SEEDS_TIMES
#define SEEDS_TIMES CASES(12, 8)
#endif

/* Inputs of at most `most` elements. False: there is a difference. */
typedef bool seeds_case(uint64_t seed, uint64_t most);

static inline void seeds_try(seeds_case *one, uint64_t first, uint64_t count, uint64_t most)
{
    const uint64_t times = getenv("ADTOPK_TEST_LONG") != NULL ? 50 : SEEDS_TIMES;
    for (uint64_t seed = first; seed < first + count * times; seed += CASES(1, 4)) {
        if (!one(seed, most)) {
            fail_msg("seed %llu of at most %llu elements", (unsigned long long)seed,
                (unsigned long long)most);
        }
    }
}

#endif
