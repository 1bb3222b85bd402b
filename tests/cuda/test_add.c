/*
 * ADD on the device against kernels/cpu, byte by byte: residual, records, ledger and list.
 *
 * usage: test_add [SEED]     without a seed: all of them, or many more with ADTOPK_TEST_LONG=1
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda/both.h"

enum { TURNS = 3 };

/* The thread sanitizer has time for fewer of them. */
#ifndef CUDA_ONE_SEED_IN
#define CUDA_ONE_SEED_IN 1
#endif

static bool add_case(uint64_t seed, uint64_t most)
{
    struct both both;
    bool same = true;
    both_make(&both, seed, most, BOTH_SPARES);
    for (int turn = 0; turn < TURNS && same; turn++) {
        both_push(&both);
        both_host(&both);
        both_add(&both);
        same = both_compare(&both);
        both_leave(&both);
    }
    both_drop(&both);
    return same;
}

static void add_seeds(uint64_t first, uint64_t count, uint64_t most)
{
    const uint64_t times = getenv("ADTOPK_TEST_LONG") != NULL ? 50 : 1;
    for (uint64_t seed = first; seed < first + count * times; seed += CUDA_ONE_SEED_IN) {
        if (!add_case(seed, most)) {
            fail_msg("seed %llu of at most %llu elements", (unsigned long long)seed,
                (unsigned long long)most);
        }
    }
}

static void test_small(void **state)
{
    (void)state;
    add_seeds(1000, 60, 3000);
}

static void test_chunks(void **state)
{
    (void)state;
    add_seeds(2000, 20, 30000);
}

static void test_large(void **state)
{
    (void)state;
    add_seeds(3000, 3, 100000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_large),
    };
    if (argc == 3) {
        return add_case(strtoull(argv[1], NULL, 0), strtoull(argv[2], NULL, 0)) ? 0 : 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
