/*
 * The collectives among 1 to 9 members in one process, against sums in double precision.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/arrays.h"
#include "tests/unit/collective_group.h"
#include "tests/unit/values_reference.h"

#define TENSORS_MAX 4

/* Where a member's contribution of one element is nothing at all. */
#define ABSENT UINT32_MAX

/* One bucket: what every member contributes, as bits of f32 (ABSENT: not in its list), as the
 * receivers decode it. */
struct bucket {
    unsigned members, tensors;
    uint64_t numel[TENSORS_MAX];
    uint32_t *sent[GROUP_MAX][TENSORS_MAX];
    float *acc[GROUP_MAX][TENSORS_MAX]; /* before rounding; dense only */
    struct exchange_tensor tensor[GROUP_MAX][TENSORS_MAX];
};

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Of very different magnitudes, so that the order of a sum shows in its bits. */
static float some_value(void)
{
    return ldexpf(random_value(), (int)random_below(24) - 12);
}

static void bucket_init(
    struct bucket *bucket, struct group *group, const uint64_t *numel, unsigned tensors)
{
    *bucket = (struct bucket){.members = group->members, .tensors = tensors};
    for (unsigned t = 0; t < tensors; t++) {
        bucket->numel[t] = numel[t];
        for (unsigned m = 0; m < group->members; m++) {
            bucket->sent[m][t] = allocate(numel[t], sizeof(uint32_t));
            memset(bucket->sent[m][t], 0xff, numel[t] * sizeof(uint32_t));
            bucket->acc[m][t] = allocate(numel[t], sizeof(float));
            bucket->tensor[m][t] = (struct exchange_tensor){
                .numel = numel[t], .shape = {.view = {1, numel[t], 1}, .max_count = numel[t]}};
        }
    }
    for (unsigned m = 0; m < group->members; m++) {
        group->exchange[m].tensors = tensors;
        group->exchange[m].tensor = bucket->tensor[m];
    }
}

/* Member m's list of tensor t: each element with a chance of `percent`. */
static void fill_list(
    struct bucket *bucket, struct group *group, unsigned m, unsigned t, unsigned percent)
{
    struct exchange_tensor *tensor = &bucket->tensor[m][t];
    uint64_t n = bucket->numel[t];
    float *raw = allocate(n, sizeof(float));

    tensor->sent.position = allocate(n, sizeof(uint32_t));
    tensor->sent.value = allocate(n, sizeof(float));
    tensor->sent.capacity = n;
    tensor->update.position = allocate(n, sizeof(uint32_t));
    tensor->update.value = allocate(n, sizeof(float));
    tensor->update.capacity = n;
    for (uint64_t i = 0; i < n; i++) {
        if (random_below(100) < percent) {
            raw[tensor->sent.count] = some_value();
            tensor->sent.position[tensor->sent.count++] = (uint32_t)i;
        }
    }
    reference_values(raw, tensor->sent.count, group->exchange[m].value, tensor->sent.value);
    for (size_t i = 0; i < tensor->sent.count; i++) {
        bucket->sent[m][t][tensor->sent.position[i]] = bits_of(tensor->sent.value[i]);
    }
    free(raw);
}

static void fill_dense(struct bucket *bucket, struct group *group, unsigned m, unsigned t)
{
    struct exchange_tensor *tensor = &bucket->tensor[m][t];

    for (uint64_t i = 0; i < bucket->numel[t]; i++) {
        float value = some_value(), rounded;
        bucket->acc[m][t][i] = value;
        reference_values(&value, 1, group->exchange[m].value, &rounded);
        bucket->sent[m][t][i] = bits_of(rounded);
    }
    tensor->acc = bucket->acc[m][t];
    tensor->dense = allocate(bucket->numel[t], sizeof(float));
}

