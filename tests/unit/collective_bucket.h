/*
 * What the members of a group contribute to one bucket, and what must come out of it: sums in
 * double precision, and, bit for bit, in the order that each collective documents. Included behind
 * cmocka.h.
 */
#ifndef ADTOPK_TEST_COLLECTIVE_BUCKET_H
#define ADTOPK_TEST_COLLECTIVE_BUCKET_H

#include "tests/unit/collective_group.h"

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

/** Tensors of so many elements, of which nobody contributes any yet. */
void bucket_init(
    struct bucket *bucket, struct group *group, const uint64_t *numel, unsigned tensors);

/** Member m's list of tensor t: each element with a chance of `percent`. */
void bucket_fill_list(
    struct bucket *bucket, struct group *group, unsigned m, unsigned t, unsigned percent);

/** Member m wants tensor t's update as a dense array too, or only so. */
void bucket_want_dense(struct bucket *bucket, unsigned m, unsigned t, bool only);

/** All of its elements. */
void bucket_fill_dense(struct bucket *bucket, struct group *group, unsigned m, unsigned t);

/** The sum of element i as the group's collective forms it, in f32; false if nobody sent it. */
bool bucket_sum(
    const struct bucket *bucket, const struct group *group, unsigned t, uint64_t i, float *sum);

/** The member whose slice of a ring element i of tensor t lies in, with segments of so many
 * elements (0: one). */
unsigned bucket_ring_owner(const struct bucket *bucket, uint64_t segment, unsigned t, uint64_t i);

/** One element of member m's result is that, scaled, and close to the sum in double precision. */
void bucket_check_element(const struct bucket *bucket, const struct group *group, unsigned m,
    unsigned t, uint64_t i, float got);

/** All members have the right sums, and the same bits. Lists: member 0 has them. */
void bucket_check_dense(const struct bucket *bucket, const struct group *group);
void bucket_check_lists(const struct bucket *bucket, const struct group *group);

void bucket_free(struct bucket *bucket);

#endif
