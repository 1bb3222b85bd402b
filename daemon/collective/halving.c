/*
 * Dense all-reduce by recursive vector halving and distance doubling.
 *
 * In hop h of the reduce-scatter, a core and its partner split the part of the vector that both
 * have: each sends the half that the other keeps, and adds the half that it receives. After log2 P
 * hops every core has the complete sum of 1/P of the vector. The all-gather goes through the same
 * partners backwards and doubles each core's part. A node receives 2n(P-1)/P elements in 2 log2 P
 * latencies. If P is no power of two, extras send everything to their core first and get everything
 * at the end: 2n elements and 2 latencies more. (Thakur, Rabenseifner, Gropp, 2005, section 4.5;
 * doubling.h.)
 *
 * Every element's sum is the same balanced tree over the order of the members, ((0 + 1) + (2 + 3))
 * + ...; sums are sent as f32. Segments follow one another. exchange->state is a copy of the
 * current segment, because partial sums must not overwrite an update that other members lack.
 */
#include <stdlib.h>

#include "daemon/collective/doubling.h"
#include "daemon/collective/vector.h"

/* The part of a member in a phase. */
enum move { MOVE_FOLD, MOVE_HALVE, MOVE_DOUBLE, MOVE_UNFOLD };

struct step {
    enum move move;
    unsigned hop;
    struct slice segment;
    bool first, last; /* of the segment */
};

static struct doubling doubling_for(const struct exchange *exchange)
{
    return doubling_of(exchange->members);
}

static unsigned steps_of(const struct doubling *doubling)
{
    return 2 * doubling->hops + (doubling->extras > 0 ? 2 : 0);
}

static unsigned halving_segments_of(
    const struct exchange *exchange, const struct doubling *doubling)
{
    return vector_segments(exchange, steps_of(doubling), 1);
}

static struct step halving_step_of(
    const struct exchange *exchange, const struct doubling *doubling, unsigned phase)
{
    unsigned steps = steps_of(doubling), at = phase % steps, folds = doubling->extras > 0 ? 1 : 0;
    struct step step = {
        .segment = vector_segment(exchange, phase / steps, halving_segments_of(exchange, doubling)),
        .first = at == 0,
        .last = at == steps - 1};

    if (folds == 1 && (step.first || step.last)) {
        step.move = step.first ? MOVE_FOLD : MOVE_UNFOLD;
    } else if (at < folds + doubling->hops) {
        step.move = MOVE_HALVE;
        step.hop = at - folds;
    } else {
        step.move = MOVE_DOUBLE;
        step.hop = folds + 2 * doubling->hops - 1 - at;
    }
    return step;
}

/* The member that receives a frame from `member` in this step, or DOUBLING_NOBODY. */
static unsigned receiver_of(
    const struct doubling *doubling, const struct step *step, unsigned member)
{
    bool extra = doubling_is_extra(doubling, member);

    switch (step->move) {
    case MOVE_FOLD: return extra ? doubling_mate(doubling, member) : DOUBLING_NOBODY;
    case MOVE_UNFOLD: return extra ? DOUBLING_NOBODY : doubling_mate(doubling, member);
    case MOVE_HALVE:
    case MOVE_DOUBLE: break;
    }
    return doubling_partner(doubling, member, step->hop);
}

/* The member that sends it one. Steps are symmetric, except for the direction of those with extras.
 */
static unsigned sender_of(const struct doubling *doubling, const struct step *step, unsigned member)
{
    unsigned other = step->move == MOVE_HALVE || step->move == MOVE_DOUBLE
                         ? doubling_partner(doubling, member, step->hop)
                         : doubling_mate(doubling, member);

    return other != DOUBLING_NOBODY && receiver_of(doubling, step, other) == member
               ? other
               : DOUBLING_NOBODY;
}

/* The part of the segment that a core keeps after so many hops: the lower half where it is the
 * lower partner. */
static struct slice kept_of(
    const struct doubling *doubling, struct slice segment, unsigned member, unsigned hops)
{
    unsigned core = doubling_core(doubling, member);

    for (unsigned h = 0; h < hops; h++) {
        segment = slice_cut(segment, core >> h & 1u, 2);
    }
    return segment;
}

