/* The data of adtopk-perf: every floor loop adds the right elements, and lists are well formed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "kernels/base/convert.h"
#include "tests/bench/perf/data.h"
#include "tests/bench/perf/floor.h"

#define LONGEST 2100 /* beyond the distance of the prefetches */

static float element(const void *g, enum dtype dtype, uint64_t i)
{
    switch (dtype) {
    case DTYPE_F16: return convert_f16(((const uint16_t *)g)[i]);
    case DTYPE_BF16: return convert_bf16(((const uint16_t *)g)[i]);
    default: return ((const float *)g)[i];
    }
}

#define GRADIENTS 5

static float sum_of(void *const *g, enum dtype dtype, unsigned count, uint64_t i)
{
    float sum = element(g[0], dtype, i);

    for (unsigned k = 1; k < count; k++) {
        sum += element(g[k], dtype, i);
    }
    return sum;
}

/* The same with a residual r in bf16: the nearest one, and nothing beyond the end. */
static void check_half(
    const struct floor_loop *loop, const struct floor_work *work, void *const *g, uint64_t cut)
{
    struct floor_work halves = *work;
    uint16_t *half = malloc((work->n + 1) * sizeof(*half));
    uint16_t *before = malloc((work->n + 1) * sizeof(*before));

    assert_true(half != NULL && before != NULL);
    data_store(half, DTYPE_BF16, work->r, work->n + 1);
    memcpy(before, half, (work->n + 1) * sizeof(*before));
    halves.half = half;
    halves.r = NULL;
    loop->add(&halves, 0, cut);
    loop->add(&halves, cut, work->n);
    for (uint64_t i = 0; i < work->n; i++) {
        const float sum = convert_bf16(before[i]) + sum_of(g, work->dtype, work->count, i);

        assert_int_equal(half[i], convert_to_bf16(sum));
    }
    assert_int_equal(half[work->n], before[work->n]);
    free(before);
    free(half);
}

/* Every loop, whole and cut in two, adds the gradients' sum and nothing beyond the end. */
static void check_loop(
    const struct floor_loop *loop, enum dtype dtype, unsigned count, uint64_t n, uint64_t cut)
{
    float *x = malloc((LONGEST + 1) * sizeof(*x));
    float *r = malloc((LONGEST + 1) * sizeof(*r));
    void *g[GRADIENTS];
    const struct floor_work work = {
        .r = r, .g = (const void *const *)g, .count = count, .dtype = dtype, .n = n};

    assert_true(x != NULL && r != NULL);
    for (unsigned k = 0; k < count; k++) {
        g[k] = malloc((LONGEST + 1) * sizeof(float));
        assert_non_null(g[k]);
        data_fill(x, n + 1, DATA_NORMAL, 3 + k);
        data_store(g[k], dtype, x, n + 1);
    }
    data_fill(r, n + 1, DATA_LAPLACE, 5);
    memcpy(x, r, (n + 1) * sizeof(*x));
    loop->add(&work, 0, cut);
    loop->add(&work, cut, n);
    for (uint64_t i = 0; i < n; i++) {
        if (r[i] != x[i] + sum_of(g, dtype, count, i)) {
            fail_msg("%s, type %d, %u gradients: element %u of %u", loop->name, (int)dtype, count,
                (unsigned)i, (unsigned)n);
        }
    }
    assert_true(r[n] == x[n]);
    check_half(loop, &work, g, cut);
    for (unsigned k = 0; k < count; k++) {
        free(g[k]);
    }
    free(x);
    free(r);
}

static void test_loops(void **state)
{
    static const uint64_t lengths[] = {0, 1, 7, 16, 17, 100, 1024, 1031, LONGEST};

    (void)state;
    for (unsigned i = 0; i < FLOOR_LOOPS * DTYPE_COUNT * GRADIENTS; i++) {
        const struct floor_loop *loop = &floor_loops[i / DTYPE_COUNT / GRADIENTS];
        const enum dtype dtype = (enum dtype)(i / GRADIENTS % DTYPE_COUNT);

        for (size_t l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
            check_loop(loop, dtype, 1 + i % GRADIENTS, lengths[l], lengths[l] / 3);
        }
    }
}

