/*
 * The sum of sparse lists, compared with plain sums by position: in f32 in the same order, bit for
 * bit, and in double precision. In any number of parts and on any number of threads.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>

#include "kernels/cpu/merge.h"
#include "tests/unit/arrays.h"

#define LISTS_MAX 40u
#define THREADS 4u

/* ------------------------------------------------------------------ parallel loops */

struct loop {
    void (*part)(void *arg, unsigned p, unsigned thread);
    void *arg;
    unsigned parts;
    atomic_uint threads;
};

/* Each thread has parts of its own, between which TSan sees no order. Otherwise the first one would
 * be done with all before the next begins. */
static void *loop_thread(void *argument)
{
    struct loop *loop = argument;
    const unsigned thread = atomic_fetch_add_explicit(&loop->threads, 1, memory_order_relaxed);

    for (unsigned p = thread; p < loop->parts; p += THREADS) {
        loop->part(loop->arg, p, thread);
    }
    return NULL;
}

static void on_threads(void *context, unsigned caller,
    void (*part)(void *arg, unsigned p, unsigned thread), void *arg, unsigned parts)
{
    struct loop loop = {.part = part, .arg = arg, .parts = parts};
    pthread_t thread[THREADS];

    (void)context;
    (void)caller;
    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, loop_thread, &loop), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    }
}

/* One thread, the last part first. */
static void backwards(void *context, unsigned caller,
    void (*part)(void *arg, unsigned p, unsigned thread), void *arg, unsigned parts)
{
    (void)context;
    for (unsigned p = parts; p-- > 0;) {
        part(arg, p, caller);
    }
}

/* ------------------------------------------------------------------ cases */

struct sums {
    uint64_t positions;
    unsigned lists;
    struct sparse list[LISTS_MAX];
    /* The reference, by position. */
    uint8_t *present;
    float *sum;
    double *wide, *size; /* the sum, and the sum of the magnitudes */
    size_t count;
};

/* Of very different magnitudes, so that the order of a sum shows in its bits; zeros of both signs.
 */
static float some_value(void)
{
    const uint64_t kind = random_below(40);

    if (kind < 2) {
        return kind == 0 ? 0.0f : -0.0f;
    }
    return ldexpf(random_value(), (int)random_below(24) - 12);
}

/* Every position with a chance of `chance` in 2^20. */
static struct sparse some_list(uint64_t positions, uint64_t chance)
{
    struct sparse list = sparse_make(positions);

    for (uint64_t p = 0; p < positions; p++) {
        if (random_below(1u << 20) < chance) {
            list.position[list.count] = (uint32_t)p;
            list.value[list.count++] = some_value();
        }
    }
    return list;
}

static void sums_init(struct sums *sums, uint64_t positions)
{
    *sums = (struct sums){.positions = positions,
        .present = allocate(positions, 1),
        .sum = allocate(positions, sizeof(float)),
        .wide = allocate(positions, sizeof(double)),
        .size = allocate(positions, sizeof(double))};
}

static void sums_add(struct sums *sums, struct sparse list)
{
    sums->list[sums->lists++] = list;
    for (size_t i = 0; i < list.count; i++) {
        const uint32_t p = list.position[i];

        sums->sum[p] += list.value[i]; /* from 0, so that it never is -0 */
        sums->wide[p] += (double)list.value[i];
        sums->size[p] += fabs((double)list.value[i]);
        sums->count += sums->present[p] ? 0 : 1;
        sums->present[p] = 1;
    }
}

static void sums_free(struct sums *sums)
{
    for (unsigned l = 0; l < sums->lists; l++) {
        sparse_drop(&sums->list[l]);
    }
    free(sums->present);
    free(sums->sum);
    free(sums->wide);
    free(sums->size);
}

static void check_sum(const struct sums *sums, const struct sparse *out, float scale)
{
    size_t i = 0;

    assert_int_equal(out->count, sums->count);
    for (uint64_t p = 0; p < sums->positions; p++) {
        if (sums->present[p] == 0) {
            continue;
        }
        const float want = sums->sum[p] * scale;
        const double error = fabs((double)out->value[i] - sums->wide[p] * (double)scale);
        const double bound = 3e-6 * sums->size[p] * (double)scale + 0x1p-149;

        assert_int_equal(out->position[i], p);
        if (isnan(want)) {
            assert_true(isnan(out->value[i]));
        } else {
            assert_same_bits(&out->value[i], &want, 1);
            assert_true(isinf(want) || error <= bound);
        }
        i++;
    }
}

