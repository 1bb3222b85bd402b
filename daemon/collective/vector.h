/*
 * A dense bucket as one vector: its tensors, end to end. It is cut into segments, which bound the
 * memory for what is under way, and a segment into slices.
 */
#ifndef ADTOPK_VECTOR_H
#define ADTOPK_VECTOR_H

#include "daemon/collective/collective.h"

/* Elements first..end-1 of the vector. */
struct slice {
    uint64_t first;
    uint64_t end;
};

/** Elements of all tensors, at least 1. */
uint64_t vector_total(const struct exchange *exchange);

/** In how many segments the vector travels, if one takes `phases` phases and 1/share of it is under
 * way at a time: at most as many as there are phases for, at least 1 (0 of an empty vector). */
unsigned vector_segments(const struct exchange *exchange, unsigned phases, unsigned share);

/** Part `part` of `parts` equal ones, to one element. */
struct slice slice_cut(struct slice whole, unsigned part, unsigned parts);

/** Segment `segment` of so many. */
struct slice vector_segment(const struct exchange *exchange, unsigned segment, unsigned segments);

/** The part of a tensor, which begins at element `start` of the vector, that lies in a slice. */
struct slice slice_overlap(struct slice slice, uint64_t start, uint64_t numel);

/** Copies the slice of this node's contribution, unrounded, added to 0: what a gradient has as -0,
 * a residual has as 0, and a sum may not depend on which of them a node sends. */
void vector_read(const struct exchange *exchange, struct slice slice, float *out);

/** sum += the slice of this node's contribution, unrounded. */
void vector_add(const struct exchange *exchange, struct slice slice, float *sum);

/** The same, rounded as it travels. low, NULL: none: the sums, which were such values, are rounded
 * in the same way, and it gets their rests, an element each (rest_sum()). */
void vector_add_rounded(
    const struct exchange *exchange, struct slice slice, float *sum, int16_t *low);

/** Writes the slice of the sum into the results. These may still be the update that this node
 * delivered last and others lack: not before every member has contributed to this exchange. */
void vector_write(const struct exchange *exchange, struct slice slice, const float *sum);

/** Adds a frame with n elements, none if n is 0, encoded as `value`. Errors: MEMORY. */
enum adtopk_status vector_send(struct exchange *exchange, unsigned phase, unsigned to,
    const float *x, uint64_t n, enum payload_value value, struct error *err);

/** Takes such a frame and notes its flags; *value is what it was encoded as. Errors: PROTOCOL,
 * which names the node. */
enum adtopk_status vector_receive(struct exchange *exchange, unsigned phase, unsigned from,
    float *x, uint64_t n, enum payload_value *value, struct error *err);

/** Memory for n floats, at least one; NULL, and *err says so, without. */
float *vector_alloc(const struct exchange *exchange, uint64_t n, struct error *err);

/** Fills and ends a frame with the slice's part of every tensor: of this node's contribution, in
 * the exchange's values; of the sums in the results. Errors: MEMORY. */
enum adtopk_status vector_put(
    const struct exchange *exchange, struct payload_writer *frame, struct slice slice);
enum adtopk_status vector_put_sum(const struct exchange *exchange, struct payload_writer *frame,
    struct slice slice, enum payload_value value);

/** Adds up the slice of all members' contributions, in their order and as the others decode them,
 * in the results: others' frames of `phase` have it. Errors: MEMORY; PROTOCOL, which names the
 * node. */
enum adtopk_status vector_sum(
    struct exchange *exchange, unsigned phase, struct slice slice, struct error *err);

/** What is left to do when all sums are there: scales them. A lone member's are its contribution,
 * rounded. */
void vector_finish(const struct exchange *exchange);

#endif
