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

/** Begins another frame of member `from`, and replaces the one to `to` by it. */
struct payload_writer group_begin(const struct group *group, unsigned phase, unsigned from);
void group_end(
    struct group *group, unsigned phase, unsigned from, unsigned to, struct payload_writer *writer);

/** What member `to` makes of its frames from the beginning to the end of `phase`. */
enum adtopk_status group_judge(struct group *group, unsigned phase, unsigned to, struct error *err);

/** Member `to` refuses them, and says that the fault is in what node `from` sent. */
void group_assert_blamed(struct group *group, unsigned phase, unsigned from, unsigned to);

/** A frame cut at every length and with every byte changed is refused; then it is as before. */
void group_spoil(struct group *group, unsigned phase, unsigned from, unsigned to);

/** Visits every frame that has been produced; returns their number. */
unsigned group_each_frame(struct group *group,
    void (*visit)(struct group *group, unsigned phase, unsigned from, unsigned to));

void group_free(struct group *group);

#endif