static void bucket_free(struct bucket *bucket)
{
    for (unsigned m = 0; m < bucket->members; m++) {
        for (unsigned t = 0; t < bucket->tensors; t++) {
            struct exchange_tensor *tensor = &bucket->tensor[m][t];
            free(bucket->sent[m][t]);
            free(bucket->acc[m][t]);
            free(tensor->sent.position);
            free(tensor->sent.value);
            free(tensor->update.position);
            free(tensor->update.value);
            free(tensor->dense);
        }
    }
}

/* The sum of element i in the order of the members, in f32; false if nobody sent it. `wide` gets
 * it in double and `size` the sum of magnitudes. */
static bool sum_of(
    const struct bucket *bucket, unsigned t, uint64_t i, float *sum, double *wide, double *size)
{
    bool any = false;

    *wide = 0;
    *size = 0;
    for (unsigned m = 0; m < bucket->members; m++) {
        uint32_t bits = bucket->sent[m][t][i];
        if (bits == ABSENT) {
            continue;
        }
        *sum = any ? *sum + float_of(bits) : float_of(bits);
        *wide += (double)float_of(bits);
        *size += fabs((double)float_of(bits));
        any = true;
    }
    return any;
}

/* One element of member m's result against the references. */
static void check_element(const struct bucket *bucket, const struct group *group, unsigned m,
    unsigned t, uint64_t i, float got)
{
    double scale = (double)group->exchange[m].scale, wide, size;
    float sum = 0;

    assert_true(sum_of(bucket, t, i, &sum, &wide, &size));
    if (fabs((double)got - wide * scale) > 1e-6 * size * scale) {
        fail_msg("element %u is %g, not %g", (unsigned)i, (double)got, wide * scale);
    }
    assert_int_equal(bits_of(got), bits_of(sum * group->exchange[m].scale));
}

static void check_dense(const struct bucket *bucket, const struct group *group)
{
    for (unsigned m = 0; m < bucket->members; m++) {
        for (unsigned t = 0; t < bucket->tensors; t++) {
            const float *dense = bucket->tensor[m][t].dense;
            assert_same_bits(dense, bucket->tensor[0][t].dense, bucket->numel[t]);
            for (uint64_t i = 0; i < bucket->numel[t]; i++) {
                check_element(bucket, group, m, t, i, dense[i]);
            }
        }
    }
}

static void check_lists(const struct bucket *bucket, const struct group *group)
{
    for (unsigned m = 0; m < bucket->members; m++) {
        for (unsigned t = 0; t < bucket->tensors; t++) {
            const struct sparse *update = &bucket->tensor[m][t].update;
            const struct sparse *first = &bucket->tensor[0][t].update;
            uint64_t entries = 0;
            for (uint64_t i = 0; i < bucket->numel[t]; i++) {
                float sum;
                double wide, size;
                if (sum_of(bucket, t, i, &sum, &wide, &size)) {
                    assert_true(entries < update->count);
                    assert_int_equal(update->position[entries], i);
                    check_element(bucket, group, m, t, i, update->value[entries]);
                    entries++;
                }
            }
            assert_int_equal(update->count, entries);
            assert_same_bits(update->value, first->value, entries);
        }
    }
}

static void set_values(struct group *group, enum payload_value value, float scale)
{
    for (unsigned m = 0; m < group->members; m++) {
        group->exchange[m].value = value;
        group->exchange[m].scale = scale;
    }
}

static void run_lists(const struct collective_ops *ops, unsigned members, enum payload_value value,
    const uint64_t numel[4], const unsigned percent[GROUP_MAX])
{
    struct group group;
    struct bucket bucket;

    group_init(&group, ops, members);
    set_values(&group, value, 1.0f / (float)members);
    bucket_init(&bucket, &group, numel, 4);
    for (unsigned m = 0; m < members; m++) {
        for (unsigned t = 0; t < 4; t++) {
            fill_list(&bucket, &group, m, t, percent[m]);
        }
    }
    group_exchange(&group);
    group_finish(&group);
    check_lists(&bucket, &group);
    bucket_free(&bucket);
    group_free(&group);
}

