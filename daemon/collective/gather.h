/*
 * The lists that the members sent in one phase: checked, decoded and summed, one tensor after the
 * other, on several threads where some are idle. Which thread did what shows in nothing: of several
 * bad frames, the one of the lowest node is reported.
 */
#ifndef ADTOPK_GATHER_H
#define ADTOPK_GATHER_H

#include "daemon/collective/collective.h"

struct gather {
    struct exchange *exchange;
    unsigned phase;
    unsigned tensor;                   /* the one at hand */
    const struct payload_shape *shape; /* of its lists, [member] */
    struct payload_reader *reader;     /* [member] */
    struct sparse *list;               /* [member], of this tensor; its own is borrowed */
    struct error *error;               /* [member]; OK unless there is one */
};

/** Opens the frames of all members that send one in `phase`, and notes their flags. Errors: MEMORY;
 * PROTOCOL, which names the node. Whatever it returns, gather_free() is due. */
enum adtopk_status gather_open(
    struct gather *gather, struct exchange *exchange, unsigned phase, struct error *err);

/** Decodes the next tensor's lists into gather->list. shape: what a decoder has to know of each
 * member's; own: this member's, borrowed until the next call. Errors as above. */
enum adtopk_status gather_next(struct gather *gather, const struct payload_shape *shape,
    const struct sparse *own, struct error *err);

/** Blames the node that sent most if all lists together have more than `most` entries. */
enum adtopk_status gather_limit(const struct gather *gather, uint64_t most, struct error *err);

/** out = scale * ((list 0 + list 1) + ...), over `positions`; it has room for all entries or all
 * positions. Errors: MEMORY. */
enum adtopk_status gather_sum(const struct gather *gather, uint64_t positions, float scale,
    struct sparse *out, struct error *err);

/** Fails if a frame has more than was read. */
enum adtopk_status gather_close(const struct gather *gather, struct error *err);

void gather_free(struct gather *gather);

#endif
