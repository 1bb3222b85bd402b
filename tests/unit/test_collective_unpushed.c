/*
 * Tensors that no rank pushed: every collective tells all members of them. If no member can have
 * made a mark, the receiver refuses it with the name of its node.
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

static const uint64_t numel[TENSORS_MAX] = {300, 1, 130, 7};

/* Members that did not push a tensor contribute nothing of it. */
static void fill(struct bucket *bucket, struct group *group, unsigned m, unsigned t, bool unpushed)
{
    struct exchange_tensor *tensor = &bucket->tensor[m][t];
    const bool dense = group->ops->traits.dense;

    tensor->unpushed = unpushed;
    tensor->select = numel[t] / 10 + 1;
    bucket_fill_dense(bucket, group, m, t);
    if (unpushed) {
        memset(bucket->acc[m][t], 0, numel[t] * sizeof(float));
    }
    if (!dense) {
        bucket_fill_list(bucket, group, m, t, unpushed ? 0 : 30);
        free(tensor->dense);
        tensor->dense = NULL;
    }
}

static void begin(struct group *group, struct bucket *bucket, const struct collective_ops *ops,
    unsigned members, unsigned percent)
{
    group_init(group, ops, members);
    bucket_init(bucket, group, numel, TENSORS_MAX);
    for (unsigned m = 0; m < members; m++) {
        for (unsigned t = 0; t < TENSORS_MAX; t++) {
            fill(bucket, group, m, t, random_below(100) < percent);
        }
    }
}

/* All members must find the result that follows from all members' pushes. */
static void run(const struct collective_ops *ops, unsigned members, unsigned percent)
{
    struct group group;
    struct bucket bucket;
    bool none[TENSORS_MAX];

    begin(&group, &bucket, ops, members, percent);
    for (unsigned t = 0; t < TENSORS_MAX; t++) {
        none[t] = true;
        for (unsigned m = 0; m < members; m++) {
            none[t] = none[t] && bucket.tensor[m][t].unpushed;
        }
    }
    group_exchange(&group);
    group_finish(&group);
    for (unsigned m = 0; m < members; m++) {
        for (unsigned t = 0; t < TENSORS_MAX; t++) {
            if (bucket.tensor[m][t].unpushed != none[t]) {
                fail_msg("%s: member %u of %u takes tensor %u as %s", ops->name, m, members, t,
                    none[t] ? "pushed" : "unpushed");
            }
        }
    }
    bucket_free(&bucket);
    group_free(&group);
}

static void test_all_hear(void **state)
{
    static const unsigned sizes[] = GROUP_SIZES;

    (void)state;
    for (unsigned c = 0; collective_table[c] != NULL; c++) {
        const unsigned most = collective_table[c]->traits.members_max;
        for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            for (unsigned percent = 0; percent <= 100 && (most == 0 || sizes[s] <= most);
                 percent += 25) {
                run(collective_table[c], sizes[s], percent);
            }
        }
    }
}

/* The first section of a forged frame. */
static void forge(const uint8_t *bits, size_t size, const char *text)
{
    struct payload_writer writer;
    struct group group;
    struct bucket bucket;
    struct error err;

    begin(&group, &bucket, &collective_allgather, 3, 50);
    group_exchange(&group);
    group.exchange[1].header.flags = PAYLOAD_FLAG_UNPUSHED;
    writer = group_begin(&group, 0, 1);
    if (bits != NULL) {
        assert_int_equal(payload_put_bytes(&writer, bits, size), ADTOPK_OK);
    }
    group_end(&group, 0, 1, 0, &writer);
    group_assert_blamed(&group, 0, 1, 0);
    assert_int_equal(group_judge(&group, 0, 0, &err), ADTOPK_ERR_PROTOCOL);
    if (strstr(err.text, text) == NULL) {
        fail_msg("\"%s\" is not in: %s", text, err.text);
    }
    bucket_free(&bucket);
    group_free(&group);
}

static void test_forged(void **state)
{
    static const uint8_t none[1] = {0}, beyond[1] = {0x11}, two[2] = {1, 0};

    (void)state;
    forge(none, 1, "is empty");
    forge(none, 0, "does not fit 4 tensors");
    forge(beyond, 1, "names tensor 4");
    forge(two, 2, "count 2");
    forge(NULL, 0, "sections");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_hear),
        cmocka_unit_test(test_forged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
