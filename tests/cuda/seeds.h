/*
 * A test that repeats a case with many seeds. With ADTOPK_TEST_LONG it takes many more.
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

/* Inputs of at most `most` elements. False: there is a difference. */
typedef bool seeds_case(uint64_t seed, uint64_t most);

static inline void seeds_try(seeds_case *one, uint64_t first, uint64_t count, uint64_t most)
{
    const uint64_t times = getenv("ADTOPK_TEST_LONG") != NULL ? 50 : 1;
    for (uint64_t seed = first; seed < first + count * times; seed += CASES(1, 4)) {
        if (!one(seed, most)) {
            fail_msg("seed %llu of at most %llu elements", (unsigned long long)seed,
                (unsigned long long)most);
        }
    }
}

#endif
