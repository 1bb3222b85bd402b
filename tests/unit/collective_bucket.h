/*
 * The contributions of a group's members to one bucket, and the sums that must result: in double
 * precision, and, bit for bit, in the order that each collective documents. Include it after
 * cmocka.h.
 */
#ifndef ADTOPK_TEST_COLLECTIVE_BUCKET_H
#define ADTOPK_TEST_COLLECTIVE_BUCKET_H

#include "tests/unit/collective_group.h"

#define TENSORS_MAX 4

/* A member's contribution of an element that is not in its list. */
#define ABSENT UINT32_MAX

/* One bucket: every member's contributions as bits of f32, as receivers decode them. ABSENT: the
 * element is not in the member's list. */
struct bucket {
    unsigned members, tensors;
    uint64_t numel[TENSORS_MAX];
    uint32_t *sent[GROUP_MAX][TENSORS_MAX];
    float *acc[GROUP_MAX][TENSORS_MAX]; /* values before rounding; dense only */
    struct exchange_tensor tensor[GROUP_MAX][TENSORS_MAX];
};

/** Makes tensors with these numbers of elements. No member contributes anything yet. */
void bucket_init(
    struct bucket *bucket, struct group *group, const uint64_t *numel, unsigned tensors);

/** Makes member m's list of tensor t, which has each element with a chance of `percent`. */
void bucket_fill_list(
    struct bucket *bucket, struct group *group, unsigned m, unsigned t, unsigned percent);

/** Member m wants tensor t's update as a dense array too, or only as one. */
void bucket_want_dense(struct bucket *bucket, unsigned m, unsigned t, bool only);

/** Member m contributes all elements of tensor t. */
void bucket_fill_dense(struct bucket *bucket, struct group *group, unsigned m, unsigned t);

/** The sum of element i in f32, as the group's collective forms it. False if no member sent it. */
bool bucket_sum(
    const struct bucket *bucket, const struct group *group, unsigned t, uint64_t i, float *sum);

/** The member that owns the slice of a ring with element i of tensor t. Segments have this many
 * elements (0: there is one segment). */
unsigned bucket_ring_owner(const struct bucket *bucket, uint64_t segment, unsigned t, uint64_t i);

/** Checks that an element of member m's result is this sum, scaled, and close to the sum in double
 * precision. */
void bucket_check_element(const struct bucket *bucket, const struct group *group, unsigned m,
    unsigned t, uint64_t i, float got);

/** Checks that all members have the right sums, with the same bits. Lists: checks member 0's. */
void bucket_check_dense(const struct bucket *bucket, const struct group *group);
void bucket_check_lists(const struct bucket *bucket, const struct group *group);

void bucket_free(struct bucket *bucket);

#endif