/* The slice that `from` sends to `to`. */
static struct slice halving_slice_of(
    const struct doubling *doubling, const struct step *step, unsigned from, unsigned to)
{
    switch (step->move) {
    case MOVE_HALVE: return kept_of(doubling, step->segment, to, step->hop + 1);
    case MOVE_DOUBLE: return kept_of(doubling, step->segment, from, step->hop + 1);
    case MOVE_FOLD:
    case MOVE_UNFOLD: break;
    }
    return step->segment;
}

static unsigned halving_phases(const struct exchange *exchange)
{
    struct doubling doubling = doubling_for(exchange);

    return exchange->members > 1 ? steps_of(&doubling) * halving_segments_of(exchange, &doubling)
                                 : 1;
}

static bool halving_expects(const struct exchange *exchange, unsigned phase, unsigned from)
{
    struct doubling doubling = doubling_for(exchange);
    struct step step;

    if (exchange->members == 1) {
        return false;
    }
    step = halving_step_of(exchange, &doubling, phase);
    return sender_of(&doubling, &step, exchange->self) == from;
}

/* Reads the frames of a phase; after a segment's last phase, writes its sum. */
static enum adtopk_status halving_take(struct exchange *exchange, unsigned phase, struct error *err)
{
    float *segment = exchange->state;
    struct doubling doubling = doubling_for(exchange);
    struct step step = halving_step_of(exchange, &doubling, phase);
    unsigned from = sender_of(&doubling, &step, exchange->self);

    if (from != DOUBLING_NOBODY) {
        struct slice slice = halving_slice_of(&doubling, &step, from, exchange->self);
        uint64_t n = slice.end - slice.first;
        float *sum = segment + (slice.first - step.segment.first);
        enum payload_value value;
        bool adds = step.move == MOVE_FOLD || step.move == MOVE_HALVE;
        float *x = adds ? vector_alloc(exchange, n, err) : sum;

        if (x == NULL || vector_receive(exchange, phase, from, x, n, &value, err) != ADTOPK_OK) {
            free(adds ? x : NULL);
            return err->code;
        }
        if (adds) {
            dense_add(sum, x, n);
            free(x);
        }
    }
    if (step.last) {
        vector_write(exchange, step.segment, segment);
    }
    return ADTOPK_OK;
}

/* Begins a segment with this node's contribution. */
static enum adtopk_status halving_begin(
    struct exchange *exchange, const struct step *step, struct error *err)
{
    free(exchange->state);
    exchange->state = vector_alloc(exchange, step->segment.end - step->segment.first, err);
    if (exchange->state == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    vector_read(exchange, step->segment, exchange->state);
    return ADTOPK_OK;
}

static enum adtopk_status halving_give(
    struct exchange *exchange, const struct step *step, unsigned phase, struct error *err)
{
    const float *segment = exchange->state;
    struct doubling doubling = doubling_for(exchange);
    unsigned to = receiver_of(&doubling, step, exchange->self);
    struct slice slice;

    if (to == DOUBLING_NOBODY) {
        return ADTOPK_OK;
    }
    slice = halving_slice_of(&doubling, step, exchange->self, to);
    return vector_send(exchange, phase, to, segment + (slice.first - step->segment.first),
        slice.end - slice.first, PAYLOAD_VALUE_F32, err);
}

static enum adtopk_status halving_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    struct doubling doubling = doubling_for(exchange);
    struct step step;

    if (exchange->members == 1) {
        return ADTOPK_OK;
    }
    step = halving_step_of(exchange, &doubling, phase);
    if (phase > 0 && halving_take(exchange, phase - 1, err) != ADTOPK_OK) {
        return err->code;
    }
    if (step.first && halving_begin(exchange, &step, err) != ADTOPK_OK) {
        return err->code;
    }
    return halving_give(exchange, &step, phase, err);
}

static enum adtopk_status halving_finish(struct exchange *exchange, struct error *err)
{
    if (exchange->members > 1 &&
        halving_take(exchange, halving_phases(exchange) - 1, err) != ADTOPK_OK) {
        return err->code;
    }
    vector_finish(exchange, exchange_factor(exchange));
    return ADTOPK_OK;
}

static void halving_drop(struct exchange *exchange)
{
    free(exchange->state);
}

const struct collective_ops collective_halving = {
    .name = "halving-doubling",
    /* A node would round sums of one element in several hops, and keep a rest of each. */
    .traits = {.dense = true, .values = 1u << PAYLOAD_VALUE_F32},
    .phases = halving_phases,
    .expects = halving_expects,
    .produce = halving_produce,
    .finish = halving_finish,
    .drop = halving_drop,
};
