/*
 * The members of one exchange, all in this process: every member's frames become the inputs of the
 * others. Included behind cmocka.h; what cannot fail in a correct collective fails the test.
 */
#ifndef ADTOPK_TEST_COLLECTIVE_GROUP_H
#define ADTOPK_TEST_COLLECTIVE_GROUP_H

#include "daemon/collective/collective.h"

#define GROUP_MAX 33
#define GROUP_PHASES 64

/* How many members to try. */
#define GROUP_SIZES                                                                                \
    {                                                                                              \
        1, 2, 3, 4, 5, 6, 7, 8, 9, 16, GROUP_MAX                                                   \
    }

/* The frame of one sender for one receiver in a block of exactly its size. */
struct group_frame {
    uint8_t *bytes;
    size_t size;
};

struct group {
    unsigned members;
    const struct collective_ops *ops;
    struct exchange exchange[GROUP_MAX];
    struct exchange_input *input[GROUP_MAX];           /* [phase * members + from] */
    struct group_frame (*frame)[GROUP_MAX][GROUP_MAX]; /* [phase][from][to] */
    uint16_t node[GROUP_MAX];
};

/** Members with ids that are no indices, values f32, encoding AUTO and scale 1. */
void group_init(struct group *group, const struct collective_ops *ops, unsigned members);

/** Other values and another scale, of all members. */
void group_set_values(struct group *group, enum payload_value value, float scale);

/** Every member produces `phase`, and exactly the frames that others expect are handed over. */
void group_produce(struct group *group, unsigned phase);

/** All phases. */
void group_exchange(struct group *group);

/** Then the result; all members must succeed. */
void group_finish(struct group *group);

/** Replaces a frame before it is read; the bytes are copied. */
void group_replace(struct group *group, unsigned phase, unsigned from, unsigned to,
    const uint8_t *bytes, size_t size);

void group_free(struct group *group);

#endif
