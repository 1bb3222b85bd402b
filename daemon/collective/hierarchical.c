/*
 * Hierarchical centralisation: recursive doubling on sparse lists. (SparCML, Renggli et al., SC
 * 2019; the HC of Zen's taxonomy; doubling.h.)
 *
 * A hop is a phase. A core sends the sum of its group's lists to its partner in the other group,
 * and both add the two sums, the lower group's first. So every entry of the result is the same
 * balanced tree over the order of the members, and all have the same bits. If P is no power of two,
 * extras send their list to their core first, and get the result at the end. This takes log2 P
 * latencies (2 more with extras). A node receives the sum over 1, 2, 4, ... members, which is
 * little where entries overlap.
 *
 * - Sums are sent as f32, whatever values the policy asks for. Lists of one member are sent in the
 *   policy's values. If a sum were rounded on its way, every member of its group would round
 *   it, and one would take the rest into its residual. That one would have to get so far
 *   whenever any node delivers. This does not hold: a node's result depends on one member of each
 *   group only.
 * - Entries whose sum is 0 are dropped. They change no sum, and the update is 0 there anyway; all
 *   entries that were sent count as applied. So a list may be sent as all its elements, where that
 *   takes fewer bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/collective/collective.h"
#include "daemon/collective/doubling.h"
#include "daemon/collective/gather.h"
#include "daemon/collective/predict.h"
#include "kernels/kernels.h"

/* The part of this member in a phase. */
struct step {
    unsigned to, from;          /* members, or DOUBLING_NOBODY */
    unsigned sent_of, taken_of; /* how many members' lists are in the list that it sends and in the
                                 * one that it receives */
};

/* An empty list with this much room. */
static enum adtopk_status make_list(
    const struct exchange *exchange, struct sparse *list, uint64_t capacity, struct error *err)
{
    return list_alloc(list, capacity) ? ADTOPK_OK : exchange_no_memory(exchange, "sum", err);
}

static void drop_zeros(struct sparse *list)
{
    size_t kept = 0;

    for (size_t i = 0; i < list->count; i++) {
        if (list->value[i] != 0) {
            list->position[kept] = list->position[i];
            list->value[kept++] = list->value[i];
        }
    }
    list->count = kept;
}

static unsigned hierarchical_phases(const struct exchange *exchange)
{
    struct doubling doubling = doubling_of(exchange->members);
    unsigned phases = doubling.hops + (doubling.extras > 0 ? 2 : 0);

    return phases > 0 ? phases : 1;
}

static struct step hierarchical_step_of(const struct exchange *exchange, unsigned phase)
{
    struct doubling doubling = doubling_of(exchange->members);
    unsigned self = exchange->self, folds = doubling.extras > 0 ? 1 : 0, hop = phase - folds;
    bool extra = doubling_is_extra(&doubling, self);
    struct step step = {.to = DOUBLING_NOBODY, .from = DOUBLING_NOBODY};

    if (folds == 1 && phase == 0) {
        *(extra ? &step.to : &step.from) = doubling_mate(&doubling, self);
        step.sent_of = step.taken_of = 1;
    } else if (hop == doubling.hops) {
        *(extra ? &step.from : &step.to) = doubling_mate(&doubling, self);
        step.sent_of = step.taken_of = exchange->members;
    } else if (!extra) {
        step.to = step.from = doubling_partner(&doubling, self, hop);
        step.sent_of = doubling_group(&doubling, self, hop);
        step.taken_of = doubling_group(&doubling, step.from, hop);
    }
    return step;
}

static bool hierarchical_expects(const struct exchange *exchange, unsigned phase, unsigned from)
{
    return hierarchical_step_of(exchange, phase).from == from;
}

/* How the list of so many members looks; that of several has no order but that of positions. */
static struct payload_shape hierarchical_shape_of(
    const struct exchange_tensor *tensor, unsigned members)
{
    uint64_t positions = view_size(&tensor->shape.view), most = tensor->shape.max_count * members;

    return members == 1
               ? tensor->shape
               : (struct payload_shape){.view = {.fibres = 1, .length = positions, .stride = 1},
                     .max_count = most < positions ? most : positions};
}

static void hierarchical_drop(struct exchange *exchange)
{
    struct sparse *list = exchange->state;

    for (unsigned t = 0; t < exchange->tensors; t++) {
        list_free(&list[t]);
    }
    free(list);
}

/* ------------------------------------------------------------------ sending */

/* exchange->state has a list of each tensor, unscaled; at first this node's contribution. */
static enum adtopk_status hierarchical_begin(struct exchange *exchange, struct error *err)
{
    struct sparse *list = calloc(exchange->tensors, sizeof(*list));

