/*
 * Dense all-reduce along a ring: every member receives from the member before it and sends to the
 * member behind it.
 *
 * A segment of the vector is cut into one slice per member, and takes 2(P-1) phases. In the first
 * P-1 phases sums go round: slice j starts at member j, and each member that receives it adds its
 * own part. So it is (((x[j] + x[j+1]) + x[j+2]) + ...), members counted modulo P. In the other
 * phases complete slices go round and every member keeps them. A node receives 2n(P-1)/P elements,
 * the least possible. No link carries more than one neighbour's traffic. But there are 2(P-1)
 * latencies. (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
 * workstations", JPDC 2009.)
 *
 * A partial sum of phase p has passed p members only. These need not include the members that still
 * lack the update before this one. So a member writes a slice into the results only when it is
 * complete. The member before may be P-1 phases ahead.
 *
 * With bf16 or f16 values the member that forms a sum rounds it and notes the rest. It does so for
 * all elements except those of its own slices, whose sums begin there. The complete sums go round
 * as they are, and every member scales them. All rests are known before a member sends its first
 * complete slice of the last segment. Without that slice no other member completes the exchange. A
 * member without room for rests sends its sums as f32, and so do those behind it.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/collective/vector.h"

static unsigned ring_steps(const struct exchange *exchange)
{
    return 2 * (exchange->members - 1);
}

static uint64_t ring_rests(unsigned members, uint64_t elements)
{
    return members > 1 ? elements : 0;
}

static unsigned ring_segments_of(const struct exchange *exchange)
{
    return vector_segments(exchange, ring_steps(exchange), exchange->members);
}

static unsigned ring_phases(const struct exchange *exchange)
{
    return exchange->members > 1 ? ring_steps(exchange) * ring_segments_of(exchange) : 1;
}

static unsigned before(const struct exchange *exchange)
{
    return (exchange->self + exchange->members - 1) % exchange->members;
}

static bool ring_expects(const struct exchange *exchange, unsigned phase, unsigned from)
{
    (void)phase;
    return exchange->members > 1 && from == before(exchange);
}

/* The slice that a member sends in a phase. */
static struct slice ring_slice_of(const struct exchange *exchange, unsigned phase, unsigned member)
{
    unsigned steps = ring_steps(exchange), members = exchange->members;
    struct slice segment = vector_segment(exchange, phase / steps, ring_segments_of(exchange));

    return slice_cut(segment, (member + 2 * members - phase % steps) % members, members);
}

/* Takes the complete slice that a segment ends with. */
static enum adtopk_status take_last(struct exchange *exchange, unsigned phase, struct error *err)
{
    struct slice slice = ring_slice_of(exchange, phase, before(exchange));
    uint64_t n = slice.end - slice.first;
    float *x = vector_alloc(exchange, n, err);
    enum adtopk_status status = x != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
    enum payload_value value;

    if (status == ADTOPK_OK) {
        status = vector_receive(exchange, phase, before(exchange), x, n, &value, err);
    }
    if (status == ADTOPK_OK) {
        vector_write(exchange, slice, x);
    }
    free(x);
    return status;
}

/* Whether the sums that this member forms are rounded: rests of the whole vector have room. */
static bool ring_rounds(const struct exchange *exchange)
{
    return exchange->value != PAYLOAD_VALUE_F32 && vector_total(exchange) <= exchange->rest.room;
}

/* Adds this member's part of a slice to the received sum, encoded as *value. *value becomes the
 * encoding of the new sum. */
static void add_own(
    const struct exchange *exchange, struct slice slice, float *x, enum payload_value *value)
{
    int16_t *low = ring_rounds(exchange) ? exchange->rest.low + slice.first : NULL;

    if (exchange->value == PAYLOAD_VALUE_F32) {
        vector_add(exchange, slice, x);
    } else if (low != NULL && *value == exchange->value) {
        vector_add_rounded(exchange, slice, x, low);
        return;
    } else {
        vector_add_rounded(exchange, slice, x, NULL);
    }
    *value = PAYLOAD_VALUE_F32;
    if (low != NULL) {
        (void)memset(low, 0, (slice.end - slice.first) * sizeof(*low));
    }
}

/* Begins a slice with this member's part, added to 0 (vector_read() says why). It is not a sum yet.
 */
static void begin_slice(
    const struct exchange *exchange, struct slice slice, float *x, enum payload_value *value)
{
    (void)memset(x, 0, (slice.end - slice.first) * sizeof(*x));
    *value = PAYLOAD_VALUE_F32; /* nothing is cut off it */
    add_own(exchange, slice, x, value);
    *value = exchange->value;
}

/* Makes the slice to send in a phase: the member's own one, or that of the phase before with its
 * part added. */
static enum adtopk_status form_slice(struct exchange *exchange, unsigned phase, struct slice slice,
    float *x, enum payload_value *value, struct error *err)
{
    unsigned step = phase % ring_steps(exchange);

    if (step == 0) {
        begin_slice(exchange, slice, x, value);
        return ADTOPK_OK;
    }
    if (vector_receive(exchange, phase - 1, before(exchange), x, slice.end - slice.first, value,
            err) != ADTOPK_OK) {
        return err->code;
    }
    if (step < exchange->members) {
        add_own(exchange, slice, x, value);
    }
    if (step >= exchange->members - 1) {
        vector_write(exchange, slice, x);
    }
    return ADTOPK_OK;
}

static enum adtopk_status ring_produce(struct exchange *exchange, unsigned phase, struct error *err)
{
    unsigned next = (exchange->self + 1) % exchange->members;
    enum adtopk_status status = ADTOPK_OK;
    enum payload_value value = exchange->value;
    struct slice slice;
    float *x;

    if (exchange->members == 1) {
        return ADTOPK_OK;
    }
    exchange->rest.count = ring_rounds(exchange) ? vector_total(exchange) : 0;
    slice = ring_slice_of(exchange, phase, exchange->self);
    x = vector_alloc(exchange, slice.end - slice.first, err);
    if (x == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    if (phase > 0 && phase % ring_steps(exchange) == 0) {
        status = take_last(exchange, phase - 1, err);
    }
    if (status == ADTOPK_OK) {
        status = form_slice(exchange, phase, slice, x, &value, err);
    }
    if (status == ADTOPK_OK) {
        status = vector_send(exchange, phase, next, x, slice.end - slice.first, value, err);
    }
    free(x);
    return status;
}

static enum adtopk_status ring_finish(struct exchange *exchange, struct error *err)
{
    if (exchange->members > 1 && take_last(exchange, ring_phases(exchange) - 1, err) != ADTOPK_OK) {
        return err->code;
    }
    vector_finish(exchange, exchange_factor(exchange));
    return ADTOPK_OK;
}

const struct collective_ops collective_ring = {
    .name = "ring",
    .traits = {.dense = true,
        .values = COLLECTIVE_VALUES_CUT,
        .members_max = EXCHANGE_PHASES_MAX / 2 + 1,
        .rests = ring_rests,
        .partial = true},
    .phases = ring_phases,
    .expects = ring_expects,
    .produce = ring_produce,
    .finish = ring_finish,
};
