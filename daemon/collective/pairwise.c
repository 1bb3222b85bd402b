/*
 * Dense all-reduce by pairwise exchange: reduce-scatter, then all-gather.
 *
 * The bucket's tensors, end to end, are one vector, cut into segments, and each segment into one
 * slice a member. Two phases a segment: in the first every member sends slice j to member j, which
 * adds the slices in the order of the members; in the second every member sends its summed slice,
 * scaled, to all. 2n(P-1)/P elements a node, the least possible, in two latencies a segment, and
 * the order of every sum is fixed. (Thakur, Rabenseifner, Gropp, "Optimization of collective
 * communication operations in MPICH", 2005, section 4.5.) The segments bound the memory for frames
 * under way.
 *
 * With bf16 or f16 values only the first phase is rounded, and each sender's residual keeps what
 * that cut off; sums travel as f32.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/collective/vector.h"

static unsigned segments_of(const struct exchange *exchange)
{
    return vector_segments(exchange, 2, 1);
}

static unsigned pairwise_phases(const struct exchange *exchange)
{
    return exchange->members > 1 ? 2 * segments_of(exchange) : 1;
}

static bool pairwise_expects(const struct exchange *exchange, unsigned phase, unsigned from)
{
    (void)phase;
    return from != exchange->self;
}

/* The slice of a segment that a member sums. */
static struct slice slice_of(const struct exchange *exchange, unsigned segment, unsigned member)
{
    return slice_cut(
        vector_segment(exchange, segment, segments_of(exchange)), member, exchange->members);
}

/* Appends the slice's part of every tensor, from the contribution or from the sum. */
static enum adtopk_status put_slice(
    const struct exchange *exchange, struct payload_writer *frame, struct slice slice, bool sum)
{
    enum adtopk_status status = ADTOPK_OK;
    uint64_t start = 0;

    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        const struct exchange_tensor *tensor = &exchange->tensor[t];
        struct slice part = slice_overlap(slice, start, tensor->numel);
        start += tensor->numel;
        if (part.end > part.first) {
            status = payload_put_dense(frame, (sum ? tensor->dense : tensor->acc) + part.first,
                part.end - part.first, sum ? PAYLOAD_VALUE_F32 : exchange->value, NULL);
        }
    }
    if (status == ADTOPK_OK) {
        payload_end(frame);
    }
    return status;
}

static enum adtopk_status scatter(struct exchange *exchange, unsigned segment, struct error *err)
{
    for (unsigned m = 0; m < exchange->members; m++) {
        struct payload_writer *frame;
        if (m == exchange->self) {
            continue;
        }
        frame = exchange_add_frame(exchange, 2 * segment, m);
        if (frame == NULL ||
            put_slice(exchange, frame, slice_of(exchange, segment, m), false) != ADTOPK_OK) {
            return error_set(
                err, ADTOPK_ERR_MEMORY, "no memory to encode bucket %u", exchange->header.bucket);
        }
    }
    return ADTOPK_OK;
}

/* Adds member m's slice to the sum, the first member's to 0 (vector_read() says why). */
static enum adtopk_status add_member(
    struct exchange *exchange, unsigned segment, unsigned m, float *scratch, struct error *err)
{
    struct slice slice = slice_of(exchange, segment, exchange->self);
    struct payload_reader reader;
    uint64_t start = 0;

    if (m != exchange->self) {
        if (exchange_open(exchange, 2 * segment, m, &reader, err) != ADTOPK_OK) {
            return err->code;
        }
        exchange_note(exchange, &reader);
    }
    for (unsigned t = 0; t < exchange->tensors; t++) {
        const struct exchange_tensor *tensor = &exchange->tensor[t];
        struct slice part = slice_overlap(slice, start, tensor->numel);
        uint64_t n = part.end - part.first;
        float *sum = tensor->dense + part.first;
        start += tensor->numel;
        if (n == 0) {
            continue;
        }
        if (m == exchange->self) {
            vector_round(exchange, tensor->acc + part.first, n, scratch);
        } else if (payload_get_dense(&reader, scratch, n, err) != ADTOPK_OK) {
            return exchange_blame(exchange, m, err);
        }
        if (m == 0) {
            (void)memset(sum, 0, n * sizeof(*sum));
        }
        dense_add(sum, scratch, n);
    }
    if (m != exchange->self && payload_close(&reader, err) != ADTOPK_OK) {
        return exchange_blame(exchange, m, err);
    }
    return ADTOPK_OK;
}