/* Sums that travel again and may not be rounded are those of everybody's lists. */
static void test_sparse(void **state)
{
    static const struct collective_ops *const kinds[] = {
        &collective_allgather, &collective_balanced};
    static const unsigned even[GROUP_MAX] = {10, 10, 10, 10, 10, 10, 10, 10, 10};
    static const unsigned empty[GROUP_MAX] = {0};
    static const unsigned lopsided[GROUP_MAX] = {0, 100, 0, 1, 50, 0, 2, 100, 0};

    static const uint64_t numel[4] = {1000, 1, 130, 7};

    (void)state;
    for (unsigned i = 0; i < 2 * GROUP_MAX; i++) {
        const struct collective_ops *ops = kinds[i % 2];
        unsigned members = 1 + i / 2;
        int values = ops == &collective_allgather ? PAYLOAD_VALUE_COUNT : PAYLOAD_VALUE_INT8;
        for (int value = PAYLOAD_VALUE_F32; value < values; value++) {
            run_lists(ops, members, (enum payload_value)value, numel, even);
            run_lists(ops, members, (enum payload_value)value, numel, empty);
            run_lists(ops, members, (enum payload_value)value, numel, lopsided);
        }
    }
}

/* Large enough to be decoded and merged in parts. */
static void test_sparse_in_parts(void **state)
{
    static const uint64_t numel[4] = {9, 100000, 1, 70000};
    static const unsigned percent[GROUP_MAX] = {90, 20, 60, 50, 0};

    (void)state;
    for (unsigned members = 2; members <= 5; members++) {
        run_lists(&collective_allgather, members, PAYLOAD_VALUE_F32, numel, percent);
        run_lists(&collective_balanced, members, PAYLOAD_VALUE_F32, numel, percent);
    }
}

static bool is_in(const struct sparse *list, uint32_t position)
{
    for (size_t i = 0; i < list->count; i++) {
        if (list->position[i] == position) {
            return true;
        }
    }
    return false;
}

/* All that members contributed is in the sum or comes back to somebody, element for element. */
static void check_returned(const struct bucket *bucket, const struct group *group, size_t *returned)
{
    const struct sparse *update = &group->exchange[0].tensor[0].update;
    double *total = allocate(bucket->numel[0], sizeof(*total));

    for (unsigned m = 0; m < bucket->members; m++) {
        const struct exchange_tensor *tensor = &group->exchange[m].tensor[0];
        for (size_t i = 0; i < tensor->sent.count; i++) {
            total[tensor->sent.position[i]] += (double)tensor->sent.value[i];
        }
        for (size_t i = 0; i < tensor->returned.count; i++) {
            assert_true(i == 0 || tensor->returned.position[i - 1] < tensor->returned.position[i]);
            total[tensor->returned.position[i]] -= (double)tensor->returned.value[i];
        }
        *returned += tensor->returned.count;
    }
    for (unsigned m = 1; m < bucket->members; m++) {
        const struct sparse *other = &group->exchange[m].tensor[0].update;
        assert_int_equal(other->count, update->count);
        assert_memory_equal(other->position, update->position, update->count * sizeof(uint32_t));
        assert_same_bits(other->value, update->value, update->count);
    }
    for (size_t i = 0; i < update->count; i++) {
        total[update->position[i]] -= (double)update->value[i];
    }
    for (uint64_t i = 0; i < bucket->numel[0]; i++) {
        assert_true(total[i] == 0 || (group->ops->selects && !is_in(update, (uint32_t)i)));
    }
    free(total);
}