    exchange->state = list;
    if (list == NULL) {
        return exchange_no_memory(exchange, "sum", err);
    }
    for (unsigned t = 0; t < exchange->tensors; t++) {
        const struct sparse *sent = &exchange->tensor[t].sent;
        if (make_list(exchange, &list[t], sent->count, err) != ADTOPK_OK) {
            return err->code;
        }
        (void)memcpy(list[t].position, sent->position, sent->count * sizeof(*sent->position));
        (void)memcpy(list[t].value, sent->value, sent->count * sizeof(*sent->value));
        list[t].count = sent->count;
    }
    return ADTOPK_OK;
}

/* Appends a sum, as a list or as all its elements. */
static enum adtopk_status put_sum(struct payload_writer *frame, const struct payload_shape *shape,
    struct sparse *list, enum payload_index index)
{
    const struct payload_writer before = *frame;
    enum adtopk_status status = payload_put_list(frame, shape, list, index, PAYLOAD_VALUE_F32);

    if (status != ADTOPK_OK ||
        frame->size - before.size <= payload_dense_size(shape->view.length, PAYLOAD_VALUE_F32)) {
        return status;
    }
    frame->size = before.size;
    frame->sections = before.sections;
    return payload_put_list(frame, shape, list, PAYLOAD_INDEX_DENSE, PAYLOAD_VALUE_F32);
}

static enum adtopk_status hierarchical_give(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    struct step step = hierarchical_step_of(exchange, phase);
    struct sparse *list = exchange->state;
    struct payload_writer *frame;
    enum adtopk_status status;

    if (step.to == DOUBLING_NOBODY) {
        return ADTOPK_OK;
    }
    frame = exchange_add_frame(exchange, phase, step.to);
    status = frame != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;
    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        struct payload_shape shape = hierarchical_shape_of(&exchange->tensor[t], step.sent_of);
        status = step.sent_of == 1
                     ? payload_put_list(frame, &shape, &list[t], exchange->index, exchange->value)
                     : put_sum(frame, &shape, &list[t], exchange->index);
        if (step.from == DOUBLING_NOBODY && step.sent_of == 1) {
            list_free(&list[t]); /* an extra's: it comes back in the result */
        }
    }
    if (status != ADTOPK_OK) {
        return exchange_no_memory(exchange, "sum", err);
    }
    payload_end(frame);
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ taking */

/* Decodes a section with all elements into the list of those that are not 0. */
static enum adtopk_status take_elements(const struct exchange *exchange,
    struct payload_reader *reader, unsigned from, uint64_t n, struct sparse *list,
    struct error *err)
{
    float *x = malloc(n * sizeof(*x) + 1);
    enum adtopk_status status = x != NULL ? ADTOPK_OK : exchange_no_memory(exchange, "sum", err);

    if (status == ADTOPK_OK && payload_get_dense(reader, x, n, err) != ADTOPK_OK) {
        status = exchange_blame(exchange, from, err);
    }
    if (status == ADTOPK_OK) {
        status = make_list(exchange, list, n, err);
    }
    for (uint64_t i = 0; status == ADTOPK_OK && i < n; i++) {
        if (x[i] != 0) {
            list->position[list->count] = (uint32_t)i;
            list->value[list->count++] = x[i];
        }
    }
    free(x);
    return status;
}

static enum adtopk_status take_list(const struct exchange *exchange, struct payload_reader *reader,
    const struct step *step, unsigned t, struct sparse *list, struct error *err)
{
    struct payload_shape shape = hierarchical_shape_of(&exchange->tensor[t], step->taken_of);

    if (step->taken_of > 1 && payload_next_is_dense(reader)) {
        return take_elements(exchange, reader, step->from, shape.view.length, list, err);
    }
    if (make_list(exchange, list, payload_next_count(reader, &shape), err) != ADTOPK_OK) {
        return err->code;
    }
    return payload_get_list(reader, &shape, list, err) == ADTOPK_OK
               ? ADTOPK_OK
               : exchange_blame(exchange, step->from, err);
}

/* own = own + other, the lower group's first. */
static enum adtopk_status join(struct exchange *exchange, unsigned t, struct sparse *own,
    const struct sparse *other, bool other_first, struct error *err)
{
    uint64_t positions = view_size(&exchange->tensor[t].shape.view);
    uint64_t total = own->count + other->count;
    const struct sparse list[] = {other_first ? *other : *own, other_first ? *own : *other};
    struct sparse sum;
    struct merge merge = {.list = list,
        .lists = 2,
        .positions = positions,
        .scale = 1,
        .out = &sum,
        .parts = merge_parts(positions, total, false, &exchange->parallel)};
    enum adtopk_status status =
        make_list(exchange, &sum, total < positions ? total : positions, err);

    merge.cursor = malloc((size_t)merge.parts * 2 * sizeof(*merge.cursor));
    if (status == ADTOPK_OK && merge.cursor == NULL) {
        status = exchange_no_memory(exchange, "sum", err);
    }
    if (status == ADTOPK_OK) {
        merge_run(&merge, &exchange->parallel);
        drop_zeros(&sum);
        list_free(own);
        *own = sum;
    } else {
        list_free(&sum);
    }
    free(merge.cursor);
    return status;
}

