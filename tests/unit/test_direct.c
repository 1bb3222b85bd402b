/*
 * The pass over a tensor that is sent whole while its residual is empty, compared with accumulate()
 * on zeros. It must give the same elements and the same ledger, and leave out the same elements.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/base/convert.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/direct.h"
#include "tests/unit/arrays.h"

#define RANKS 3u

/* One tensor's gradients. */
struct scene {
    uint64_t n;
    unsigned count;
    enum dtype dtype;
    void *gradient[RANKS]; /* NULL: not pushed */
};

static void put(void *gradient, enum dtype dtype, uint64_t i, float value)
{
    if (dtype == DTYPE_F32) {
        ((float *)gradient)[i] = value;
    } else {
        ((uint16_t *)gradient)[i] =
            dtype == DTYPE_F16 ? convert_to_f16(value) : convert_to_bf16(value);
    }
}

static void scene_init(struct scene *scene, uint64_t n, bool finite)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0x1p126f};

    *scene = (struct scene){.n = n,
        .count = (unsigned)random_below(RANKS + 1),
        .dtype = (enum dtype)random_below(DTYPE_COUNT)};
    for (unsigned r = 0; r < scene->count; r++) {
        if (random_below(6) == 0) {
            continue;
        }
        scene->gradient[r] = allocate(n, dtype_size(scene->dtype));
        for (uint64_t i = 0; i < n; i++) {
            const bool is_odd = !finite && random_below(500) == 0;
            put(scene->gradient[r], scene->dtype, i,
                is_odd ? odd[random_below(4)] : random_value());
        }
    }
}

static void scene_free(const struct scene *scene)
{
    for (unsigned r = 0; r < scene->count; r++) {
        free(scene->gradient[r]);
    }
}

/* A clock that pleases itself. */
static uint64_t random_ns(void)
{
    return random_below(1000);
}

/* Runs the pass in pieces, the last ones first, and some of them twice. */
static void run(struct direct *pass, const double before[2], unsigned parts)
{
    const uint64_t chunks = chunk_count(pass->n);

    direct_start(pass, before);
    for (unsigned p = parts; p-- > 0;) {
        direct_chunks(pass, chunks * p / parts, chunks * (p + 1) / parts);
    }
    direct_start(pass, (const double[]){7, 7}); /* a repetition, which begins at the same place */
    direct_chunks(pass, 0, chunks / parts);
}

static void check(const struct scene *scene, const struct chunk_ops *ops, float scale, bool summed)
{
    const double before[2] = {3, -5};
    struct ahead learned = {
        .now_ns = random_ns, .of[AHEAD_DIRECT].points = random_below(2) == 0 ? -16 : 16};
    double sums[2], found[2], want[2] = {0, 0};
    float *acc = allocate(scene->n, sizeof(*acc)), *sum = allocate(scene->n, sizeof(*sum));
    const uint64_t left_out = accumulate(
        acc, (const void *const *)scene->gradient, scene->count, scene->dtype, scene->n, want);
    struct progress *progress = allocate(1, progress_size(scene->n));
    struct direct pass = {.gradients = (const void *const *)scene->gradient,
        .count = scene->count,
        .dtype = scene->dtype,
        .n = scene->n,
        .sum = summed ? sum : NULL,
        .scale = scale,
        .stamp = 9,
        .progress = progress,
        .ahead = random_below(2) == 0 ? NULL : &learned,
        .ops = ops};

    run(&pass, before, 1 + (unsigned)random_below(5));
    assert_int_equal(direct_sums(progress, scene->n, sums, found), left_out);
    assert_memory_equal(found, before, sizeof(found));
    assert_memory_equal(sums, want, sizeof(want));
    for (uint64_t i = 0; summed && i < scene->n; i++) {
        const float scaled = acc[i] * scale;
        assert_same_bits(&sum[i], &scaled, 1);
    }
    free(progress);
    free(sum);
    free(acc);
}

static void test_random(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 300; round++) {
        const uint64_t n = random_below(4) == 0 ? 1 + random_below(70) : 1 + random_below(20000);

        for (unsigned o = 0; chunk_table[o] != NULL; o++) {
            struct scene scene;
            if (!chunk_table[o]->supported()) {
                continue;
            }
            scene_init(&scene, n, random_below(2) == 0);
            check(&scene, chunk_table[o], random_below(2) == 0 ? 1.0f : 1.0f / 3, true);
            check(&scene, chunk_table[o], 1, false);
            scene_free(&scene);
        }
    }
}

/* The tensor is so large that the pass writes it past the caches. */
static void test_large(void **state)
{
    struct scene scene;

    (void)state;
    scene_init(&scene, (UINT64_C(1) << 19) + 77, false);
    check(&scene, NULL, 0.5f, true);
    scene_free(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_large),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
