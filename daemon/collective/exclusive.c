/*
 * Exclusive partitions (MiCRO, arXiv 2310.00967): every node selects in one partition of the
 * positions, so that no position is selected twice. All nodes contribute their values at the
 * selected positions.
 *
 * Phase 0: member r selects the largest k/P of its own residual and gradient in partition (step +
 * r) mod P, and tells all members their positions. Phase 1: every member sends r its values there.
 * Phase 2: r sends the sums to all. A node receives k(P-1)/P positions, as many values, and as many
 * sums; all three are balanced however skewed the entries are. Partitions are stretches of the
 * tensor, which rotate among the members.
 *
 * At every position of the update a node's contribution leaves its residual: `whole`.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/collective/collective.h"
#include "daemon/collective/gather.h"
#include "daemon/collective/number.h"
#include "kernels/base/quantise.h"

enum exclusive_phase { SELECT, CONTRIBUTE, SUM, EXCLUSIVE_PHASES };

/* A tensor, from phase to phase: the positions that each member selected, and the sums there. */
struct selected {
    struct sparse *list; /* [members] */
};

static struct sparse *list_of(const struct exchange *exchange, unsigned m, unsigned t)
{
    return &((const struct selected *)exchange->state)[t].list[m];
}

/* The partition that member m selects in, and the other way round. */
static unsigned partition_of(const struct exchange *exchange, unsigned m)
{
    return (unsigned)((m + exchange->header.number) % exchange->members);
}

static unsigned member_of(const struct exchange *exchange, unsigned partition)
{
    unsigned turned = (unsigned)(exchange->header.number % exchange->members);

    return (partition + exchange->members - turned) % exchange->members;
}

/* Where a partition begins, if `all` are dealt out. */
static uint64_t begin_of(const struct exchange *exchange, uint64_t all, unsigned partition)
{
    return all * partition / exchange->members;
}

/* Positions and entries of member m. */
struct share {
    uint32_t base;
    uint64_t length;
    uint64_t count;
};

static struct share share_of(const struct exchange *exchange, unsigned m, unsigned t)
{
    const struct exchange_tensor *tensor = &exchange->tensor[t];
    unsigned partition = partition_of(exchange, m);
    uint64_t base = begin_of(exchange, tensor->numel, partition);
    uint64_t length = begin_of(exchange, tensor->numel, partition + 1) - base;
    uint64_t count = begin_of(exchange, tensor->select, partition + 1) -
                     begin_of(exchange, tensor->select, partition);

    return (struct share){(uint32_t)base, length, count < length ? count : length};
}

static void exclusive_drop(struct exchange *exchange)
{
    struct selected *selected = exchange->state;

    for (unsigned t = 0; t < exchange->tensors; t++) {
        for (unsigned m = 0; selected[t].list != NULL && m < exchange->members; m++) {
            list_free(&selected[t].list[m]);
        }
        free(selected[t].list);
    }
    free(selected);
}

static enum adtopk_status exclusive_begin(struct exchange *exchange, struct error *err)
{
    struct selected *selected = calloc(exchange->tensors, sizeof(*selected));

    exchange->state = selected;
    for (unsigned t = 0; selected != NULL && t < exchange->tensors; t++) {
        selected[t].list = calloc(exchange->members, sizeof(*selected[t].list));
        if (selected[t].list == NULL) {
            return exchange_no_memory(exchange, "sum", err);
        }
    }
    return selected != NULL ? ADTOPK_OK : exchange_no_memory(exchange, "sum", err);
}

/* Reads member m's part of a tensor; reader NULL: m is this member. */
typedef enum adtopk_status take_part(struct exchange *exchange, unsigned m, unsigned t,
    struct payload_reader *reader, struct error *err);

static enum adtopk_status take_member(
    struct exchange *exchange, unsigned phase, unsigned m, take_part *take, struct error *err)
{
    bool own = m == exchange->self;
    struct payload_reader reader;
    enum adtopk_status status = ADTOPK_OK;

    if (!own && exchange_open(exchange, phase, m, &reader, err) != ADTOPK_OK) {
        return err->code;
    }
    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        status = take(exchange, m, t, own ? NULL : &reader, err);
    }
    if (!own && status == ADTOPK_OK) {
        exchange_note(exchange, &reader);
        status = payload_close(&reader, err);
    }
    return status == ADTOPK_ERR_PROTOCOL ? exchange_blame(exchange, m, err) : status;
}

/* The parts of a phase, in the order of the members. */
static enum adtopk_status take_all(
    struct exchange *exchange, unsigned phase, take_part *take, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned m = 0; status == ADTOPK_OK && m < exchange->members; m++) {
        status = take_member(exchange, phase, m, take, err);
    }
    return status;
}