/* Adds the lists that a phase brought. */
static enum adtopk_status hierarchical_take(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    struct step step = hierarchical_step_of(exchange, phase);
    struct sparse *own = exchange->state;
    enum adtopk_status status = ADTOPK_OK;
    struct payload_reader reader;

    if (step.from == DOUBLING_NOBODY) {
        return ADTOPK_OK;
    }
    if (exchange_open(exchange, phase, step.from, &reader, err) != ADTOPK_OK) {
        return err->code;
    }
    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        struct sparse other = {0};
        status = take_list(exchange, &reader, &step, t, &other, err);
        if (status == ADTOPK_OK) {
            status = join(exchange, t, &own[t], &other, step.from < exchange->self, err);
        }
        list_free(&other);
    }
    if (status == ADTOPK_OK && payload_close(&reader, err) != ADTOPK_OK) {
        status = exchange_blame(exchange, step.from, err);
    }
    if (status == ADTOPK_OK) {
        exchange_note(exchange, &reader);
    }
    return status;
}

static enum adtopk_status hierarchical_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    enum adtopk_status status = phase == 0 ? hierarchical_begin(exchange, err)
                                           : hierarchical_take(exchange, phase - 1, err);

    return status == ADTOPK_OK ? hierarchical_give(exchange, phase, err) : status;
}

/* The result. If it has more entries than the update can have, the member that was added last is to
 * blame. */
static enum adtopk_status write_update(
    struct exchange *exchange, unsigned t, unsigned from, struct error *err)
{
    const struct sparse *sum = (const struct sparse *)exchange->state + t;
    struct sparse *update = &exchange->tensor[t].update;
    const float factor = exchange_factor(exchange);

    if (sum->count > update->capacity) {
        (void)error_set(err, ADTOPK_ERR_PROTOCOL,
            "with the entries it sent there are more than the %llu that the ranks may select",
            (unsigned long long)update->capacity);
        return exchange_blame(exchange, from, err);
    }
    (void)memcpy(update->position, sum->position, sum->count * sizeof(*sum->position));
    for (size_t i = 0; i < sum->count; i++) {
        update->value[i] = factor * sum->value[i];
    }
    update->count = sum->count;
    return ADTOPK_OK;
}

static enum adtopk_status hierarchical_finish(struct exchange *exchange, struct error *err)
{
    unsigned last = hierarchical_phases(exchange) - 1,
             from = hierarchical_step_of(exchange, last).from;
    enum adtopk_status status = hierarchical_take(exchange, last, err);

    if (from == DOUBLING_NOBODY && last > 0) { /* a core that only gave its extra the result */
        from = hierarchical_step_of(exchange, last - 1).from;
    }
    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        status = write_update(exchange, t, from, err);
    }
    return status;
}

/* The number of received entries, divided by that of one contribution: *contributions, then sums.
 */
static double incoming(const struct collective_load *load, double *contributions)
{
    struct doubling doubling = doubling_of(load->members);
    double sums = doubling.extras > 0 ? load->growth : 0;

    *contributions = (doubling.extras > 0) + (doubling.hops > 0 && doubling.extras == 0);
    for (unsigned h = doubling.extras == 0; h < doubling.hops; h++) {
        sums += predict_growth(load, (double)(1u << h) * load->members / doubling.cores);
    }
    return sums;
}

static double hierarchical_bytes(const struct collective_load *load)
{
    double contributions, sums = incoming(load, &contributions);

    return load->entries * (predict_entry(load) * contributions + PREDICT_SUM_BYTES * sums);
}

static double hierarchical_messages(const struct collective_load *load)
{
    struct doubling doubling = doubling_of(load->members);

    return doubling.hops + (doubling.extras > 0 ? 2.0 : 0.0);
}

static double hierarchical_summed(const struct collective_load *load)
{
    double contributions, sums = incoming(load, &contributions);

    return 2 * load->entries * sums + predict_sum(load);
}

static const struct collective_cost hierarchical_cost = {
    .bytes = hierarchical_bytes,
    .messages = hierarchical_messages,
    .hops = hierarchical_messages, /* each of them waits for the one before */
    .summed = hierarchical_summed,
};

const struct collective_ops collective_hierarchical = {
    .name = "hierarchical",
    .traits = {.values = COLLECTIVE_VALUES_ALL, .cost = &hierarchical_cost},
    .phases = hierarchical_phases,
    .expects = hierarchical_expects,
    .produce = hierarchical_produce,
    .finish = hierarchical_finish,
    .drop = hierarchical_drop,
};