static void test_race(void **state)
{
    struct floor_race race = {0};
    float r[64];
    float g[64];
    const void *const gradient = g;
    const struct floor_work work = {.r = r, .g = &gradient, .count = 1, .n = 64};

    (void)state;
    data_fill(g, 64, DATA_NORMAL, 2);
    memset(r, 0, sizeof(r));
    assert_int_equal(floor_fastest(&race), 0);
    for (int i = 0; i < 3; i++) {
        assert_true(floor_sample(&race, &work));
    }
    for (unsigned i = 0; i < FLOOR_LOOPS; i++) {
        assert_int_equal(race.time[i].count, 3);
        for (size_t k = 0; k < 3; k++) {
            race.time[i].value[k] = i == 2 ? 1 : 5;
        }
    }
    assert_true(fabsf(r[63] - 12 * g[63]) <= 1e-4f * fabsf(r[63]));
    assert_int_equal(floor_fastest(&race), 2);
    floor_free(&race);
}

/* However many threads share a loop, every element is added once. */
static void test_shared_loop(void **state)
{
    static float r[LONGEST];
    static float g[LONGEST];
    const void *const gradient = g;

    (void)state;
    data_fill(g, LONGEST, DATA_NORMAL, 2);
    for (unsigned threads = 1; threads <= 5; threads++) {
        struct team *team = team_new(threads);

        assert_non_null(team);
        assert_int_equal(team_threads(team), threads);
        for (uint64_t n = 0; n <= LONGEST; n += 175) {
            const struct floor_work work = {.r = r, .g = &gradient, .count = 1, .n = n};

            memset(r, 0, sizeof(r));
            assert_true(floor_time(&work, (unsigned)n % FLOOR_LOOPS, team, 3) >= 0);
            assert_memory_equal(r, g, n * sizeof(*r));
            assert_true(n == LONGEST || r[n] == 0);
        }
        team_free(team);
    }
    team_free(NULL);
}

#define PARTS 100

struct loops {
    struct parallel parallel;
    unsigned seen[PARTS][PARTS];
};

static void count_part(void *arg, unsigned p, unsigned thread)
{
    unsigned *seen = arg;

    assert_in_range(thread, 0, 2);
    seen[p]++;
}

static void loop_inside(void *arg, unsigned p, unsigned thread)
{
    struct loops *loops = arg;
    struct parallel own = loops->parallel;

    own.caller = thread;
    parallel_for(&own, count_part, loops->seen[p], PARTS);
}

/* A loop runs every part once, and so does a loop inside a part. */
static void test_loop(void **state)
{
    static struct loops loops;
    struct team *team = team_new(3);

    (void)state;
    assert_non_null(team);
    loops.parallel = team_parallel(team);
    assert_int_equal(parallel_threads(&loops.parallel), 3);
    parallel_for(&loops.parallel, loop_inside, &loops, PARTS);
    for (unsigned p = 0; p < PARTS; p++) {
        for (unsigned q = 0; q < PARTS; q++) {
            assert_int_equal(loops.seen[p][q], 1);
        }
    }
    team_free(team);
}

static void check_list(uint64_t n, uint64_t length, uint64_t k)
{
    struct sparse list;

    assert_true(data_list(&list, n, length, k, 7));
    assert_int_equal(list.count, n / length * k);
    for (size_t i = 0; i < list.count; i++) {
        assert_int_equal(list.position[i] / length, i / k);
        assert_true(i == 0 || list.position[i] > list.position[i - 1]);
        assert_true(isfinite(list.value[i]));
    }
    data_list_free(&list);
}

static void test_lists(void **state)
{
    (void)state;
    check_list(1000, 1000, 10);
    check_list(1000, 1000, 1000); /* all elements */
    check_list(1000, 1000, 1);
    check_list(1024, 32, 3);
    check_list(1, 1, 1);
    assert_int_equal(data_share(1000, 0.01), 10);
    assert_int_equal(data_share(10, 0.001), 1);
    assert_int_equal(data_share(10, 1), 10);
}