/* ------------------------------------------------------------------ selected positions */

static enum adtopk_status select_own(struct exchange *exchange, unsigned t, struct error *err)
{
    struct share share = share_of(exchange, exchange->self, t);
    struct view view = {.fibres = 1, .length = share.length, .stride = 1};
    struct sparse *list = list_of(exchange, exchange->self, t);
    void *scratch = malloc(select_scratch(share.length) + 1);
    bool room = list_alloc(list, share.count) && scratch != NULL;

    if (room && share.count > 0) {
        select_top(exchange->tensor[t].acc + share.base, &view, share.count, list, scratch);
    }
    free(scratch);
    return room ? ADTOPK_OK : exchange_no_memory(exchange, "sum", err);
}

/* Appends the deltas between positions that are still relative to the partition. */
static enum adtopk_status put_positions(struct payload_writer *frame, const struct sparse *list)
{
    uint8_t *bytes = malloc(list->count * NUMBER_BYTES + 1), *end = bytes;
    uint32_t next = 0;
    enum adtopk_status status = ADTOPK_ERR_MEMORY;

    for (size_t i = 0; bytes != NULL && i < list->count; i++) {
        end = number_put(end, list->position[i] - next);
        next = list->position[i] + 1;
    }
    if (bytes != NULL) {
        status = payload_put_bytes(frame, bytes, (size_t)(end - bytes));
    }
    free(bytes);
    return status;
}

static enum adtopk_status send_positions(struct exchange *exchange, struct error *err)
{
    struct payload_writer *frame = exchange_add_frame(exchange, SELECT, EXCHANGE_ALL);

    if (frame == NULL) {
        return exchange_no_memory(exchange, "sum", err);
    }
    if (exclusive_begin(exchange, err) != ADTOPK_OK) {
        return err->code;
    }
    for (unsigned t = 0; t < exchange->tensors; t++) {
        struct sparse *list = list_of(exchange, exchange->self, t);
        if (select_own(exchange, t, err) != ADTOPK_OK) {
            return err->code;
        }
        if (put_positions(frame, list) != ADTOPK_OK) {
            return exchange_no_memory(exchange, "sum", err);
        }
        list_shift(list, share_of(exchange, exchange->self, t).base);
    }
    payload_end(frame);
    return ADTOPK_OK;
}

/* The positions that the deltas encode; false unless they are exactly as many as a share has. */
static bool read_positions(
    const uint8_t *bytes, size_t size, const struct share *share, struct sparse *list)
{
    const uint8_t *end = bytes + size;
    uint64_t next = 0;

    for (list->count = 0; list->count < share->count; list->count++) {
        uint64_t delta;
        if (!number_get(&bytes, end, &delta) || delta >= share->length - next) {
            return false;
        }
        next += delta;
        list->position[list->count] = share->base + (uint32_t)next++;
    }
    return bytes == end;
}

static enum adtopk_status take_positions(struct exchange *exchange, unsigned m, unsigned t,
    struct payload_reader *reader, struct error *err)
{
    struct share share = share_of(exchange, m, t);
    struct sparse *list = list_of(exchange, m, t);
    const uint8_t *bytes;
    size_t size;

    if (reader == NULL) {
        return ADTOPK_OK;
    }
    if (payload_get_bytes(reader, share.count * NUMBER_BYTES, &bytes, &size, err) != ADTOPK_OK) {
        return err->code;
    }
    list_free(list);
    if (!list_alloc(list, share.count)) {
        return exchange_no_memory(exchange, "sum", err);
    }
    return read_positions(bytes, size, &share, list)
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_PROTOCOL,
                     "its selection of tensor %u does not have %llu ascending positions of its "
                     "partition",
                     t, (unsigned long long)share.count);
}

/* ------------------------------------------------------------------ values there */

/* This member's values where a list has entries, as others decode them. */
static void contribution(
    const struct exchange *exchange, unsigned t, const struct sparse *list, float *value)
{
    for (size_t i = 0; i < list->count; i++) {
        value[i] = exchange->tensor[t].acc[list->position[i]];
    }
    quantise_values(value, list->count, (enum quantisation)exchange->value, 0);
}

/* Sums the values for member `to`. The values of its list are free until the sums come. */
static enum adtopk_status send_values(struct exchange *exchange, unsigned to, struct error *err)
{
    struct payload_writer *frame = exchange_add_frame(exchange, CONTRIBUTE, to);

