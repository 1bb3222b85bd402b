/*
 * Dense all-reduce by recursive vector halving and distance doubling.
 *
 * In hop h of the reduce-scatter, a core and its partner split what both have of the vector: each
 * sends the half that the other keeps, and adds what it gets. After log2 P hops every core has the
 * complete sum of 1/P of the vector; the all-gather goes through the same partners backwards, and
 * doubles what each has. 2n(P-1)/P elements a node and 2 log2 P latencies; for P that is no power
 * of two, extras send everything to their core first and get everything at the end: 2n elements and
 * 2 latencies more. (Thakur, Rabenseifner, Gropp, 2005, section 4.5; doubling.h.)
 *
 * Every element's sum is the same balanced tree over the order of the members, ((0 + 1) + (2 + 3))
 * + ...; sums travel as f32. Segments go one after the other; exchange->state is a copy of the one
 * at hand, as partial sums must not overwrite an update that other members lack.
 */
#include <stdlib.h>

#include "daemon/collective/doubling.h"
#include "daemon/collective/vector.h"

/* What a member does in a phase. */
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

static unsigned segments_of(const struct exchange *exchange, const struct doubling *doubling)
{
    return vector_segments(exchange, steps_of(doubling), 1);
}

static struct step step_of(
    const struct exchange *exchange, const struct doubling *doubling, unsigned phase)
{
    unsigned steps = steps_of(doubling), at = phase % steps, folds = doubling->extras > 0 ? 1 : 0;
    struct step step = {
        .segment = vector_segment(exchange, phase / steps, segments_of(exchange, doubling)),
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

/* Whom `member` sends a frame in this step, or nobody. */
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

/* Who sends one: the steps are symmetric but for the direction of those with extras. */
static unsigned sender_of(const struct doubling *doubling, const struct step *step, unsigned member)
{
    unsigned other = step->move == MOVE_HALVE || step->move == MOVE_DOUBLE
                         ? doubling_partner(doubling, member, step->hop)
                         : doubling_mate(doubling, member);

    return other != DOUBLING_NOBODY && receiver_of(doubling, step, other) == member
               ? other
               : DOUBLING_NOBODY;
}

/* What a core keeps of the segment in so many hops: the lower half where it is the lower partner.
 */
static struct slice kept_of(
    const struct doubling *doubling, struct slice segment, unsigned member, unsigned hops)
{
    unsigned core = doubling_core(doubling, member);

    for (unsigned h = 0; h < hops; h++) {
        segment = slice_cut(segment, core >> h & 1u, 2);
    }
    return segment;
}

/* What `from` sends to `to`. */
static struct slice slice_of(
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

    return exchange->members > 1 ? steps_of(&doubling) * segments_of(exchange, &doubling) : 1;
}

static bool halving_expects(const struct exchange *exchange, unsigned phase, unsigned from)
{
    struct doubling doubling = doubling_for(exchange);
    struct step step;

    if (exchange->members == 1) {
        return false;
    }
    step = step_of(exchange, &doubling, phase);
    return sender_of(&doubling, &step, exchange->self) == from;
}

/* Takes what came in during a phase; after a segment's last, writes its sum. */
static enum adtopk_status take(struct exchange *exchange, unsigned phase, struct error *err)
{
    float *segment = exchange->state;
    struct doubling doubling = doubling_for(exchange);
    struct step step = step_of(exchange, &doubling, phase);
    unsigned from = sender_of(&doubling, &step, exchange->self);

    if (from != DOUBLING_NOBODY) {
        struct slice slice = slice_of(&doubling, &step, from, exchange->self);
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
static enum adtopk_status begin(
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

static enum adtopk_status give(
    struct exchange *exchange, const struct step *step, unsigned phase, struct error *err)
{
    const float *segment = exchange->state;
    struct doubling doubling = doubling_for(exchange);
    unsigned to = receiver_of(&doubling, step, exchange->self);
    struct slice slice;

    if (to == DOUBLING_NOBODY) {
        return ADTOPK_OK;
    }
    slice = slice_of(&doubling, step, exchange->self, to);
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
    step = step_of(exchange, &doubling, phase);
    if (phase > 0 && take(exchange, phase - 1, err) != ADTOPK_OK) {
        return err->code;
    }
    if (step.first && begin(exchange, &step, err) != ADTOPK_OK) {
        return err->code;
    }
    return give(exchange, &step, phase, err);
}

static enum adtopk_status halving_finish(struct exchange *exchange, struct error *err)
{
    if (exchange->members > 1 && take(exchange, halving_phases(exchange) - 1, err) != ADTOPK_OK) {
        return err->code;
    }
    vector_finish(exchange);
    return ADTOPK_OK;
}

static void halving_drop(struct exchange *exchange)
{
    free(exchange->state);
}

const struct collective_ops collective_halving = {
    .name = "halving-doubling",
    .dense = true,
    .phases = halving_phases,
    .expects = halving_expects,
    .produce = halving_produce,
    .finish = halving_finish,
    .drop = halving_drop,
};
