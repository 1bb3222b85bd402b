#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/arrays.h"
#include "tests/unit/collective_bucket.h"
#include "tests/unit/values_reference.h"

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* A value whose magnitude varies widely, so that the order of a sum shows in its bits. */
static float some_value(void)
{
    return ldexpf(random_value(), (int)random_below(24) - 12);
}

void bucket_init(
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

void bucket_fill_list(
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

void bucket_want_dense(struct bucket *bucket, unsigned m, unsigned t, bool only)
{
    struct exchange_tensor *tensor = &bucket->tensor[m][t];

    tensor->dense = allocate(bucket->numel[t], sizeof(float));
    memset(tensor->dense, 0xff, bucket->numel[t] * sizeof(float));
    if (only) {
        free(tensor->update.position);
        free(tensor->update.value);
        tensor->update.position = NULL;
        tensor->update.value = NULL;
    }
}

void bucket_fill_dense(struct bucket *bucket, struct group *group, unsigned m, unsigned t)
{
    struct exchange_tensor *tensor = &bucket->tensor[m][t];

    for (uint64_t i = 0; i < bucket->numel[t]; i++) {
        float value = i % 7 == 3 ? -0.0f : some_value(), rounded;
        bucket->acc[m][t][i] = value;
        reference_values(&value, 1, group->exchange[m].value, &rounded);
        bucket->sent[m][t][i] = bits_of(rounded);
    }
    tensor->acc = bucket->acc[m][t];
    tensor->dense = allocate(bucket->numel[t], sizeof(float));
}

void bucket_free(struct bucket *bucket)
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

/* The contribution of one or several members to an element. */
struct part {
    bool any;
    float sum;
};

static struct part part_of(const struct bucket *bucket, unsigned m, unsigned t, uint64_t i)
{
    uint32_t bits = bucket->sent[m][t][i];

    return (struct part){bits != ABSENT, float_of(bits)};
}

/* a + b. If only one of them has a value, that is the result. */
static struct part add(struct part a, struct part b)
{
    return !a.any ? b : !b.any ? a : (struct part){true, a.sum + b.sum};
}

/* Sums in the order of the members, beginning with one of them. */
static struct part sum_from(const struct bucket *bucket, unsigned first, unsigned t, uint64_t i)
{
    struct part sum = {false, 0};

    for (unsigned m = 0; m < bucket->members; m++) {
        sum = add(sum, part_of(bucket, (first + m) % bucket->members, t, i));
    }
    return sum;
}

/* Sums as a balanced tree over the members. If their number is no power of two the first ones are
 * added up in pairs. Lists drop sums of 0. */
static struct part sum_tree(const struct bucket *bucket, bool lists, unsigned t, uint64_t i)
{
    struct part part[GROUP_MAX];
    unsigned cores = 1, extras, m = 0;

    while (2 * cores <= bucket->members) {
        cores *= 2;
    }
    extras = bucket->members - cores;
    for (unsigned c = 0; c < cores; c++) {
        part[c] = part_of(bucket, m++, t, i);
        if (c < extras) {
            part[c] = add(part[c], part_of(bucket, m++, t, i));
            part[c].any = part[c].any && (!lists || part[c].sum != 0);
        }
    }
    for (; cores > 1; cores /= 2) {
        for (unsigned c = 0; c < cores / 2; c++) {
            part[c] = add(part[2 * c], part[2 * c + 1]);
            part[c].any = part[c].any && (!lists || part[c].sum != 0);
        }
    }
    return part[0];
}

unsigned bucket_ring_owner(const struct bucket *bucket, uint64_t segment, unsigned t, uint64_t i)
{
    uint64_t total = 0, at = i, segments = 1, first = 0, end;
    unsigned owner = 0;

    for (unsigned other = 0; other < bucket->tensors; other++) {
        total += bucket->numel[other];
        at += other < t ? bucket->numel[other] : 0;
    }
    end = total;
    if (segment > 0) {
        uint64_t most = 256 / (2 * (bucket->members - 1));
        segments = (total + segment * bucket->members - 1) / (segment * bucket->members);
        segments = segments < most ? segments : most;
    }
    for (uint64_t s = 0; s < segments; s++) {
        if (total * s / segments <= at && at < total * (s + 1) / segments) {
            first = total * s / segments;
            end = total * (s + 1) / segments;
        }
    }
    while (at >= first + (end - first) * (owner + 1) / bucket->members) {
        owner++;
    }
    return owner;
}

bool bucket_sum(
    const struct bucket *bucket, const struct group *group, unsigned t, uint64_t i, float *sum)
{
    const struct collective_ops *ops = group->ops;
    const struct exchange *exchange = &group->exchange[0];
    struct part part;

    if (ops == &collective_allreduce &&
        ops->phases(exchange) != collective_oneshot.phases(exchange) &&
        ops->phases(exchange) != collective_pairwise.phases(exchange)) {
        ops = &collective_halving;
    }
    if (bucket->members > 1 && ops == &collective_ring) {
        part = sum_from(bucket, bucket_ring_owner(bucket, exchange->segment, t, i), t, i);
    } else if (ops == &collective_halving || ops == &collective_hierarchical) {
        part = sum_tree(bucket, ops == &collective_hierarchical, t, i);
    } else {
        part = sum_from(bucket, 0, t, i);
    }
    /* The sum begins with 0, so it loses the sign of -0. */
    *sum = ops->traits.scatters || (ops->traits.dense && bucket->members > 1) ? 0.0f + part.sum
                                                                              : part.sum;
    return part.any;
}

void bucket_check_element(const struct bucket *bucket, const struct group *group, unsigned m,
    unsigned t, uint64_t i, float got)
{
    double scale = (double)group->exchange[m].scale, wide = 0, size = 0;
    float sum = 0;

    for (unsigned from = 0; from < bucket->members; from++) {
        struct part part = part_of(bucket, from, t, i);
        wide += part.any ? (double)part.sum : 0;
        size += part.any ? fabs((double)part.sum) : 0;
    }
    assert_true(bucket_sum(bucket, group, t, i, &sum));
    if (fabs((double)got - wide * scale) > 1e-6 * size * scale) {
        fail_msg("element %u is %g, not %g", (unsigned)i, (double)got, wide * scale);
    }
    assert_int_equal(bits_of(got), bits_of(sum * group->exchange[m].scale));
}

void bucket_check_dense(const struct bucket *bucket, const struct group *group)
{
    for (unsigned m = 0; m < bucket->members; m++) {
        for (unsigned t = 0; t < bucket->tensors; t++) {
            const float *dense = bucket->tensor[m][t].dense;
            assert_same_bits(dense, bucket->tensor[0][t].dense, bucket->numel[t]);
            for (uint64_t i = 0; m == 0 && i < bucket->numel[t]; i++) {
                bucket_check_element(bucket, group, m, t, i, dense[i]);
            }
        }
    }
}

/* Checks that the dense array agrees with the list. */
static void check_same(const struct sparse *list, const float *dense, uint64_t numel)
{
    float *want = allocate(numel, sizeof(*want));

    for (size_t i = 0; i < list->count; i++) {
        want[list->position[i]] = list->value[i];
    }
    assert_same_bits(dense, want, numel);
    free(want);
}

void bucket_check_lists(const struct bucket *bucket, const struct group *group)
{
    for (unsigned m = 0; m < bucket->members; m++) {
        for (unsigned t = 0; t < bucket->tensors; t++) {
            const struct sparse *update = &bucket->tensor[m][t].update;
            const struct sparse *first = &bucket->tensor[0][t].update;
            uint64_t entries = 0;
            if (bucket->tensor[m][t].dense != NULL) {
                check_same(first, bucket->tensor[m][t].dense, bucket->numel[t]);
            }
            if (update->position == NULL) {
                assert_int_equal(update->count > 0, first->count > 0);
                continue;
            }
            if (m > 0) {
                assert_int_equal(update->count, first->count);
                assert_memory_equal(
                    update->position, first->position, first->count * sizeof(uint32_t));
                assert_same_bits(update->value, first->value, first->count);
                continue;
            }
            for (uint64_t i = 0; i < bucket->numel[t]; i++) {
                float sum;
                if (bucket_sum(bucket, group, t, i, &sum)) {
                    assert_true(entries < update->count);
                    assert_int_equal(update->position[entries], i);
                    bucket_check_element(bucket, group, m, t, i, update->value[entries]);
                    entries++;
                }
            }
            assert_int_equal(update->count, entries);
        }
    }
}
