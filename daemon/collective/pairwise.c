/*
 * Dense all-reduce by pairwise exchange: reduce-scatter, then all-gather.
 *
 * The bucket's tensors, end to end, are one vector. It is cut into one slice per member, and each
 * slice into segments. A segment takes two phases. In the first every member sends its part of
 * slice j to member j, which adds the parts in the order of the members. In the second every member
 * sends its summed segment, scaled by all but the loss scale, to all. A node receives 2n(P-1)/P
 * elements, the least possible, in two latencies per segment. The order of every sum is fixed.
 * (Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH",
 * 2005, section 4.5.) The segments bound the memory for frames that are being sent.
 *
 * The parts of a segment leave before they are needed, AHEAD segments early. So links have
 * something to send while a member sums, and while it waits for the sums of others.
 *
 * With bf16 or f16 values both phases are rounded. Each sender's residual keeps the rounding
 * errors. In the first phase it still has its contribution. In the second it notes the rests of its
 * sums, scaled and rounded to bf16. Without room for them the second phase is sent as f32.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/collective/vector.h"
#include "kernels/kernels.h"
#include "proto/loss_scale.h"

#define AHEAD 2u

/* A frame of so many elements, 384 KiB, stays in a cache between the passes over it, and is one
 * packet, which its receiver need not copy. Smaller frames would cost more computes. */
#define FRAME_ELEMENTS 98304u

static unsigned pairwise_segments_of(const struct exchange *exchange)
{
    const uint64_t segment = (uint64_t)FRAME_ELEMENTS * exchange->members;
    const uint64_t segments = (vector_total(exchange) + segment - 1) / segment;
    const unsigned least = vector_segments(exchange, 2, 1), most = EXCHANGE_PHASES_MAX / 2;

    return segments > most ? most : segments > least ? (unsigned)segments : least;
}

static unsigned pairwise_phases(const struct exchange *exchange)
{
    return exchange->members > 1 ? 2 * pairwise_segments_of(exchange) : 1;
}

/* The slice that a member sums. */
static struct slice whole_of(const struct exchange *exchange, unsigned member)
{
    return slice_cut((struct slice){0, vector_total(exchange)}, member, exchange->members);
}

/* A segment of a member's slice. */
static struct slice pairwise_slice_of(
    const struct exchange *exchange, unsigned segment, unsigned member)
{
    return slice_cut(whole_of(exchange, member), segment, pairwise_segments_of(exchange));
}

static uint64_t pairwise_rests(unsigned members, uint64_t elements)
{
    return members > 1 ? (elements + members - 1) / members : 0;
}

static bool pairwise_rounds(const struct exchange *exchange)
{
    struct slice own = whole_of(exchange, exchange->self);

    return exchange->value != PAYLOAD_VALUE_F32 && own.end - own.first <= exchange->rest.room;
}

/* Sends the parts of a segment, if there is one. */
static enum adtopk_status scatter(struct exchange *exchange, unsigned segment, struct error *err)
{
    if (segment >= pairwise_segments_of(exchange)) {
        return ADTOPK_OK;
    }
    for (unsigned m = 0; m < exchange->members; m++) {
        struct payload_writer *frame;
        if (m == exchange->self) {
            continue;
        }
        frame = exchange_add_frame(exchange, 2 * segment, m);
        if (frame == NULL ||
            vector_put(exchange, frame, pairwise_slice_of(exchange, segment, m)) != ADTOPK_OK) {
            return exchange_no_memory(exchange, "encode", err);
        }
    }
    return ADTOPK_OK;
}

/* A slice of the sum on its way to the others. */
struct pairwise_reduction {
    struct exchange *exchange;
    struct payload_writer *frame;
    enum payload_value value; /* of the sums */
    int16_t *low;             /* the rests of this member's slice; NULL: the sums are not rounded */
    uint64_t own;             /* the first element of that slice */
    struct payload_room room; /* the section of the tensor at hand */
};

