/*
 * A dense bucket as one vector: its tensors, end to end. The vector is cut into segments, which
 * bound the memory of the data being sent, and a segment into slices.
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

/** The number of segments of the vector, if one segment takes `phases` phases and 1/share of it is
 * sent at a time. At most as many as there are phases for, at least 1 (0 of an empty vector). */
unsigned vector_segments(const struct exchange *exchange, unsigned phases, unsigned share);

/** Part `part` of `parts` equal ones, to one element. */
struct slice slice_cut(struct slice whole, unsigned part, unsigned parts);

/** Segment `segment` of so many. */
struct slice vector_segment(const struct exchange *exchange, unsigned segment, unsigned segments);

/** The part of a tensor that lies in a slice. The tensor begins at element `start` of the vector.
 */
struct slice slice_overlap(struct slice slice, uint64_t start, uint64_t numel);

/** Copies the slice of this node's contribution, unrounded, added to 0. The addition turns -0 into
 * 0: a gradient may have -0 where a residual has 0, and a sum must not depend on which of them a
 * node sends. */
void vector_read(const struct exchange *exchange, struct slice slice, float *out);

/** sum += the slice of this node's contribution, unrounded. */
void vector_add(const struct exchange *exchange, struct slice slice, float *sum);

/** The same, rounded to the type in which it is sent. low, NULL: none: the sums have that type, are
 * rounded in the same way, and `low` gets one rest per element (rest_sum()). */
void vector_add_rounded(
    const struct exchange *exchange, struct slice slice, float *sum, int16_t *low);

/** Writes the slice of the sum into the results. These may still be the update that this node
 * delivered last and others lack: not before every member has contributed to this exchange. */
void vector_write(const struct exchange *exchange, struct slice slice, const float *sum);

/** Adds a frame with n elements, none if n is 0, encoded as `value`. Errors: MEMORY. */
enum adtopk_status vector_send(struct exchange *exchange, unsigned phase, unsigned to,
    const float *x, uint64_t n, enum payload_value value, struct error *err);

/** Reads such a frame and notes its flags; *value is its encoding. Errors: PROTOCOL, which names
 * the node. */
enum adtopk_status vector_receive(struct exchange *exchange, unsigned phase, unsigned from,
    float *x, uint64_t n, enum payload_value *value, struct error *err);

/** Memory for n floats, at least one; NULL, and *err says so, without. */
float *vector_alloc(const struct exchange *exchange, uint64_t n, struct error *err);

/** Makes room in a frame for the slice's part of every tensor. Errors: MEMORY. */
enum adtopk_status vector_reserve(const struct exchange *exchange, struct payload_writer *frame,
    struct slice slice, enum payload_value value);

/** Fills and ends a frame with the slice's part of every tensor of this node's contribution, in the
 * exchange's values. Errors: MEMORY. */
enum adtopk_status vector_put(
    const struct exchange *exchange, struct payload_writer *frame, struct slice slice);

/* The sum of all members' contributions to a slice, in their order and as the others decode them.
 * It is made piece by piece, and each piece is finished while it is in the cache. */
struct vector_sum {
    struct exchange *exchange;
    struct payload_reader *reader; /* [member]: the frames of the others */
    struct payload_dense *dense;   /* [member]: their sections of the tensor at hand */
    struct slice slice;
};

/* A piece of a sum. */
struct vector_piece {
    float *sum;      /* its first element, in the results */
    uint64_t n;      /* its elements */
    uint64_t at;     /* the vector's element at which it begins */
    uint64_t first;  /* the same, counted from the beginning of the tensor's part of the slice */
    uint64_t length; /* elements of that part */
};

/** Does the rest of the work on a piece that is summed. Errors: MEMORY. */
typedef enum adtopk_status vector_finish_piece(void *context, const struct vector_piece *piece);

/** Opens the frames of `phase`, which have the others' contributions, and notes their flags.
 * Errors: MEMORY; PROTOCOL, which names the node. Whatever it returns, free it with
 * vector_sum_free(). */
enum adtopk_status vector_sum_open(struct vector_sum *sum, struct exchange *exchange,
    unsigned phase, struct slice slice, struct error *err);

/** Writes the sum into the results, and calls `finish` for each piece in ascending order. Errors:
 * as above, and those of `finish`. */
enum adtopk_status vector_sum_run(
    struct vector_sum *sum, vector_finish_piece *finish, void *context, struct error *err);

void vector_sum_free(struct vector_sum *sum);

/** Multiplies the sums by the factor when all of them are there. The sums of a lone member are its
 * contribution, rounded. */
void vector_finish(const struct exchange *exchange, float factor);

#endif
