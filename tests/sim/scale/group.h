/*
 * Many members of one exchange in one process, with the real collectives, over a modelled network.
 */
#ifndef ADTOPK_SCALE_GROUP_H
#define ADTOPK_SCALE_GROUP_H

#include "daemon/collective/collective.h"
#include "tests/sim/scale/fabric.h"

/* What the members contribute: each `entries` of `numel` positions, chosen anew in every step.
 * A share of them are the same on all, and so are their values but for noise. */
struct group_input {
    uint64_t numel, entries;
    double overlap;
    double first_eighth; /* share of the entries in the first eighth of the positions */
    double drift;        /* factor of all magnitudes from step to step */
    uint64_t seed;
};

/* Of one step. Bytes are those of frames; of messages that a node receives, unless it says `sent`.
 */
struct group_step {
    double seconds;               /* until the last node has all it needs */
    uint64_t messages;            /* most that one node received */
    uint64_t bytes, headers;      /* mean: without frame headers, and these */
    uint64_t bytes_max, sent_max; /* of one node */
    double imbalance;             /* largest over mean of what nodes receive in the first phase */
    uint64_t update;              /* entries of the sum */
};

struct group;

/** Errors: NULL without memory. finishing: so many members also form the sum (all the same bits, or
 * the step fails); the others stop when all their frames are there. */
struct group *group_open(const struct collective_ops *ops, unsigned members,
    const struct group_input *input, unsigned finishing);
void group_close(struct group *group);

/** How lists are encoded; at first as AUTO and bf16. */
void group_encode(struct group *group, enum payload_index index, enum payload_value value);

/** Runs one step, the first with an empty memory. False: `text` says what is wrong. */
bool group_run(struct group *group, const struct fabric_links *links, struct group_step *step,
    char text[ERROR_TEXT_SIZE]);

#endif
