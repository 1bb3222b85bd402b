/*
 * The members of one exchange, all in this process: the frames of each member become the inputs of
 * the others. Include it after cmocka.h. An error that a correct collective never has fails the
 * test.
 */
#ifndef ADTOPK_TEST_COLLECTIVE_GROUP_H
#define ADTOPK_TEST_COLLECTIVE_GROUP_H

#include "daemon/collective/collective.h"

#define GROUP_MAX 33
#define GROUP_PHASES 64

/* Numbers of members to try. */
#define GROUP_SIZES                                                                                \
    {                                                                                              \
        1, 2, 3, 4, 5, 6, 7, 8, 9, 16, GROUP_MAX                                                   \
    }

/* A frame from one sender to one receiver, in a block of exactly its size. */
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

/** Makes members whose ids are not indices, with values f32, encoding AUTO and scale 1. */
void group_init(struct group *group, const struct collective_ops *ops, unsigned members);

/** Sets another type of values and another scale for all members. */
void group_set_values(struct group *group, enum payload_value value, float scale);

/** Every member produces `phase`. Hands over exactly the frames that members expect. */
void group_produce(struct group *group, unsigned phase);

/** Runs all phases. */
void group_exchange(struct group *group);

/** Makes the results; all members must succeed. */
void group_finish(struct group *group);

/** Replaces a frame before it is read, by a copy of these bytes. */
void group_replace(struct group *group, unsigned phase, unsigned from, unsigned to,
    const uint8_t *bytes, size_t size);

/** Begins another frame of member `from`, which replaces its frame to member `to`. */
struct payload_writer group_begin(const struct group *group, unsigned phase, unsigned from);
void group_end(
    struct group *group, unsigned phase, unsigned from, unsigned to, struct payload_writer *writer);

/** The result of member `to` when it reads its frames, from the beginning to the end of `phase`. */
enum adtopk_status group_judge(struct group *group, unsigned phase, unsigned to, struct error *err);

/** Checks that member `to` refuses its frames, and blames node `from`. */
void group_assert_blamed(struct group *group, unsigned phase, unsigned from, unsigned to);

/** Checks that the receiver refuses the frame cut at every length, and with every byte changed.
 * Then restores the frame. */
void group_spoil(struct group *group, unsigned phase, unsigned from, unsigned to);

/** Visits every frame that was produced; returns their number. */
unsigned group_each_frame(struct group *group,
    void (*visit)(struct group *group, unsigned phase, unsigned from, unsigned to));

void group_free(struct group *group);

#endif