/* Each turn brings the same values elsewhere in the same sixteenth, or nothing new. */
static void check_turn(enum distribution distribution, uint64_t n, bool moves)
{
    static float base[1000];
    static float x[2][1000];

    data_fill(base, n, distribution, 3);
    data_turn(x[0], base, sizeof(float), n, distribution, 1);
    data_turn(x[1], base, sizeof(float), n, distribution, 2);
    assert_int_equal(memcmp(x[0], x[1], n * sizeof(float)) != 0, moves);
    for (unsigned s = 0; s < 16; s++) {
        double sum = 0;

        for (uint64_t i = n * s / 16; i < n * (s + 1) / 16; i++) {
            sum += (double)x[0][i] - (double)base[i];
        }
        assert_true(fabs(sum) < 1e-6);
    }
}

static void test_turns(void **state)
{
    (void)state;
    check_turn(DATA_NORMAL, 1000, true);
    check_turn(DATA_LAYERED, 999, true);
    check_turn(DATA_QUANTISED, 500, true);
    check_turn(DATA_SORTED, 1000, false);
    check_turn(DATA_MOSTLY_ZERO, 1000, false);
    check_turn(DATA_NORMAL, 7, false); /* at most one element per sixteenth */
}

/* In a turn one element in 1 / density reaches the threshold: the residual stays as it is. */
static void test_residual(void **state)
{
    enum { N = 200000, K = N / 100 };
    static float base[N];
    static float x[N];
    static float g[N];
    uint64_t reach = 0;
    float most = 0;

    (void)state;
    data_fill(base, N, DATA_NORMAL, 3);
    data_residual(x, base, N, DATA_NORMAL, 0.01, true);
    data_turn(g, base, sizeof(float), N, DATA_NORMAL, 1);
    for (unsigned i = 0; i < N; i++) {
        most = fmaxf(most, fabsf(x[i]));
        reach += fabsf(x[i] + g[i]) >= 10; /* sqrt(1 / 0.01) deviations */
    }
    assert_true(most > 9 && most <= 10.1f);
    assert_in_range(reach, K / 4, 2 * K);

    data_fill(base, N, DATA_QUANTISED, 3);
    data_residual(x, base, N, DATA_QUANTISED, 0.01, false);
    for (unsigned i = 0; i < N; i++) {
        assert_true(x[i] * 4 == rintf(x[i] * 4));
    }
    data_fill(base, N, DATA_SORTED, 3);
    data_residual(x, base, N, DATA_SORTED, 0.01, true);
    for (unsigned i = 0; i < N; i++) {
        assert_true(x[i] == 0);
    }
}

static void test_distributions(void **state)
{
    static float x[16000];
    unsigned zeros = 0;

    (void)state;
    for (unsigned d = 0; d < DATA_COUNT; d++) {
        data_fill(x, 16000, (enum distribution)d, 1);
        for (unsigned i = 0; i < 16000; i++) {
            assert_true(isfinite(x[i]));
        }
        assert_non_null(data_names[d]);
    }
    assert_null(data_names[DATA_COUNT]);
    data_fill(x, 16000, DATA_SORTED, 1);
    for (unsigned i = 1; i < 16000; i++) {
        assert_true(x[i] >= x[i - 1]);
    }
    data_fill(x, 16000, DATA_MOSTLY_ZERO, 1);
    for (unsigned i = 0; i < 16000; i++) {
        zeros += x[i] == 0;
    }
    assert_in_range(zeros, 15900, 15999);
}

static void test_memory(void **state)
{
    char *memory = data_map(1 << 20);

    (void)state;
    assert_non_null(memory);
    assert_int_equal(memory[12345], 0);
    data_unmap(memory, 1 << 20);
    assert_null(data_map((size_t)1 << 46)); /* an error, and the system kills no process */
    data_unmap(NULL, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loops),
        cmocka_unit_test(test_race),
        cmocka_unit_test(test_shared_loop),
        cmocka_unit_test(test_loop),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_residual),
        cmocka_unit_test(test_distributions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
