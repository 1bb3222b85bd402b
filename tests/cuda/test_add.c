/*
 * ADD on the device against kernels/cpu, byte by byte: residual, records, ledger and list.
 *
 * usage: test_add [SEED]     without a seed: all of them, or many more with ADTOPK_TEST_LONG=1
 */
#include "tests/cuda/both.h"
#include "tests/cuda/seeds.h"

enum { TURNS = 3 };

/* spoils: residuals get NaN between turns, of which a GPU makes other bits. Then lists are
 * compared. */
static bool turns_case(uint64_t seed, uint64_t most, bool spoils)
{
    struct both *const both = input_memory(sizeof *both, 0);
    bool same = true;
    both_make(both, seed, most, BOTH_SPARES);
    for (int turn = 0; turn < TURNS && same; turn++) {
        both_push(both);
        both_host(both);
        both_add(both);
        same = spoils ? both_compare_lists(both) : both_compare(both);
        both_leave(both);
        if (spoils) {
            both_spoil(both);
        }
    }
    both_drop(both);
    input_free(both);
    return same;
}

static bool add_case(uint64_t seed, uint64_t most)
{
    return turns_case(seed, most, false);
}

#ifndef CUDA_NO_KILLS
/* NaN ranks above infinity on both sides, also where a pass knows the threshold of the last one. */
static bool nan_case(uint64_t seed, uint64_t most)
{
    return turns_case(seed, most, true);
}

static void test_nan(void **state)
{
    (void)state;
    seeds_try(nan_case, 5000, 15, 8000);
}
#endif

static void test_small(void **state)
{
    (void)state;
    seeds_try(add_case, 1000, 60, 3000);
}

static void test_chunks(void **state)
{
    (void)state;
    seeds_try(add_case, 2000, 20, 30000);
}

static void test_large(void **state)
{
    (void)state;
    seeds_try(add_case, 3000, 3, 100000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_large),
#ifndef CUDA_NO_KILLS
        cmocka_unit_test(test_nan),
#endif
    };
    if (argc == 3) {
        return add_case(strtoull(argv[1], NULL, 0), strtoull(argv[2], NULL, 0)) ? 0 : 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
