/*
 * Checks, decodes and sums the lists that the members sent in one phase, one tensor after the
 * other, on several threads where some are idle. The result does not depend on which thread did
 * what: of several bad frames, the one of the lowest node is reported.
 */
#ifndef ADTOPK_GATHER_H
#define ADTOPK_GATHER_H

#include "daemon/collective/collective.h"

struct gather {
    struct exchange *exchange;
    unsigned phase;
    uint64_t elements;             /* of all tensors */
    unsigned segments;             /* of every list; 0 until the collective has counted them */
    struct payload_shape *shape;   /* [member]: how its list of the tensor at hand looks */
    struct payload_reader *reader; /* [member] */
    struct sparse *list;           /* [member], of the tensor at hand; its own is borrowed */
    struct error *error;           /* [member]; OK unless there is one */
};

/** The function that is called for a tensor. */
typedef enum adtopk_status gather_visit(struct gather *gather, unsigned t, struct error *err);

/** Opens the frames of all members that send one in `phase`, notes their flags and visits each
 * tensor. Fails if a frame is longer than its contents. Errors: those of the visits; MEMORY;
 * PROTOCOL, which names the node. */
enum adtopk_status gather_each(
    struct exchange *exchange, unsigned phase, gather_visit *visit, struct error *err);

/** Decodes the next tensor's lists, of which gather->shape is filled in, into gather->list. own:
 * this member's, borrowed until the next call. Errors as above. */
enum adtopk_status gather_next(struct gather *gather, const struct sparse *own, struct error *err);

/** Entries of all lists together. */
uint64_t gather_count(const struct gather *gather);

/** Checks that all lists together, of so many positions, have no more entries than the update has
 * room for behind its present ones. If not, it blames the node that sent most. */
enum adtopk_status gather_limit(const struct gather *gather, const struct exchange_tensor *tensor,
    uint64_t positions, struct error *err);

/** out = scale * ((list 0 + list 1) + ...), over `positions`; it has room for all entries or all
 * positions, or only counts them, positions NULL (merge.h). dense: the same as so many elements, or
 * NULL. Errors: MEMORY. */
enum adtopk_status gather_sum(const struct gather *gather, uint64_t positions, float scale,
    struct sparse *out, float *dense, struct error *err);

/** Sums the lists of a tensor, scaled, into its results: the list, the dense form, or both,
 * depending on the room that the tensor has. Errors: MEMORY. */
enum adtopk_status gather_update(
    const struct gather *gather, struct exchange_tensor *tensor, struct error *err);

/** An empty list with room for `capacity` entries; false without memory. list_free() takes it, or
 * zeros. */
bool list_alloc(struct sparse *list, uint64_t capacity);
void list_free(struct sparse *list);

/** Adds `by` to all positions, modulo 2^32. */
void list_shift(struct sparse *list, uint32_t by);

#endif
