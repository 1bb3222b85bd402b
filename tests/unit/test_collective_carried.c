/*
 * Collectives whose values a carrier moves: the agreement on numbers and groups, and frames that a
 * correct node never sends. Their sums: test_collective.c and test_collective_dense.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/collective/carried.h"
#include "tests/unit/collective_bucket.h"

#define MEMBERS 3u

static const uint64_t numel[2] = {100, 7};

static void begin(struct group *group, struct bucket *bucket, const struct collective_ops *ops)
{
    group_init(group, ops, MEMBERS);
    bucket_init(bucket, group, numel, 2);
    for (unsigned m = 0; m < MEMBERS; m++) {
        group->exchange[m].carried.proposed = 10 + m;
        group->exchange[m].carried.said.seen = m;
        for (unsigned t = 0; t < 2; t++) {
            bucket_fill_list(bucket, group, m, t, 30);
            if (ops->traits.dense) {
                bucket_fill_dense(bucket, group, m, t);
            }
        }
    }
    group->exchange[0].carried.group = (struct cargo_group){.number = 4, .name = {"four"}};
    group_exchange(group);
}

static void end(struct group *group, struct bucket *bucket)
{
    bucket_free(bucket);
    group_free(group);
}

static void test_agree(void **state)
{
    struct group group;
    struct bucket bucket;

    (void)state;
    begin(&group, &bucket, &collective_nccl_allgather);
    for (unsigned m = 0; m < MEMBERS; m++) {
        struct carried_groups said;
        struct cargo_group told;
        struct error err;
        uint64_t number;

        assert_int_equal(carried_agree(&group.exchange[m], 1, &number, &told, &err), ADTOPK_OK);
        assert_int_equal(number, 10 + MEMBERS - 1);
        assert_int_equal(told.number, 4);
        assert_string_equal((const char *)told.name[0], "four");
        assert_int_equal(told.self, m);
        carried_groups(&group.exchange[m], 0, &said);
        assert_int_equal(said.seen, MEMBERS - 1);
    }
    end(&group, &bucket);
}

/* Member 1's frame to member 0 becomes these words. */
static void forge(struct group *group, unsigned phase, const uint64_t *word, size_t size)
{
    struct payload_writer frame = group_begin(group, phase, 1);
    uint8_t *bytes = calloc(size + 1, 1);

    assert_non_null(bytes);
    for (size_t i = 0; i < size; i++) {
        bytes[i] = i / 8 < 4 ? (uint8_t)(word[i / 8] >> 8 * (i % 8)) : 0;
    }
    assert_int_equal(payload_put_bytes(&frame, bytes, size), ADTOPK_OK);
    group_end(group, phase, 1, 0, &frame);
    free(bytes);
}

static void expect_blame(const struct error *err)
{
    assert_int_equal(err->code, ADTOPK_ERR_PROTOCOL);
    assert_non_null(strstr(err->text, "node 307 "));
}

static void test_bad_ready(void **state)
{
    static const struct collective_ops *const kinds[] = {
        &collective_nccl_allgather, &collective_nccl_balanced, &collective_nccl_allreduce};
    const uint64_t bad[][4] = {{UINT64_C(1) << 40, 0, 0, 0}, {UINT64_MAX, 0, 0, 0},
        {107, UINT64_MAX, 0, 0}, {107, 0, UINT64_MAX, 0}, {107, 0, 0, UINT64_MAX}};
    const uint64_t good[4] = {107, 0, 0, 0};

    (void)state;
    for (unsigned k = 0; k < 3; k++) {
        struct group group;
        struct bucket bucket;
        struct error err;

        begin(&group, &bucket, kinds[k]);
        for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
            forge(&group, 0, bad[i], sizeof(good));
            assert_int_equal(group_judge(&group, 0, 0, &err), ADTOPK_ERR_PROTOCOL);
            expect_blame(&err);
        }
        forge(&group, 0, good, sizeof(good) - 1);
        assert_int_equal(group_judge(&group, 0, 0, &err), ADTOPK_ERR_PROTOCOL);
        expect_blame(&err);
        forge(&group, 0, good, sizeof(good));
        assert_int_equal(group_judge(&group, 0, 0, &err), ADTOPK_OK);
        end(&group, &bucket);
    }
}

static void test_bad_number(void **state)
{
    const uint64_t bad[][4] = {{UINT64_MAX, 0, 0, 0}, {1, UINT64_MAX, 0, 0}};
    const uint64_t good[4] = {77, 0, 0, 0};
    struct group group;
    struct bucket bucket;
    struct cargo_group told;
    struct error err;
    uint64_t number;

    (void)state;
    begin(&group, &bucket, &collective_nccl_allreduce);
    for (unsigned i = 0; i < 2; i++) {
        forge(&group, 1, bad[i], 16 + CARGO_NAME_SIZE);
        assert_int_not_equal(carried_agree(&group.exchange[0], 1, &number, &told, &err), ADTOPK_OK);
        expect_blame(&err);
    }
    forge(&group, 1, good, 16);
    assert_int_not_equal(carried_agree(&group.exchange[0], 1, &number, &told, &err), ADTOPK_OK);
    expect_blame(&err);
    forge(&group, 1, good, 16 + CARGO_NAME_SIZE);
    assert_int_equal(carried_agree(&group.exchange[0], 1, &number, &told, &err), ADTOPK_OK);
    assert_int_equal(number, 77);
    end(&group, &bucket);
}

/* A piece that the carrier has spoilt is blamed on the node that gave it. */
static void test_bad_piece(void **state)
{
    struct group group;
    struct bucket bucket;
    struct error err;

    (void)state;
    begin(&group, &bucket, &collective_nccl_allgather);
    group.exchange[0].carried.cargo->output[group.exchange[0].carried.cargo->bytes + 40] ^= 1;
    assert_int_equal(group.ops->finish(&group.exchange[0], &err), ADTOPK_ERR_PROTOCOL);
    expect_blame(&err);
    end(&group, &bucket);
}

/* The length in front of a piece does not fit it. */
static void test_bad_length(void **state)
{
    static const struct collective_ops *const kinds[] = {
        &collective_nccl_allgather, &collective_nccl_balanced};

    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        struct group group;
        struct bucket bucket;
        struct cargo *cargo;
        struct error err;

        begin(&group, &bucket, kinds[k]);
        cargo = group.exchange[0].carried.cargo;
        memset(cargo->output + cargo->bytes, 0xff, 2);
        assert_int_equal(group.ops->finish(&group.exchange[0], &err), ADTOPK_ERR_PROTOCOL);
        expect_blame(&err);
        assert_non_null(strstr(err.text, " bytes in a piece of "));
        end(&group, &bucket);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agree),
        cmocka_unit_test(test_bad_ready),
        cmocka_unit_test(test_bad_number),
        cmocka_unit_test(test_bad_piece),
        cmocka_unit_test(test_bad_length),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