static void check_dense(const struct sums *sums, const float *dense, float scale)
{
    for (uint64_t p = 0; p < sums->positions; p++) {
        const float want = sums->sum[p] * scale;

        if (isnan(want)) {
            assert_true(isnan(dense[p]));
        } else {
            assert_same_bits(&dense[p], &want, 1);
        }
    }
}

/* Without a list, entries that are 0, or that follow others whose sum is 0, may count again. */
static void check_count(const struct sums *sums, size_t count)
{
    size_t least = 0, most = 0;

    for (uint64_t p = 0; p < sums->positions; p++) {
        least += sums->sum[p] != 0;
    }
    for (unsigned l = 0; l < sums->lists; l++) {
        most += sums->list[l].count;
    }
    assert_in_range(count, least, most);
}

/* What a window needs it clears, and it looks at nothing else. */
static __attribute__((noinline)) void spoil_stack(void)
{
    volatile uint8_t bytes[1 << 16];

    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = 0xff;
    }
}

/* Merges into a list, then into a list and a dense array, then into a dense array alone. `room`:
 * entries that the result may have. A sanitizer finds an overrun. */
static void check_merge(
    const struct sums *sums, const struct parallel *parallel, unsigned parts, size_t room)
{
    struct sparse out = sparse_make(room);
    float *dense = allocate(sums->positions, sizeof(*dense));
    struct merge merge = {.list = sums->list,
        .lists = sums->lists,
        .positions = sums->positions,
        .scale = random_below(2) == 0 ? 1.0f : 1.0f / 3.0f,
        .out = &out,
        .cursor = allocate((size_t)parts * sums->lists, sizeof(size_t)),
        .parts = parts};

    spoil_stack();
    merge_run(&merge, parallel);
    check_sum(sums, &out, merge.scale);
    merge.dense = dense;
    for (unsigned both = 2; both-- > 0;) {
        out.count = 0;
        memset(dense, 0xff, sums->positions * sizeof(*dense));
        merge.out = both ? &out : NULL;
        spoil_stack();
        merge_run(&merge, parallel);
        check_dense(sums, dense, merge.scale);
        if (both) {
            check_sum(sums, &out, merge.scale);
        } else {
            check_count(sums, merge.count);
        }
    }
    free(dense);
    free(merge.cursor);
    sparse_drop(&out);
}

static void check_all(const struct sums *sums)
{
    const struct parallel threads = {.run = on_threads, .threads = THREADS},
                          last_first = {.run = backwards}, none = {0};
    const unsigned parts = 2 + (unsigned)random_below(MERGE_PARTS - 1);

    check_merge(sums, &none, 1, sums->count);
    check_merge(sums, &none, parts, sums->count);
    check_merge(sums, &last_first, parts, sums->count);
    if (random_below(16) == 0) {
        check_merge(sums, &threads, parts, sums->count);
    }
}

/* Sizes around those of the windows. */
static uint64_t some_size(void)
{
    static const uint64_t near[] = {1, 63, 64, 65, 4096, 8191, 8192, 8193, 16384, 30000};

    return random_below(3) == 0 ? near[random_below(sizeof(near) / sizeof(near[0]))]
                                : 1 + random_below(random_below(8) == 0 ? 40000 : 300);
}

static void test_random(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 4000; round++) {
        const uint64_t chance = UINT64_C(1) << random_below(21);
        const unsigned lists = (unsigned)random_below(random_below(8) == 0 ? LISTS_MAX : 6);
        struct sums sums;

        sums_init(&sums, some_size());
        for (unsigned l = 0; l < lists; l++) { /* some of them empty, some full */
            const uint64_t own = random_below(6);
            sums_add(&sums, some_list(sums.positions, own == 0 ? 0 : own == 1 ? 1u << 20 : chance));
        }
        check_all(&sums);
        sums_free(&sums);
    }
}

