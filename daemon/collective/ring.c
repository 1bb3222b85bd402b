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
 * complete. The member before may be P-1 phases ahead. Sums travel as f32.
 */
#include <stdlib.h>

#include "daemon/collective/vector.h"

static unsigned ring_steps(const struct exchange *exchange)
{
    return 2 * (exchange->members - 1);
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

    if (status == ADTOPK_OK) {
        status = vector_receive(exchange, phase, before(exchange), x, n, err);
    }
    if (status == ADTOPK_OK) {
        vector_write(exchange, slice, x);
    }
    free(x);
    return status;
}

/* The slice to send in a phase: the own one, or that of the phase before, with what is added. */
static enum adtopk_status form_slice(
    struct exchange *exchange, unsigned phase, struct slice slice, float *x, struct error *err)
{
    unsigned step = phase % ring_steps(exchange);

    if (step == 0) {
        vector_read(exchange, slice, x);
        return ADTOPK_OK;
    }
    if (vector_receive(exchange, phase - 1, before(exchange), x, slice.end - slice.first, err) !=
        ADTOPK_OK) {
        return err->code;
    }
    if (step < exchange->members) {
        vector_add(exchange, slice, x);
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
    struct slice slice;
    float *x;

    if (exchange->members == 1) {
        return ADTOPK_OK;
    }
    slice = slice_of(exchange, phase, exchange->self);
    x = vector_alloc(exchange, slice.end - slice.first, err);
    if (x == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    if (phase > 0 && phase % ring_steps(exchange) == 0) {
        status = take_last(exchange, phase - 1, err);
    }
    if (status == ADTOPK_OK) {
        status = form_slice(exchange, phase, slice, x, err);
    }
    if (status == ADTOPK_OK) {
        status = vector_send(exchange, phase, next, x, slice.end - slice.first, err);
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
    .members_max = EXCHANGE_PHASES_MAX / 2 + 1,
    .phases = ring_phases,
    .expects = ring_expects,
    .produce = ring_produce,
    .finish = ring_finish,
};
