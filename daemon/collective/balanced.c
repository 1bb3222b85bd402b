/*
 * Balanced parallelism (Zen, arXiv 2309.13254): every node owns a partition of the positions, sums
 * the entries of all nodes there, and sends the sums to all. Partitions are balanced however skewed
 * the entries are (kernels/base/partition.h).
 *
 * Phase 0: every node sends every owner the entries of its partition. Phase 1: every owner sends
 * its sums to all. A node sends and receives k(P-1)/P entries, then the entries of the sum.
 * Positions are sent as slots of the partition, which both sides know. A bitmap of slots is Zen's
 * hash bitmap; where a list of deltas is smaller the encoder uses that.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/collective/collective.h"
#include "daemon/collective/gather.h"
#include "daemon/collective/predict.h"
#include "kernels/base/partition.h"

/* The data of a tensor from phase to phase. */
struct balanced {
    struct sparse own; /* the sums that this node sends of its own partition; slots */
    struct sparse sum; /* of its partition, as the others get it; slots */
};

static void to_positions(struct sparse *list, unsigned part, unsigned parts)
{
    for (size_t i = 0; i < list->count; i++) {
        list->position[i] = (uint32_t)partition_position(list->position[i], part, parts);
    }
}

static void to_slots(struct sparse *list, unsigned parts)
{
    for (size_t i = 0; i < list->count; i++) {
        list->position[i] = (uint32_t)partition_slot(list->position[i], parts);
    }
}

/* The shape of lists of slots, for contributions or for sums. */
static struct payload_shape balanced_shape_of(
    const struct exchange *exchange, const struct exchange_tensor *tensor, unsigned part, bool sum)
{
    uint64_t slots = partition_size(view_size(&tensor->shape.view), part, exchange->members);
    uint64_t most = tensor->shape.max_count;

    return (struct payload_shape){.view = {.fibres = 1, .length = slots, .stride = 1},
        .max_count = sum || slots < most ? slots : most};
}

static void balanced_drop(struct exchange *exchange)
{
    struct balanced *balanced = exchange->state;

    for (unsigned t = 0; t < exchange->tensors; t++) {
        list_free(&balanced[t].own);
        list_free(&balanced[t].sum);
    }
    free(balanced);
}

static unsigned balanced_phases(const struct exchange *exchange)
{
    (void)exchange;
    return 2;
}

/* ------------------------------------------------------------------ to the owners */

/* A list, dealt to the partitions as slots: those of part p begin at first[p]. */
struct dealt {
    struct sparse all;
    size_t *first; /* parts + 1 of them */
};

static enum adtopk_status deal(const struct exchange *exchange, const struct sparse *sent,
    struct dealt *dealt, struct error *err)
{
    unsigned parts = exchange->members;
    size_t *first = calloc((size_t)parts + 2, sizeof(*first));

    dealt->first = first;
    if (!list_alloc(&dealt->all, sent->count) || first == NULL) {
        return exchange_no_memory(exchange, "sum", err);
    }
    /* first[p + 2] counts part p; then first[p + 1] is where its next entry goes. */
    for (size_t i = 0; i < sent->count; i++) {
        first[partition_of(sent->position[i], parts) + 2]++;
    }
    for (unsigned p = 0; p < parts; p++) {
        first[p + 2] += first[p + 1];
    }
    for (size_t i = 0; i < sent->count; i++) {
        size_t at = first[partition_of(sent->position[i], parts) + 1]++;
        dealt->all.position[at] = (uint32_t)partition_slot(sent->position[i], parts);
        dealt->all.value[at] = sent->value[i];
    }
    return ADTOPK_OK;
}

static struct sparse balanced_part_of(const struct dealt *dealt, unsigned part)
{
    size_t first = dealt->first[part], count = dealt->first[part + 1] - first;

    return (struct sparse){.position = dealt->all.position + first,
        .value = dealt->all.value + first,
        .count = count,
        .capacity = count};
}

static enum adtopk_status keep_own(const struct exchange *exchange, const struct dealt *dealt,
    struct sparse *own, struct error *err)
{
    struct sparse part = balanced_part_of(dealt, exchange->self);

    if (!list_alloc(own, part.count)) {
        return exchange_no_memory(exchange, "sum", err);
    }
    (void)memcpy(own->position, part.position, part.count * sizeof(*part.position));
    (void)memcpy(own->value, part.value, part.count * sizeof(*part.value));
    own->count = part.count;
    return ADTOPK_OK;
}

/* Writes a tensor's parts into the frames of their owners. */
static enum adtopk_status send_tensor(struct exchange *exchange, unsigned t, struct error *err)
{
    struct exchange_tensor *tensor = &exchange->tensor[t];
    struct balanced *balanced = exchange->state;
    struct dealt dealt = {0};
    enum adtopk_status status = deal(exchange, &tensor->sent, &dealt, err);

    for (unsigned f = 0; status == ADTOPK_OK && f < exchange->outgoing_count; f++) {
        struct exchange_frame *out = &exchange->outgoing[f];
        struct payload_shape shape = balanced_shape_of(exchange, tensor, out->to, false);
        struct sparse part = balanced_part_of(&dealt, out->to);
        if (payload_put_list(&out->frame, &shape, &part, exchange->index, exchange->value) !=
            ADTOPK_OK) {
            status = exchange_no_memory(exchange, "sum", err);
        }
    }
    if (status == ADTOPK_OK) {
        status = keep_own(exchange, &dealt, &balanced[t].own, err);
    }
    list_free(&dealt.all);
    free(dealt.first);
    return status;
}