/* The owner scales, rounds and encodes a piece of the sum while it is in the cache. */
static enum adtopk_status pairwise_send_piece(void *context, const struct vector_piece *piece)
{
    struct pairwise_reduction *reduction = context;
    const float scale = reduction->exchange->scale;

    if (piece->first == 0 && payload_make_room(reduction->frame, piece->length, reduction->value,
                                 &reduction->room) != ADTOPK_OK) {
        return ADTOPK_ERR_MEMORY;
    }
    if (scale != 1) {
        dense_scale(piece->sum, piece->n, scale);
    }
    if (reduction->low != NULL) {
        rest_round(piece->sum, reduction->low + (piece->at - reduction->own), piece->n);
    }
    payload_fill_room(&reduction->room, piece->first, piece->sum, piece->n);
    return ADTOPK_OK;
}

/* The frame gets the flags of all members, whose frames are open. */
static enum adtopk_status pairwise_sum(
    struct vector_sum *sum, struct exchange *exchange, unsigned segment, struct error *err)
{
    const struct slice own = whole_of(exchange, exchange->self);
    const bool rounds = pairwise_rounds(exchange);
    struct pairwise_reduction reduction = {.exchange = exchange,
        .frame = exchange_add_frame(exchange, 2 * segment + 1, EXCHANGE_ALL),
        .value = rounds ? PAYLOAD_VALUE_BF16 : PAYLOAD_VALUE_F32,
        .low = rounds ? exchange->rest.low : NULL,
        .own = own.first};

    exchange->rest.first = own.first;
    exchange->rest.count = rounds ? own.end - own.first : 0;
    if (reduction.frame == NULL ||
        vector_reserve(exchange, reduction.frame, sum->slice, reduction.value) != ADTOPK_OK) {
        return exchange_no_memory(exchange, "encode", err);
    }
    if (vector_sum_run(sum, pairwise_send_piece, &reduction, err) != ADTOPK_OK) {
        return err->code;
    }
    payload_end(reduction.frame);
    return ADTOPK_OK;
}

static enum adtopk_status reduce(struct exchange *exchange, unsigned segment, struct error *err)
{
    const struct slice slice = pairwise_slice_of(exchange, segment, exchange->self);
    struct vector_sum sum;
    enum adtopk_status status = vector_sum_open(&sum, exchange, 2 * segment, slice, err);

    if (status == ADTOPK_OK) {
        status = pairwise_sum(&sum, exchange, segment, err);
    }
    vector_sum_free(&sum);
    return status;
}

/* Copies member m's summed slice into the result. */
static enum adtopk_status take_slice(
    struct exchange *exchange, unsigned segment, unsigned m, struct error *err)
{
    struct slice slice = pairwise_slice_of(exchange, segment, m);
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
    enum adtopk_status status = ADTOPK_OK;

    if (phase % 2 == 1) {
        status = reduce(exchange, segment, err);
        return status == ADTOPK_OK ? scatter(exchange, segment + AHEAD, err) : status;
    }
    if (segment > 0) {
        return take_segment(exchange, segment - 1, err);
    }
    for (unsigned s = 0; status == ADTOPK_OK && exchange->members > 1 && s < AHEAD; s++) {
        status = scatter(exchange, s, err);
    }
    return status;
}

static enum adtopk_status pairwise_finish(struct exchange *exchange, struct error *err)
{
    float factor = exchange_factor(exchange);

    if (exchange->members > 1) {
        if (take_segment(exchange, pairwise_segments_of(exchange) - 1, err) != ADTOPK_OK) {
            return err->code;
        }
        factor = loss_scale_factor(exchange->header.loss_scale); /* the owners did the rest */
    }
    if (exchange->members == 1 || factor != 1) {
        vector_finish(exchange, factor);
    }
    return ADTOPK_OK;
}

const struct collective_ops collective_pairwise = {
    .name = "pairwise",
    .traits = {.dense = true, .values = COLLECTIVE_VALUES_CUT, .rests = pairwise_rests},
    .phases = pairwise_phases,
    .expects = exchange_expects_all,
    .produce = pairwise_produce,
    .finish = pairwise_finish,
};