static void test_same_positions(void **state)
{
    (void)state;
    for (unsigned lists = 0; lists <= LISTS_MAX; lists += lists < 4 ? 1 : 12) {
        struct sums sums;
        struct sparse first;

        sums_init(&sums, 20000);
        first = some_list(sums.positions, 1u << 16);
        for (unsigned l = 0; l < lists; l++) {
            struct sparse list = sparse_make(first.count);
            for (size_t i = 0; i < first.count; i++) {
                list.position[i] = first.position[i];
                list.value[i] = some_value();
            }
            list.count = first.count;
            sums_add(&sums, list);
        }
        check_all(&sums);
        sums_free(&sums);
        sparse_drop(&first);
    }
}

/* The most entries with which windows keep all bits, and the fewest with which they do not. */
static void test_crowded(void **state)
{
    (void)state;
    for (unsigned lists = 1; lists <= 5; lists++) {
        for (unsigned entries = 1023; entries <= 1024; entries++) {
            struct sums sums;

            sums_init(&sums, 32 * 1024);
            for (unsigned l = 0; l < lists; l++) {
                struct sparse list = sparse_make(entries);
                for (uint32_t i = entries * l / lists; i < entries * (l + 1) / lists; i++) {
                    list.position[list.count] = 31 * i + 7 * l;
                    list.value[list.count++] = some_value();
                }
                sums_add(&sums, list);
            }
            check_all(&sums);
            sums_free(&sums);
        }
    }
}

/* 1, 2, ... 64 parts give the same bits, on one thread and on many. */
static void test_every_number_of_parts(void **state)
{
    const struct parallel threads = {.run = on_threads, .threads = THREADS}, none = {0};

    (void)state;
    for (unsigned lists = 1; lists <= 9; lists += 2) {
        struct sums sums;

        sums_init(&sums, 300000);
        for (unsigned l = 0; l < lists; l++) { /* one long, the others shorter and shorter */
            sums_add(&sums, some_list(sums.positions, (1u << 18) >> 2 * l));
        }
        for (unsigned parts = 1; parts <= MERGE_PARTS; parts++) {
            check_merge(&sums, parts % 4 == 0 ? &threads : &none, parts, sums.positions);
        }
        sums_free(&sums);
    }
}

/* Two lists that are merged in pairs of parts, of which the last may be alone, or have no entries.
 * TSan looks at the threads. */
static void test_pairs(void **state)
{
    const struct parallel threads = {.run = on_threads, .threads = THREADS}, none = {0};

    (void)state;
    for (unsigned lists = 1; lists <= 2; lists++) {
        struct sums sums;

        sums_init(&sums, 120000);
        for (unsigned l = 0; l < lists; l++) {
            sums_add(&sums, some_list(sums.positions, 12000));
        }
        for (unsigned parts = 1; parts <= 17; parts++) {
            check_merge(&sums, &none, parts, sums.count);
            check_merge(&sums, &threads, parts, sums.count);
        }
        sums_free(&sums);
    }
}

/* Few positions, of which many are written together, from any place in a cache line to any other.
 * Their neighbours stay unchanged. */
static void test_small_of_large(void **state)
{
    const struct parallel none = {0};

    (void)state;
    for (unsigned positions = 1; positions < 70; positions++) {
        const unsigned offset = 1 + (unsigned)random_below(16);
        float *dense = allocate(positions + offset + 1, sizeof(*dense));
        struct sums sums;

        sums_init(&sums, positions);
        sums_add(&sums, some_list(positions, 1u << 18));
        sums_add(&sums, some_list(positions, 1u << 18));
        struct merge merge = {.list = sums.list,
            .lists = sums.lists,
            .positions = positions,
            .scale = 0.5f,
            .dense = dense + offset,
            .written = UINT64_C(1) << 20,
            .cursor = allocate(sums.lists, sizeof(size_t)),
            .parts = 1};
        dense[offset - 1] = dense[offset + positions] = 7;
        merge_run(&merge, &none);
        check_dense(&sums, merge.dense, merge.scale);
        assert_true(dense[offset - 1] == 7 && dense[offset + positions] == 7);
        free(merge.cursor);
        free(dense);
        sums_free(&sums);
    }
}

/* So many positions that they are written past the caches. Their last window is not full, and not
 * all beginnings are aligned. */
