/*
 * Many members of one exchange in one process, with the real collectives, over a modelled network.
 */
#ifndef ADTOPK_SCALE_GROUP_H
#define ADTOPK_SCALE_GROUP_H

#include "daemon/collective/collective.h"
#include "tests/sim/scale/fabric.h"

/* The contributions of the members: each has `entries` of `numel` positions, chosen anew in every
 * step. A share of them is the same on all members, and so are their values but for noise. */
struct group_input {
    uint64_t numel, entries; /* fewer where two fall on one position */
    double overlap;
    double first_eighth; /* share of the entries in the first eighth of the positions */
    double drift;        /* factor of all magnitudes from step to step */
    uint64_t seed;
};

/* The counts of one step. Bytes are those of the frames that a node receives, or sent, without
 * their headers, which are counted separately. */
struct group_step {
    double seconds;               /* until the last node has all it needs */
    double entries;               /* mean that the nodes contributed */
    uint64_t messages;            /* most that one node received */
    double bytes, headers;        /* mean */
    uint64_t bytes_max, sent_max; /* of one node */
    double imbalance;             /* largest over mean of the bytes that nodes receive in the first
                                   * phase */
    uint64_t update;              /* entries of the sum */
};

struct group;

/** Whether it works on lists and frames alone. A collective that selects from whole residuals would
 * need those of all members at once, and one that is carried a carrier. */
static inline bool group_takes(const struct collective_ops *ops)
{
    return !ops->traits.dense && ops->traits.picks != PICKS_POSITIONS && ops->traits.framed == NULL;
}

/** Errors: NULL without memory. finishing: so many members also form the sum (all the same bits, or
 * the step fails); the others stop when all their frames are there. */
struct group *group_open(const struct collective_ops *ops, unsigned members,
    const struct group_input *input, unsigned finishing);
void group_close(struct group *group);

/** How lists are encoded; at first as AUTO and bf16. */
void group_encode(struct group *group, enum payload_index index, enum payload_value value);

/** For each received byte of a phase a node takes so many seconds before it goes on; at first 0. */
void group_compute(struct group *group, double seconds_a_byte);

/** Runs one step, the first with an empty memory. False: `text` has the error. */
bool group_run(struct group *group, const struct fabric_links *links, struct group_step *step,
    char text[ERROR_TEXT_SIZE]);

#endif
