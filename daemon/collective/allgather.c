/*
 * Sparse all-gather: every node sends its list to every other, and each forms the sum itself, in
 * the order of the nodes. Each node receives k(P-1) entries, so it suits small P.
 *
 * A large bucket is cut into segments, which are ranges of positions. Each segment is a phase. The
 * frames of all segments leave at once, in the first phase. So while a node decodes and sums one
 * segment, the next ones are on their way. A list in segments must not be longer than a whole one:
 * exchange->state counts the entries of all segments so far.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/collective/collective.h"
#include "daemon/collective/gather.h"
#include "daemon/collective/predict.h"

/* So many times fewer entries are sent at a time than dense elements would be. Fewer entries than
 * this are not worth a frame. */
#define ELEMENTS_PER_ENTRY 64u
#define ENTRIES_MIN 32u

/* All nodes find the same number: it follows from the policy and the turn. Blocks of
 * values span the whole list; where fibres are strided, the dense form is written from the list. */
static unsigned allgather_segments_of(const struct exchange *exchange)
{
    const uint64_t each = exchange->segment / ELEMENTS_PER_ENTRY + ENTRIES_MIN;
    uint64_t entries = 0, segments;

    if (exchange->members == 1 || exchange->segment == 0 ||
        payload_value_is_blocked(exchange->value) || exchange->index == PAYLOAD_INDEX_DENSE) {
        return 1;
    }
    for (unsigned t = 0; t < exchange->tensors; t++) {
        if (exchange->tensor[t].shape.view.stride != 1) {
            return 1;
        }
        entries += exchange->tensor[t].select;
    }
    segments = entries / each;
    segments = segments < EXCHANGE_SEGMENTS_MAX ? segments : EXCHANGE_SEGMENTS_MAX;
    return segments > 1 ? (unsigned)segments : 1;
}

/* ------------------------------------------------------------------ a tensor's part of a segment
 */

struct part {
    uint64_t first, end; /* positions; there may be none */
    struct payload_shape shape;
    struct sparse own; /* this node's entries, at positions from `first` on */
    uint32_t *shifted; /* memory of own.position, or NULL */
};

/* If a tensor has several fibres, a part consists of whole fibres. */
static void cut(
    const struct exchange_tensor *tensor, unsigned s, unsigned segments, struct part *part)
{
    const struct view *view = &tensor->shape.view;
    const uint64_t each = view->fibres > 1 && segments > 1 ? view->length : 1;
    const uint64_t pieces = view_size(view) / each;

    part->first = pieces * s / segments * each;
    part->end = pieces * (s + 1) / segments * each;
    part->shape = tensor->shape;
    if (segments > 1) {
        part->shape.view = each > 1 ? (struct view){(part->end - part->first) / each, each, 1}
                                    : (struct view){1, part->end - part->first, 1};
    }
}

/* Takes this node's entries; false without memory. */
static bool take_own(const struct sparse *sent, struct part *part)
{
    const size_t first = sparse_find(sent, part->first);
    const size_t count = sparse_find(sent, part->end) - first;

    part->shifted = NULL;
    part->own = (struct sparse){.count = count, .capacity = count};
    if (count == 0) {
        return true; /* there may be no list at all */
    }
    part->own.position = sent->position + first;
    part->own.value = sent->value + first;
    if (part->first > 0) {
        part->shifted = malloc(count * sizeof(*part->shifted));
        if (part->shifted == NULL) {
            return false;
        }
        (void)memcpy(part->shifted, part->own.position, count * sizeof(*part->shifted));
        part->own.position = part->shifted;
        list_shift(&part->own, (uint32_t)(0 - part->first));
    }
    return true;
}

/* ------------------------------------------------------------------ sending */

struct encoding {
    struct exchange *exchange;
    unsigned segments;
    enum adtopk_status status[EXCHANGE_SEGMENTS_MAX];
};

static void encode_segment(void *arg, unsigned s, unsigned thread)
{
    struct encoding *encoding = arg;
    const struct exchange *exchange = encoding->exchange;
    struct payload_writer *frame = &exchange->outgoing[s].frame;
    enum adtopk_status status = ADTOPK_OK;

    (void)thread;
    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        const struct exchange_tensor *tensor = &exchange->tensor[t];
        struct part part;

        cut(tensor, s, encoding->segments, &part);
        if (part.first < part.end) {
            status = take_own(&tensor->sent, &part)
                         ? payload_put_list(
                               frame, &part.shape, &part.own, exchange->index, exchange->value)
                         : ADTOPK_ERR_MEMORY;
            free(part.shifted);
        }
    }
    if (status == ADTOPK_OK) {
        payload_end(frame);
    }
    encoding->status[s] = status;
}