static void test_large(void **state)
{
    const struct parallel threads = {.run = on_threads, .threads = THREADS}, none = {0};
    struct sums sums;

    (void)state;
    sums_init(&sums, (UINT64_C(1) << 19) + 1237);
    for (unsigned l = 0; l < 3; l++) {
        sums_add(&sums, some_list(sums.positions, 20000));
    }
    check_merge(&sums, &none, 1, sums.positions);
    check_merge(&sums, &threads, 7, sums.positions);
    for (unsigned offset = 1; offset < 4; offset++) {
        float *dense = allocate(sums.positions + offset, sizeof(*dense));
        struct merge merge = {.list = sums.list,
            .lists = sums.lists,
            .positions = sums.positions,
            .scale = 0.5f,
            .dense = dense + offset,
            .cursor = allocate(sums.lists, sizeof(size_t)),
            .parts = 1};
        merge_run(&merge, &none);
        check_dense(&sums, merge.dense, merge.scale);
        free(merge.cursor);
        free(dense);
    }
    sums_free(&sums);
}

/* No such value reaches a sum. If one did: no crash, and NaN stays NaN. */
static void test_not_finite(void **state)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN, 3e38f, -0.0f, 0x1p-149f};

    (void)state;
    for (unsigned lists = 1; lists <= 4; lists++) {
        for (unsigned round = 0; round < 50; round++) {
            struct sums sums;

            sums_init(&sums, 50);
            for (unsigned l = 0; l < lists; l++) {
                struct sparse list = some_list(sums.positions, 1u << 19);
                for (size_t i = 0; i < list.count; i++) {
                    list.value[i] = odd[random_below(sizeof(odd) / sizeof(odd[0]))];
                }
                sums_add(&sums, list);
            }
            check_all(&sums);
            sums_free(&sums);
        }
    }
}

/* 1 + 2^-24 + 2^-24 is 1 from the left and 1 + 2^-23 from the right. */
static void test_order_shows(void **state)
{
    const struct parallel none = {0};
    uint32_t position[1] = {7};
    float big[1] = {1.0f}, small[1] = {0x1p-24f}, value[1];
    const struct sparse a = {position, big, 1, 1}, b = {position, small, 1, 1};
    const struct sparse lists[2][3] = {{a, b, b}, {b, b, a}};
    uint32_t at[1];
    struct sparse out = {at, value, 0, 1};
    size_t cursor[3];

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct merge merge = {.list = lists[i],
            .lists = 3,
            .positions = 8,
            .scale = 1.0f,
            .out = &out,
            .cursor = cursor,
            .parts = 1};
        merge_run(&merge, &none);
        assert_int_equal(out.count, 1);
        assert_int_equal(at[0], 7);
        assert_true(value[0] == (i == 0 ? 1.0f : 1.0f + 0x1p-23f));
    }
}

static void test_parts(void **state)
{
    const struct parallel one = {0}, eight = {.run = on_threads, .threads = 8},
                          eager = {.run = on_threads, .threads = 8, .eager = true};

    (void)state;
    assert_int_equal(merge_parts(0, 0, false, &one), 1);
    assert_int_equal(merge_parts(0, 0, false, &eight), 1);
    assert_int_equal(merge_parts(25000000, 4000000, false, &one), 1); /* no thread to share with */
    assert_int_equal(merge_parts(25000000, 100, false, &eight), 1);
    assert_in_range(merge_parts(25000000, 500000, false, &eight), 2, MERGE_PARTS);
    assert_int_equal(merge_parts(UINT32_MAX, UINT32_MAX, false, &eight), MERGE_PARTS);
    assert_int_equal(merge_parts(8192, UINT32_MAX, false, &eight), 1); /* one window is not cut */
    assert_int_equal(merge_parts(25000000, 100, false, &eager), MERGE_PARTS);
    assert_int_equal(merge_parts(8193, 100, false, &eager), 2);
    assert_int_equal(merge_parts(0, 0, false, &eager), 1);
    assert_in_range(merge_parts(25000000, 100, true, &eight), 2, MERGE_PARTS); /* much to write */
    assert_int_equal(merge_parts(8192, 100, true, &eight), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_same_positions),
        cmocka_unit_test(test_crowded),
        cmocka_unit_test(test_every_number_of_parts),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_small_of_large),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_order_shows),
        cmocka_unit_test(test_parts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
