/* Local steps: what ranks push, and what becomes of the parameters that they share. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/drift.h"
#include "common/optimiser.h"

enum { SIZE = 35, RANKS = 3, TENSORS = 2 };

/* A rank with two tensors, and what it pushes of each. */
struct rank {
    float values[TENSORS][SIZE], pushed[TENSORS][SIZE];
    float *pushes[TENSORS];
    struct tensor tensors[TENSORS];
    struct drift *drift;
};

static float some(unsigned a, unsigned b)
{
    return sinf((float)(a * 7919 + b * 104729) * 0.001f);
}

static void rank_make(struct rank *rank, const struct drift_options *options)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        rank->pushes[t] = rank->pushed[t];
        rank->tensors[t] =
            (struct tensor){.name = "w", .dims = 2, .shape = {5, 7}, .values = rank->values[t]};
        for (unsigned i = 0; i < SIZE; i++) {
            rank->values[t][i] = some(t, i);
        }
    }
    rank->drift = drift_create(options, rank->tensors, TENSORS);
    assert_non_null(rank->drift);
    drift_begin(rank->drift, rank->pushes);
}

/* The ranks move apart; the mean of their drifts goes to the shared parameters. */
static void exchange(struct rank *rank, unsigned at, float shared[TENSORS][SIZE])
{
    for (unsigned t = 0; t < TENSORS; t++) {
        float mean[SIZE] = {0};
        for (unsigned r = 0; r < RANKS; r++) {
            for (unsigned i = 0; i < SIZE; i++) {
                rank[r].values[t][i] -= 0.1f * some(r + 1 + 10 * at, i + 100 * t);
            }
            drift_take(rank[r].drift, t, rank[r].pushed[t]);
            for (unsigned i = 0; i < SIZE; i++) {
                mean[i] += rank[r].pushed[t][i] / RANKS;
            }
        }
        drift_apply(rank[0].drift, t, shared[t], mean);
    }
}

/* With a rate of 1 and no momentum the shared parameters become the mean of the ranks'. */
static void test_mean(void **state)
{
    static struct rank rank[RANKS];
    float shared[TENSORS][SIZE];

    (void)state;
    for (unsigned r = 0; r < RANKS; r++) {
        rank_make(&rank[r], &(struct drift_options){.steps = 1, .rate = 1});
    }
    memcpy(shared, rank[0].values, sizeof(shared));
    for (unsigned at = 0; at < 5; at++) {
        exchange(rank, at, shared);
        for (unsigned t = 0; t < TENSORS; t++) {
            for (unsigned i = 0; i < SIZE; i++) {
                double mean = 0;
                for (unsigned r = 0; r < RANKS; r++) {
                    mean += (double)rank[r].values[t][i] / RANKS;
                    rank[r].values[t][i] = shared[t][i];
                }
                assert_true(fabs((double)shared[t][i] - mean) < 1e-6);
            }
        }
        for (unsigned r = 0; r < RANKS; r++) {
            memcpy(rank[r].values, shared, sizeof(shared));
            drift_begin(rank[r].drift, rank[r].pushes);
        }
    }
    for (unsigned r = 0; r < RANKS; r++) {
        drift_destroy(rank[r].drift);
    }
}

/* Nesterov's momentum, against its definition in double precision. */
static void test_momentum(void **state)
{
    static struct rank rank;
    float shared[SIZE];
    double expected[SIZE], velocity[SIZE] = {0};

    (void)state;
    rank_make(&rank, &(struct drift_options){.steps = 8, .rate = 0.7f, .momentum = 0.9f});
    memcpy(shared, rank.values[0], sizeof(shared));
    for (unsigned i = 0; i < SIZE; i++) {
        expected[i] = (double)shared[i];
    }
    for (unsigned step = 0; step < 6; step++) {
        float mean[SIZE];
        for (unsigned i = 0; i < SIZE; i++) {
            mean[i] = some(step, i);
            velocity[i] = 0.9 * velocity[i] + (double)mean[i];
            expected[i] -= 0.7 * ((double)mean[i] + 0.9 * velocity[i]);
        }
        drift_apply(rank.drift, 0, shared, mean);
        for (unsigned i = 0; i < SIZE; i++) {
            assert_true(fabs((double)shared[i] - expected[i]) < 1e-5);
        }
    }
    assert_true(fabs((double)drift_reach(rank.drift).rate - 7) < 1e-5);
    assert_null(drift_reach(rank.drift).second_moment);
    drift_destroy(rank.drift);
}

/* An optimiser that forgets is as new. */
static void test_forget(void **state)
{
    static struct rank rank;

    (void)state;
    rank_make(&rank, &(struct drift_options){.steps = 1, .rate = 1});
    for (int kind = OPTIMISER_SGD; kind <= OPTIMISER_ADAMW; kind++) {
        const struct optimiser_options options = {
            .kind = (enum optimiser_kind)kind, .lr = 0.1f, .momentum = 0.9f, .steps = 10};
        struct optimiser *used = optimiser_create(&options, rank.tensors, TENSORS);
        struct optimiser *fresh = optimiser_create(&options, rank.tensors, TENSORS);
        float a[SIZE] = {0}, b[SIZE] = {0}, nan[SIZE];
        assert_true(used != NULL && fresh != NULL);
        for (unsigned i = 0; i < SIZE; i++) {
            nan[i] = NAN;
        }
        optimiser_apply(used, 1, a, nan, 0.1f);
        optimiser_forget(used);
        memset(a, 0, sizeof(a));
        for (int step = 0; step < 3; step++) {
            optimiser_apply(used, 1, a, rank.values[0], 0.1f);
            optimiser_apply(fresh, 1, b, rank.values[0], 0.1f);
        }
        assert_memory_equal(a, b, sizeof(a));
        optimiser_destroy(used);
        optimiser_destroy(fresh);
    }
    drift_destroy(rank.drift);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mean),
        cmocka_unit_test(test_momentum),
        cmocka_unit_test(test_forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
