/*
 * Loss scales among the members of an exchange. A member with a complete sum knows the scale,
 * however few members pushed. Members always notice two different scales.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/arrays.h"
#include "tests/unit/collective_bucket.h"

#define LOSS 0x1p10f

static const struct collective_ops *const kinds[] = {&collective_oneshot, &collective_pairwise,
    &collective_ring, &collective_halving, &collective_allgather, &collective_balanced,
    &collective_hierarchical};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static const unsigned counts[] = GROUP_SIZES;
#define COUNTS (sizeof(counts) / sizeof(counts[0]))

struct scene {
    struct group group;
    struct bucket bucket;
};

static void scene_init(struct scene *scene, const struct collective_ops *ops, unsigned members)
{
    static const uint64_t numel[] = {64, 8, 73};

    group_init(&scene->group, ops, members);
    group_set_values(&scene->group, PAYLOAD_VALUE_F32, 1.0f / (float)members);
    bucket_init(&scene->bucket, &scene->group, numel, 3);
    for (unsigned m = 0; m < members; m++) {
        for (unsigned t = 0; t < 3; t++) {
            if (ops->traits.dense) {
                bucket_fill_dense(&scene->bucket, &scene->group, m, t);
            } else {
                bucket_fill_list(&scene->bucket, &scene->group, m, t, 20);
            }
        }
    }
}

static void scene_free(struct scene *scene)
{
    bucket_free(&scene->bucket);
    group_free(&scene->group);
}

/* Tells member m of a push. */
static void know(struct scene *scene, unsigned m, float loss)
{
    scene->group.exchange[m].header.loss_scale = loss;
    scene->group.exchange[m].header.loss_rank = 10 * m;
}

/* Takes the loss scale, a power of 2, out of a result. That must give the same bits as no scale. */
static void unscale(struct exchange_tensor *tensor, bool dense)
{
    for (uint64_t i = 0; dense && i < tensor->numel; i++) {
        tensor->dense[i] /= LOSS;
    }
    for (size_t i = 0; !dense && i < tensor->update.count; i++) {
        tensor->update.value[i] /= LOSS;
    }
}

static void check_scaled(const struct collective_ops *ops, unsigned members, unsigned knows)
{
    struct scene scene;
    struct error err;

    scene_init(&scene, ops, members);
    know(&scene, knows, LOSS);
    group_exchange(&scene.group);
    group_finish(&scene.group);
    for (unsigned m = 0; m < members; m++) {
        assert_true(scene.group.exchange[m].header.loss_scale == LOSS);
        assert_int_equal(scene.group.exchange[m].header.loss_rank, 10 * knows);
        assert_int_equal(exchange_check_scales(&scene.group.exchange[m], &err), ADTOPK_OK);
        for (unsigned t = 0; t < 3; t++) {
            unscale(&scene.bucket.tensor[m][t], ops->traits.dense);
        }
    }
    (ops->traits.dense ? bucket_check_dense : bucket_check_lists)(&scene.bucket, &scene.group);
    scene_free(&scene);
}

static void test_scaled(void **state)
{
    (void)state;
    for (unsigned i = 0; i < KINDS * COUNTS; i++) {
        unsigned members = counts[i / KINDS];
        for (unsigned knows = 0; knows < members; knows += 1 + members / 3) {
            check_scaled(kinds[i % KINDS], members, knows);
        }
    }
}

/* Two members, not necessarily neighbours, have different scales. */
static void check_different(
    const struct collective_ops *ops, unsigned members, unsigned one, unsigned other)
{
    struct scene scene;
    unsigned noticed = 0;

    scene_init(&scene, ops, members);
    know(&scene, one, 512);
    know(&scene, other, 0x1p20f);
    group_exchange(&scene.group);
    group_finish(&scene.group);
    for (unsigned m = 0; m < members; m++) {
        struct error err = {ADTOPK_OK, ""};
        char first[32], second[32];
        if (exchange_check_scales(&scene.group.exchange[m], &err) == ADTOPK_OK) {
            continue;
        }
        (void)snprintf(first, sizeof(first), "rank %u pushed with ", 10 * one);
        (void)snprintf(second, sizeof(second), "rank %u ", 10 * other);
        assert_int_equal(err.code, ADTOPK_ERR_MISMATCH);
        assert_non_null(strstr(err.text, "step 12: rank "));
        assert_true(strstr(err.text, first) != NULL || strstr(err.text, second) != NULL);
        assert_non_null(strstr(err.text, "512"));
        assert_non_null(strstr(err.text, "1048576"));
        noticed++;
    }
    assert_true(noticed > 0);
    scene_free(&scene);
}

static void test_different(void **state)
{
    (void)state;
    for (unsigned i = 0; i < KINDS * COUNTS; i++) {
        unsigned members = counts[i / KINDS];
        for (unsigned other = 1; other < members; other += 1 + members / 3) {
            check_different(kinds[i % KINDS], members, 0, other);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scaled),
        cmocka_unit_test(test_different),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
