/*
 * Dense all-reduce along a ring: every member hears from the one before it and tells the one
 * behind it.
 *
 * A segment of the vector is cut into one slice a member, and takes 2(P-1) phases. In the first
 * P-1, sums go round: slice j starts at member j, and whoever it comes to adds its own, so it is
 * (((x[j] + x[j+1]) + x[j+2]) + ...), members counted modulo P. In the others, complete slices go
 * round and everybody keeps them. 2n(P-1)/P elements a node, the least possible, and never more
 * than one neighbour's traffic on a link, but 2(P-1) latencies. (Patarasuk and Yuan, "Bandwidth
 * optimal all-reduce algorithms for clusters of workstations", JPDC 2009.)
 *
 * A member's partial sum of phase p has been through p members only, which need not include those
 * that lack the update before this one: a slice is written into the results only when it is
 * complete. The member before may be P-1 phases ahead.
 *
 * With bf16 or f16 values every sum is rounded to one of them by the member that forms it, which
 * notes the rest: of all elements but its own slices', whose sums begin there. The complete sums go
 * round as they are and everybody scales them. All rests are known before a member's first complete
 * slice of the last segment leaves, without which nobody else completes the exchange. A member
 * without room for them sends what it adds up as f32, and so do those behind it.
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

static unsigned segments_of(const struct exchange *exchange)
{
    return vector_segments(exchange, ring_steps(exchange), exchange->members);
}

static unsigned ring_phases(const struct exchange *exchange)
{
    return exchange->members > 1 ? ring_steps(exchange) * segments_of(exchange) : 1;
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

/* What a member sends in a phase. */
static struct slice slice_of(const struct exchange *exchange, unsigned phase, unsigned member)
{
    unsigned steps = ring_steps(exchange), members = exchange->members;
    struct slice segment = vector_segment(exchange, phase / steps, segments_of(exchange));

    return slice_cut(segment, (member + 2 * members - phase % steps) % members, members);
}

/* Takes the complete slice that a segment ends with. */
static enum adtopk_status take_last(struct exchange *exchange, unsigned phase, struct error *err)
{
    struct slice slice = slice_of(exchange, phase, before(exchange));
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
static bool rounds(const struct exchange *exchange)
{
    return exchange->value != PAYLOAD_VALUE_F32 && vector_total(exchange) <= exchange->rest.room;
}

/* Adds what this member has of a slice to what came in, encoded as *value, which becomes that of
 * the sum. */
static void add_own(
    const struct exchange *exchange, struct slice slice, float *x, enum payload_value *value)
{
    int16_t *low = rounds(exchange) ? exchange->rest.low + slice.first : NULL;

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

/* The slice that a segment begins with: what this member has of it, added to 0 (vector_read() says
 * why), is no sum yet. */
static void begin_slice(
    const struct exchange *exchange, struct slice slice, float *x, enum payload_value *value)
{
    (void)memset(x, 0, (slice.end - slice.first) * sizeof(*x));
    *value = PAYLOAD_VALUE_F32; /* nothing is cut off it */
    add_own(exchange, slice, x, value);
    *value = exchange->value;
}

/* The slice to send in a phase: the own one, or that of the phase before, with what is added. */
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
    exchange->rest.count = rounds(exchange) ? vector_total(exchange) : 0;
    slice = slice_of(exchange, phase, exchange->self);
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
    vector_finish(exchange);
    return ADTOPK_OK;
}

const struct collective_ops collective_ring = {
    .name = "ring",
    .dense = true,
    .partial = true,
    .rests = ring_rests,
    .members_max = EXCHANGE_PHASES_MAX / 2 + 1,
    .phases = ring_phases,
    .expects = ring_expects,
    .produce = ring_produce,
    .finish = ring_finish,
};