static enum adtopk_status send_all(struct exchange *exchange, struct error *err)
{
    struct encoding encoding = {.exchange = exchange, .segments = allgather_segments_of(exchange)};
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned s = 0; status == ADTOPK_OK && s < encoding.segments; s++) {
        status =
            exchange_add_frame(exchange, s, EXCHANGE_ALL) != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
    }
    if (status == ADTOPK_OK) {
        parallel_for(&exchange->parallel, encode_segment, &encoding, encoding.segments);
    }
    for (unsigned s = 0; s < encoding.segments; s++) {
        status = status == ADTOPK_OK ? encoding.status[s] : status;
    }
    return status == ADTOPK_OK ? ADTOPK_OK : exchange_no_memory(exchange, "encode", err);
}

/* ------------------------------------------------------------------ summing */

/* Adds a segment's sums to the results. */
static enum adtopk_status allgather_write_part(const struct gather *gather,
    struct exchange_tensor *tensor, const struct part *part, struct error *err)
{
    struct sparse *update = &tensor->update;
    const uint64_t positions = part->end - part->first;
    struct sparse sum = {.capacity = update->capacity - update->count};
    float *dense = tensor->dense != NULL ? tensor->dense + part->first : NULL;
    enum adtopk_status status;

    if (update->position != NULL) {
        sum.position = update->position + update->count;
        sum.value = update->value + update->count;
    }
    status = gather_sum(gather, positions, exchange_factor(gather->exchange), &sum, dense, err);
    if (status == ADTOPK_OK && sum.position != NULL && part->first > 0) {
        list_shift(&sum, (uint32_t)part->first);
    }
    if (status == ADTOPK_OK) { /* without a list some are counted twice */
        update->count += sum.count < positions ? sum.count : positions;
    }
    return status;
}

/* Blames a member whose segments together have more entries than a node may send. */
static enum adtopk_status check_lengths(const struct gather *gather, unsigned t, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    const uint64_t most = exchange->tensor[t].shape.max_count;
    uint64_t *counts;

    if (exchange->state == NULL) {
        exchange->state = calloc((size_t)exchange->tensors * exchange->members, sizeof(*counts));
    }
    if (exchange->state == NULL) {
        return exchange_no_memory(exchange, "sum", err);
    }
    counts = (uint64_t *)exchange->state + (size_t)t * exchange->members;
    for (unsigned m = 0; m < exchange->members; m++) {
        counts[m] += gather->list[m].count;
        if (m != exchange->self && counts[m] > most) {
            (void)error_set(err, ADTOPK_ERR_PROTOCOL,
                "its lists of tensor %u of the bucket have more than %llu entries together", t,
                (unsigned long long)most);
            return exchange_blame(exchange, m, err);
        }
    }
    return ADTOPK_OK;
}

/* If a node's share depends on its ranks, no single list is too long, but all together may be
 * longer than the update can be. */
static enum adtopk_status sum_part(struct gather *gather, unsigned t, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    struct exchange_tensor *tensor = &exchange->tensor[t];
    enum adtopk_status status = ADTOPK_OK;
    struct part part;

    if (gather->segments == 0) { /* counting looks at all tensors: once for all of them */
        gather->segments = allgather_segments_of(exchange);
    }
    cut(tensor, gather->phase, gather->segments, &part);
    if (part.first == part.end) {
        return ADTOPK_OK;
    }
    if (!take_own(&tensor->sent, &part)) {
        return exchange_no_memory(exchange, "sum", err);
    }
    for (unsigned m = 0; m < exchange->members; m++) {
        gather->shape[m] = part.shape;
    }
    status = gather_next(gather, &part.own, err);
    if (status == ADTOPK_OK && gather->segments > 1) {
        status = check_lengths(gather, t, err);
    }
    if (status == ADTOPK_OK) {
        status = gather_limit(gather, tensor, part.end - part.first, err);
    }
    if (status == ADTOPK_OK) {
        status = allgather_write_part(gather, tensor, &part, err);
    }
    free(part.shifted);
    return status;
}

/* ------------------------------------------------------------------ the phases */

static unsigned allgather_phases(const struct exchange *exchange)
{
    return allgather_segments_of(exchange);
}

static enum adtopk_status allgather_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    return phase == 0 ? send_all(exchange, err) : gather_each(exchange, phase - 1, sum_part, err);
}

static enum adtopk_status allgather_finish(struct exchange *exchange, struct error *err)
{
    return gather_each(exchange, allgather_segments_of(exchange) - 1, sum_part, err);
}

static void allgather_drop(struct exchange *exchange)
{
    free(exchange->state);
}

static double allgather_hops(const struct collective_load *load)
{
    (void)load;
    return 1;
}

static const struct collective_cost allgather_cost = {
    .bytes = predict_all_lists,
    .messages = predict_others,
    .hops = allgather_hops,
    .summed = predict_all_entries,
};

const struct collective_ops collective_allgather = {
    .name = "allgather",
    .traits = {.values = COLLECTIVE_VALUES_ALL,
        .scatters = true,
        .streams = true,
        .cost = &allgather_cost},
    .phases = allgather_phases,
    .expects = exchange_expects_all,
    .produce = allgather_produce,
    .finish = allgather_finish,
    .drop = allgather_drop,
};