/* Whole numbers, which bf16 rounds when they are summed, and nothing else does. */
static void run_rounded(const struct collective_ops *ops, unsigned members, size_t room,
    unsigned percent, size_t *returned)
{
    static const uint64_t numel[] = {700};
    struct group group;
    struct bucket bucket;

    group_init(&group, ops, members);
    set_values(&group, PAYLOAD_VALUE_BF16, 1);
    bucket_init(&bucket, &group, numel, 1);
    for (unsigned m = 0; m < members; m++) {
        struct exchange_tensor *tensor = &bucket.tensor[m][0];
        fill_list(&bucket, &group, m, 0, percent);
        for (size_t i = 0; i < tensor->sent.count; i++) {
            tensor->sent.value[i] = (float)random_below(255) - 127;
        }
        tensor->returned.position = allocate(room, sizeof(uint32_t));
        tensor->returned.value = allocate(room, sizeof(float));
        tensor->returned.capacity = room;
    }
    group_exchange(&group);
    group_finish(&group);
    check_returned(&bucket, &group, returned);
    for (unsigned m = 0; m < members; m++) {
        free(bucket.tensor[m][0].returned.position);
        free(bucket.tensor[m][0].returned.value);
    }
    bucket_free(&bucket);
    group_free(&group);
}

static void test_rounded_sums(void **state)
{
    size_t returned = 0;

    (void)state;
    for (unsigned i = 0; i < 200; i++) {
        const struct collective_ops *ops = i % 2 == 0 ? &collective_balanced : &collective_oktopk;
        run_rounded(ops, 1 + i / 2 % GROUP_MAX, 700, (unsigned)random_below(101), &returned);
    }
    assert_true(returned > 200);
}

static void test_no_room_to_round(void **state)
{
    size_t returned = 0;

    (void)state;
    run_rounded(&collective_balanced, 5, 0, 100, &returned);
    assert_int_equal(returned, 0);
    run_rounded(&collective_balanced, 5, 20, 50, &returned);
}

/* ------------------------------------------------------------------ the k largest sums */

/* An entry of the sum, as the selection orders it: by the upper 16 bits of its magnitude, then by
 * position. */
struct summed {
    uint32_t cell;
    uint32_t position;
    float value;
};

static int by_size(const void *a, const void *b)
{
    const struct summed *left = a, *right = b;

    if (left->cell != right->cell) {
        return left->cell > right->cell ? -1 : 1;
    }
    return left->position < right->position ? -1 : left->position > right->position;
}

/* The k that must be selected, k being the mean of what the members sent; marks them. */
static size_t expected_largest(const struct bucket *bucket, const struct group *group, bool *marked)
{
    struct summed *sums = allocate(bucket->numel[0], sizeof(*sums));
    size_t count = 0, sent = 0, k;

    for (unsigned m = 0; m < bucket->members; m++) {
        sent += group->exchange[m].tensor[0].sent.count;
    }
    for (uint64_t i = 0; i < bucket->numel[0]; i++) {
        double wide, size;
        float sum = 0;
        if (sum_of(bucket, 0, i, &sum, &wide, &size) && sum != 0) {
            sums[count++] = (struct summed){(bits_of(sum) & 0x7fffffffu) >> 15, (uint32_t)i, sum};
        }
    }
    qsort(sums, count, sizeof(*sums), by_size);
    k = (sent + bucket->members - 1) / bucket->members;
    k = k < count ? k : count;
    for (size_t i = 0; i < k; i++) {
        marked[sums[i].position] = true;
    }
    free(sums);
    return k;
}

static void check_largest(const struct bucket *bucket, const struct group *group)
{
    bool *marked = allocate(bucket->numel[0], sizeof(*marked));
    size_t k = expected_largest(bucket, group, marked);

    for (unsigned m = 0; m < bucket->members; m++) {
        const struct sparse *update = &group->exchange[m].tensor[0].update;
        assert_int_equal(update->count, k);
        for (size_t i = 0; i < k; i++) {
            assert_true(marked[update->position[i]]);
            assert_true(i == 0 || update->position[i - 1] < update->position[i]);
            check_element(bucket, group, m, 0, update->position[i], update->value[i]);
        }
    }
    free(marked);
}