/* The owner does it, before others get the sum: it is in the cache. */
static void scale_slice(const struct exchange *exchange, struct slice slice)
{
    uint64_t start = 0;

    for (unsigned t = 0; exchange->scale != 1 && t < exchange->tensors; t++) {
        const struct exchange_tensor *tensor = &exchange->tensor[t];
        struct slice part = slice_overlap(slice, start, tensor->numel);
        start += tensor->numel;
        dense_scale(tensor->dense + part.first, part.end - part.first, exchange->scale);
    }
}

static enum adtopk_status reduce(struct exchange *exchange, unsigned segment, struct error *err)
{
    struct slice slice = slice_of(exchange, segment, exchange->self);
    float *scratch = malloc((size_t)(slice.end - slice.first) * sizeof(*scratch) + 1);
    enum adtopk_status status = ADTOPK_OK;
    struct payload_writer *frame;

    if (scratch == NULL) {
        return error_set(
            err, ADTOPK_ERR_MEMORY, "no memory to sum bucket %u", exchange->header.bucket);
    }
    for (unsigned m = 0; status == ADTOPK_OK && m < exchange->members; m++) {
        status = add_member(exchange, segment, m, scratch, err);
    }
    free(scratch);
    if (status != ADTOPK_OK) {
        return status;
    }
    scale_slice(exchange, slice);
    frame = exchange_add_frame(exchange, 2 * segment + 1, EXCHANGE_ALL);
    if (frame == NULL || put_slice(exchange, frame, slice, true) != ADTOPK_OK) {
        return error_set(
            err, ADTOPK_ERR_MEMORY, "no memory to encode bucket %u", exchange->header.bucket);
    }
    return ADTOPK_OK;
}

/* Copies member m's summed slice into the result. */
static enum adtopk_status take_slice(
    struct exchange *exchange, unsigned segment, unsigned m, struct error *err)
{
    struct slice slice = slice_of(exchange, segment, m);
    struct payload_reader reader;
    uint64_t start = 0;

    if (exchange_open(exchange, 2 * segment + 1, m, &reader, err) != ADTOPK_OK) {
        return err->code;
    }
    exchange_note(exchange, &reader);
    for (unsigned t = 0; t < exchange->tensors; t++) {
        const struct exchange_tensor *tensor = &exchange->tensor[t];
        struct slice part = slice_overlap(slice, start, tensor->numel);
        start += tensor->numel;
        if (part.end > part.first && payload_get_dense(&reader, tensor->dense + part.first,
                                         part.end - part.first, err) != ADTOPK_OK) {
            return exchange_blame(exchange, m, err);
        }
    }
    if (payload_close(&reader, err) != ADTOPK_OK) {
        return exchange_blame(exchange, m, err);
    }
    return ADTOPK_OK;
}

static enum adtopk_status take_segment(
    struct exchange *exchange, unsigned segment, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned m = 0; status == ADTOPK_OK && m < exchange->members; m++) {
        if (m != exchange->self) {
            status = take_slice(exchange, segment, m, err);
        }
    }
    return status;
}

static enum adtopk_status pairwise_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    unsigned segment = phase / 2;

    if (phase % 2 == 1) {
        return reduce(exchange, segment, err);
    }
    if (segment > 0 && take_segment(exchange, segment - 1, err) != ADTOPK_OK) {
        return err->code;
    }
    return exchange->members > 1 ? scatter(exchange, segment, err) : ADTOPK_OK;
}

static enum adtopk_status pairwise_finish(struct exchange *exchange, struct error *err)
{
    if (exchange->members > 1) {
        return take_segment(exchange, segments_of(exchange) - 1, err);
    }
    vector_finish(exchange);
    return ADTOPK_OK;
}

const struct collective_ops collective_pairwise = {
    .name = "pairwise",
    .dense = true,
    .phases = pairwise_phases,
    .expects = pairwise_expects,
    .produce = pairwise_produce,
    .finish = pairwise_finish,
};