static enum adtopk_status send_entries(struct exchange *exchange, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    exchange->state = calloc(exchange->tensors, sizeof(struct balanced));
    if (exchange->state == NULL) {
        return exchange_no_memory(exchange, "sum", err);
    }
    for (unsigned i = 1; i < exchange->members; i++) {
        if (exchange_add_frame(exchange, 0, (exchange->self + i) % exchange->members) == NULL) {
            return exchange_no_memory(exchange, "sum", err);
        }
    }
    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        status = send_tensor(exchange, t, err);
    }
    for (unsigned f = 0; status == ADTOPK_OK && f < exchange->outgoing_count; f++) {
        payload_end(&exchange->outgoing[f].frame);
    }
    return status;
}

/* ------------------------------------------------------------------ from the owners */

/* Sums the lists of a tensor in this node's partition, and rounds the sums. */
static enum adtopk_status sum_tensor(
    struct gather *gather, unsigned t, enum payload_value *value, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    struct balanced *balanced = (struct balanced *)exchange->state + t;
    struct payload_shape mine =
        balanced_shape_of(exchange, &exchange->tensor[t], exchange->self, false);
    uint64_t slots = mine.view.length, count;
    enum adtopk_status status;

    for (unsigned m = 0; m < exchange->members; m++) {
        gather->shape[m] = mine;
    }
    status = gather_next(gather, &balanced->own, err);
    count = gather_count(gather);
    if (status == ADTOPK_OK && !list_alloc(&balanced->sum, count < slots ? count : slots)) {
        status = exchange_no_memory(exchange, "sum", err);
    }
    if (status == ADTOPK_OK) {
        status = gather_sum(gather, slots, 1, &balanced->sum, NULL, err);
    }
    if (status == ADTOPK_OK) {
        to_positions(&balanced->sum, exchange->self, exchange->members);
        *value = exchange_reround(exchange, &exchange->tensor[t], &balanced->sum);
        to_slots(&balanced->sum, exchange->members);
    }
    return status;
}

static enum adtopk_status send_sum(struct gather *gather, unsigned t, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    struct balanced *balanced = (struct balanced *)exchange->state + t;
    struct payload_shape mine =
        balanced_shape_of(exchange, &exchange->tensor[t], exchange->self, true);
    enum payload_value value = PAYLOAD_VALUE_F32;
    enum adtopk_status status = sum_tensor(gather, t, &value, err);

    if (status == ADTOPK_OK && payload_put_list(&exchange->outgoing[0].frame, &mine, &balanced->sum,
                                   exchange->index, value) != ADTOPK_OK) {
        status = exchange_no_memory(exchange, "sum", err);
    }
    return status;
}

static enum adtopk_status balanced_send_sums(struct exchange *exchange, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    if (exchange_add_frame(exchange, 1, EXCHANGE_ALL) == NULL) {
        return exchange_no_memory(exchange, "sum", err);
    }
    status = gather_each(exchange, 0, send_sum, err);
    payload_end(&exchange->outgoing[0].frame);
    return status;
}

static enum adtopk_status balanced_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    return phase == 0 ? send_entries(exchange, err) : balanced_send_sums(exchange, err);
}

/* Puts the sums of all partitions together. */
static enum adtopk_status balanced_finish_tensor(
    struct gather *gather, unsigned t, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    struct exchange_tensor *tensor = &exchange->tensor[t];
    struct balanced *balanced = (struct balanced *)exchange->state + t;
    enum adtopk_status status;

    for (unsigned m = 0; m < exchange->members; m++) {
        gather->shape[m] = balanced_shape_of(exchange, tensor, m, true);
    }
    status = gather_next(gather, &balanced->sum, err);
    if (status == ADTOPK_OK) {
        status = gather_limit(gather, tensor, tensor->numel, err);
    }
    for (unsigned m = 0; status == ADTOPK_OK && m < exchange->members; m++) {
        to_positions(&gather->list[m], m, exchange->members);
    }
    if (status == ADTOPK_OK) {
        status = gather_update(gather, tensor, err);
    }
    return status;
}

static enum adtopk_status balanced_finish(struct exchange *exchange, struct error *err)
{
    return gather_each(exchange, 1, balanced_finish_tensor, err);
}

static double balanced_messages(const struct collective_load *load)
{
    return 2 * predict_others(load);
}

static double balanced_hops(const struct collective_load *load)
{
    (void)load;
    return 2;
}

static const struct collective_cost balanced_cost = {
    .bytes = predict_balanced,
    .messages = balanced_messages,
    .hops = balanced_hops,
    .summed = predict_balanced_entries,
};

const struct collective_ops collective_balanced = {
    .name = "balanced",
    .traits = {.values = COLLECTIVE_VALUES_CUT,
        .scatters = true,
        .rerounds = true,
        .cost = &balanced_cost},
    .phases = balanced_phases,
    .expects = exchange_expects_all,
    .produce = balanced_produce,
    .finish = balanced_finish,
    .drop = balanced_drop,
};