/* Some turns with one memory: the first without any, then some that are like it, then another. */
static void run_largest(unsigned members, uint64_t numel, unsigned skew)
{
    struct exchange_memory memory[GROUP_MAX] = {0};

    for (unsigned turn = 0; turn < 5; turn++) {
        struct group group;
        struct bucket bucket;
        group_init(&group, &collective_oktopk, members);
        bucket_init(&bucket, &group, &numel, 1);
        for (unsigned m = 0; m < members; m++) {
            struct sparse *sent;
            fill_list(&bucket, &group, m, 0, skew == 1 && m > 0 ? 0 : 20);
            sent = &bucket.tensor[m][0].sent;
            for (size_t i = 0; i < sent->count; i++) {
                if (skew == 2 && sent->position[i] > numel / 8) {
                    sent->value[i] *= 0x1p-20f;
                } else if (skew == 3) {
                    sent->value[i] = 1;
                } else if (turn == 4) {
                    sent->value[i] *= 1000;
                }
                bucket.sent[m][0][sent->position[i]] = bits_of(sent->value[i]);
            }
            bucket.tensor[m][0].memory = &memory[m];
        }
        group_exchange(&group);
        group_finish(&group);
        check_largest(&bucket, &group);
        bucket_free(&bucket);
        group_free(&group);
    }
    for (unsigned m = 0; m < members; m++) {
        free(memory[m].cut);
    }
}

static void test_largest(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 20 * GROUP_MAX; i++) {
        run_largest(1 + i % GROUP_MAX, 1 + random_below(1500), i % 4);
    }
    run_largest(4, 60000, 2);
}

/* Of frames that are decoded at the same time, several bad ones: the lowest node is told of,
 * whichever was looked at first. */
static void test_bad_frames_in_parts(void **state)
{
    static const uint64_t numel[] = {100000};
    struct group group;
    struct bucket bucket;

    (void)state;
    group_init(&group, &collective_allgather, 4);
    bucket_init(&bucket, &group, numel, 1);
    for (unsigned m = 0; m < 4; m++) {
        fill_list(&bucket, &group, m, 0, 60);
    }
    group_exchange(&group);
    for (unsigned bad = 3; bad > 0; bad--) {
        struct payload_writer writer = {0};
        struct error err;
        char name[16];
        assert_int_equal(payload_begin(&writer, &group.exchange[bad].header), ADTOPK_OK);
        assert_int_equal(payload_put_bytes(&writer, numel, sizeof(numel)), ADTOPK_OK);
        payload_end(&writer);
        group_replace(&group, 0, bad, 0, writer.bytes, writer.size);
        payload_free(&writer);
        assert_int_equal(group.ops->finish(&group.exchange[0], &err), ADTOPK_ERR_PROTOCOL);
        (void)snprintf(name, sizeof(name), "node %u ", group.node[bad]);
        assert_non_null(strstr(err.text, name));
    }
    bucket_free(&bucket);
    group_free(&group);
}

static void run_allreduce(
    unsigned members, enum payload_value value, const uint64_t *numel, unsigned tensors)
{
    struct group group;
    struct bucket bucket;

    group_init(&group, &collective_allreduce, members);
    set_values(&group, value, members % 2 == 0 ? 1.0f : 1.0f / (float)members);
    bucket_init(&bucket, &group, numel, tensors);
    for (unsigned m = 0; m < members; m++) {
        for (unsigned t = 0; t < tensors; t++) {
            fill_dense(&bucket, &group, m, t);
        }
    }
    group_exchange(&group);
    group_finish(&group);
    check_dense(&bucket, &group);
    bucket_free(&bucket);
    group_free(&group);
}

static void test_allreduce(void **state)
{
    static const uint64_t even[] = {64, 8, 72, 9}, small[] = {1}, few[] = {2, 1, 1},
                          lopsided[] = {1, 997, 1, 3};

    (void)state;
    for (unsigned members = 1; members <= GROUP_MAX; members++) {
        for (int value = PAYLOAD_VALUE_F32; value <= PAYLOAD_VALUE_F16; value++) {
            run_allreduce(members, (enum payload_value)value, even, 4);
            run_allreduce(members, (enum payload_value)value, small, 1); /* empty slices */
            run_allreduce(members, (enum payload_value)value, few, 3);
            run_allreduce(members, (enum payload_value)value, lopsided, 4);
        }
    }
}