    for (unsigned t = 0; frame != NULL && t < exchange->tensors; t++) {
        const struct sparse *list = list_of(exchange, to, t);
        contribution(exchange, t, list, list->value);
        if (list->count > 0 && payload_put_dense(frame, list->value, list->count, exchange->value,
                                   NULL) != ADTOPK_OK) {
            frame = NULL;
        }
    }
    if (frame == NULL) {
        return exchange_no_memory(exchange, "sum", err);
    }
    payload_end(frame);
    return ADTOPK_OK;
}

static enum adtopk_status send_contributions(struct exchange *exchange, struct error *err)
{
    enum adtopk_status status = take_all(exchange, SELECT, take_positions, err);

    for (unsigned i = 1; status == ADTOPK_OK && i < exchange->members; i++) {
        status = send_values(exchange, (exchange->self + i) % exchange->members, err);
    }
    return status;
}

/* Adds member m's values to the sums; the first member's are copied. */
static enum adtopk_status add_values(struct exchange *exchange, unsigned m, unsigned t,
    struct payload_reader *reader, struct error *err)
{
    const struct sparse *list = list_of(exchange, exchange->self, t);
    enum adtopk_status status = ADTOPK_OK;
    float *value;

    if (list->count == 0) {
        return ADTOPK_OK;
    }
    value = malloc(list->count * sizeof(*value));
    if (value == NULL) {
        return exchange_no_memory(exchange, "sum", err);
    }
    if (reader == NULL) {
        contribution(exchange, t, list, value);
    } else {
        status = payload_get_dense(reader, value, list->count, err);
    }
    if (status == ADTOPK_OK && m == 0) {
        (void)memcpy(list->value, value, list->count * sizeof(*value));
    } else if (status == ADTOPK_OK) {
        dense_add(list->value, value, list->count);
    }
    free(value);
    return status;
}

static enum adtopk_status exclusive_send_sums(struct exchange *exchange, struct error *err)
{
    struct payload_writer *frame = exchange_add_frame(exchange, SUM, EXCHANGE_ALL);

    if (frame == NULL) {
        return exchange_no_memory(exchange, "sum", err);
    }
    if (take_all(exchange, CONTRIBUTE, add_values, err) != ADTOPK_OK) {
        return err->code;
    }
    for (unsigned t = 0; t < exchange->tensors; t++) {
        struct sparse *sum = list_of(exchange, exchange->self, t);
        enum payload_value value = exchange_reround(exchange, &exchange->tensor[t], sum);
        if (sum->count > 0 &&
            payload_put_dense(frame, sum->value, sum->count, value, NULL) != ADTOPK_OK) {
            return exchange_no_memory(exchange, "sum", err);
        }
    }
    payload_end(frame);
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ the result */

static enum adtopk_status take_sums(struct exchange *exchange, unsigned m, unsigned t,
    struct payload_reader *reader, struct error *err)
{
    const struct sparse *list = list_of(exchange, m, t);

    return reader != NULL && list->count > 0
               ? payload_get_dense(reader, list->value, list->count, err)
               : ADTOPK_OK;
}

static enum adtopk_status exclusive_finish(struct exchange *exchange, struct error *err)
{
    float factor;

    if (take_all(exchange, SUM, take_sums, err) != ADTOPK_OK) {
        return err->code;
    }
    factor = exchange_factor(exchange);
    for (unsigned t = 0; t < exchange->tensors; t++) {
        struct sparse *update = &exchange->tensor[t].update;
        update->count = 0;
        for (unsigned partition = 0; partition < exchange->members; partition++) {
            const struct sparse *list = list_of(exchange, member_of(exchange, partition), t);
            (void)memcpy(update->position + update->count, list->position,
                list->count * sizeof(*list->position));
            for (size_t i = 0; i < list->count; i++) {
                update->value[update->count + i] = list->value[i] * factor;
            }
            update->count += list->count;
        }
    }
    return ADTOPK_OK;
}

static unsigned exclusive_phases(const struct exchange *exchange)
{
    (void)exchange;
    return EXCLUSIVE_PHASES;
}

static enum adtopk_status exclusive_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    switch ((enum exclusive_phase)phase) {
    case SELECT: return send_positions(exchange, err);
    case CONTRIBUTE: return send_contributions(exchange, err);
    default: return exclusive_send_sums(exchange, err);
    }
}

const struct collective_ops collective_exclusive = {
    .name = "exclusive",
    .traits = {.picks = PICKS_POSITIONS,
        .node_only = true,
        .values = COLLECTIVE_VALUES_CUT,
        .rerounds = true},
    .phases = exclusive_phases,
    .expects = exchange_expects_all,
    .produce = exclusive_produce,
    .finish = exclusive_finish,
    .drop = exclusive_drop,
};