/* 1 + 2^-24 + 2^-24 is 1 from the left and 1 + 2^-23 from the right: the values of the tests above
 * do tell orders apart. */
static void test_order_shows(void **state)
{
    static const uint64_t numel[] = {1};
    static const float sent[] = {1.0f, 0x1p-24f, 0x1p-24f};
    const struct collective_ops *const kinds[] = {&collective_allreduce, &collective_allgather};

    (void)state;
    for (unsigned k = 0; k < 2; k++) {
        for (unsigned turn = 0; turn < 2; turn++) { /* forwards, backwards */
            struct group group;
            struct bucket bucket;
            float got;
            group_init(&group, kinds[k], 3);
            bucket_init(&bucket, &group, numel, 1);
            for (unsigned m = 0; m < 3; m++) {
                float value = sent[turn == 0 ? m : 2 - m];
                fill_list(&bucket, &group, m, 0, 100);
                fill_dense(&bucket, &group, m, 0);
                bucket.tensor[m][0].sent.value[0] = value;
                bucket.acc[m][0][0] = value;
            }
            group_exchange(&group);
            group_finish(&group);
            for (unsigned m = 0; m < 3; m++) {
                got = k == 0 ? bucket.tensor[m][0].dense[0] : bucket.tensor[m][0].update.value[0];
                assert_true(got == (turn == 0 ? 1.0f : 1.0f + 0x1p-23f));
            }
            bucket_free(&bucket);
            group_free(&group);
        }
    }
}

static void test_nonfinite_travels(void **state)
{
    static const uint64_t numel[] = {2}; /* fewer elements than members: all must hear it */
    const struct collective_ops *const kinds[] = {
        &collective_allreduce, &collective_allgather, &collective_plain};

    (void)state;
    for (unsigned k = 0; k < 3; k++) {
        for (unsigned culprit = 0; culprit <= 4; culprit++) { /* 4: nobody */
            struct group group;
            struct bucket bucket;
            struct exchange_op op = {.kind = OP_BARRIER};
            group_init(&group, kinds[k], 4);
            bucket_init(&bucket, &group, numel, 1);
            for (unsigned m = 0; m < 4; m++) {
                fill_list(&bucket, &group, m, 0, 50);
                fill_dense(&bucket, &group, m, 0);
                group.exchange[m].nonfinite = m == culprit;
                group.exchange[m].op = kinds[k] == &collective_plain ? &op : NULL;
            }
            group_exchange(&group);
            group_finish(&group);
            for (unsigned m = 0; m < 4; m++) {
                assert_int_equal(group.exchange[m].nonfinite, culprit < 4);
            }
            bucket_free(&bucket);
            group_free(&group);
        }
    }
}

static void test_table(void **state)
{
    (void)state;
    assert_ptr_equal(collective_find("allgather"), &collective_allgather);
    assert_ptr_equal(collective_find("allreduce"), &collective_allreduce);
    assert_null(collective_find("plain")); /* not a policy's to name */
    assert_null(collective_find(""));
    assert_null(collective_find("Allreduce"));
    for (unsigned i = 0; collective_table[i] != NULL; i++) {
        assert_ptr_equal(collective_find(collective_table[i]->name), collective_table[i]);
    }
    assert_true(collective_allreduce.dense);
    assert_false(collective_allgather.dense);
    assert_false(collective_allgather.selects); /* all that is sent is in the sum */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sparse),
        cmocka_unit_test(test_sparse_in_parts),
        cmocka_unit_test(test_rounded_sums),
        cmocka_unit_test(test_no_room_to_round),
        cmocka_unit_test(test_largest),
        cmocka_unit_test(test_bad_frames_in_parts),
        cmocka_unit_test(test_allreduce),
        cmocka_unit_test(test_order_shows),
        cmocka_unit_test(test_nonfinite_travels),
        cmocka_unit_test(test_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
