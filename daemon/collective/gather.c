/* See gather.h. */
#include "daemon/collective/gather.h"

#include <stdlib.h>

#include "kernels/kernels.h"

/* Fewer are not worth a thread's attention. */
#define ENTRIES_PER_PART (UINT64_C(1) << 14)
#define BYTES_PER_PART (1u << 17)

/* Whether member m sends its list in a frame. */
static bool is_sent(const struct gather *gather, unsigned m)
{
    const struct exchange *exchange = gather->exchange;

    return m != exchange->self && exchange->ops->expects(exchange, gather->phase, m);
}

/* Checks member m's frame. */
static void open_frame(void *arg, unsigned m, unsigned thread)
{
    struct gather *gather = arg;

    (void)thread;
    if (is_sent(gather, m)) {
        (void)exchange_open(
            gather->exchange, gather->phase, m, &gather->reader[m], &gather->error[m]);
    }
}

/* Decodes member m's list; its memory is as large as the list. */
static void decode(void *arg, unsigned m, unsigned thread)
{
    struct gather *gather = arg;
    const struct payload_shape *shape = &gather->shape[m];
    struct sparse *list = &gather->list[m];
    struct error *err = &gather->error[m];

    (void)thread;
    if (!is_sent(gather, m)) {
        return;
    }
    if (!list_alloc(list, payload_next_count(&gather->reader[m], shape))) {
        (void)exchange_no_memory(gather->exchange, "sum", err);
    } else if (payload_get_list(&gather->reader[m], shape, list, err) != ADTOPK_OK) {
        (void)exchange_blame(gather->exchange, m, err);
    }
}

/* Runs one of the two for each member, on several threads if there is enough to do. The error of
 * the first member that has one counts. */
static enum adtopk_status for_members(struct gather *gather,
    void (*part)(void *arg, unsigned m, unsigned thread), unsigned parts, struct error *err)
{
    const struct exchange *exchange = gather->exchange;
    const struct parallel alone = {.caller = exchange->parallel.caller};

    parallel_for(parts > 1 ? &exchange->parallel : &alone, part, gather, exchange->members);
    for (unsigned m = 0; m < exchange->members; m++) {
        if (gather->error[m].code != ADTOPK_OK) {
            *err = gather->error[m];
            return err->code;
        }
    }
    return ADTOPK_OK;
}

static enum adtopk_status open_frames(struct gather *gather, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    size_t bytes = 0;

    for (unsigned m = 0; m < exchange->members; m++) {
        bytes += exchange->input[gather->phase * exchange->members + m].size;
    }
    if (for_members(gather, open_frame,
            parallel_parts(&exchange->parallel, bytes, BYTES_PER_PART, exchange->members),
            err) != ADTOPK_OK) {
        return err->code;
    }
    for (unsigned m = 0; m < exchange->members; m++) {
        if (is_sent(gather, m)) {
            exchange_note(exchange, &gather->reader[m]);
        }
    }
    return ADTOPK_OK;
}

static void drop_lists(struct gather *gather)
{
    for (unsigned m = 0; m < gather->exchange->members; m++) {
        if (m != gather->exchange->self) {
            list_free(&gather->list[m]);
        }
    }
}

enum adtopk_status gather_next(struct gather *gather, const struct sparse *own, struct error *err)
{
    const struct exchange *exchange = gather->exchange;
    uint64_t total = 0;

    drop_lists(gather);
    gather->list[exchange->self] = *own;
    for (unsigned m = 0; m < exchange->members; m++) {
        total += is_sent(gather, m) ? payload_next_count(&gather->reader[m], &gather->shape[m]) : 0;
    }
    return for_members(gather, decode,
        parallel_parts(&exchange->parallel, total, ENTRIES_PER_PART, exchange->members), err);
}

uint64_t gather_count(const struct gather *gather)
{
    uint64_t total = 0;

    for (unsigned m = 0; m < gather->exchange->members; m++) {
        total += gather->list[m].count;
    }
    return total;
}

enum adtopk_status gather_limit(const struct gather *gather, const struct exchange_tensor *tensor,
    uint64_t positions, struct error *err)
{
    const struct exchange *exchange = gather->exchange;
    uint64_t most = tensor->update.capacity - tensor->update.count, longest = 0;
    unsigned culprit = 0;

    if (most >= positions || gather_count(gather) <= most) {
        return ADTOPK_OK;
    }
    for (unsigned m = 0; m < exchange->members; m++) {
        if (m != exchange->self && gather->list[m].count >= longest) {
            culprit = m;
            longest = gather->list[m].count;
        }
    }
    (void)error_set(err, ADTOPK_ERR_PROTOCOL,
        "with the entries it sent there are more than the %llu that the ranks may select",
        (unsigned long long)tensor->update.capacity);
    return exchange_blame(exchange, culprit, err);
}

enum adtopk_status gather_sum(const struct gather *gather, uint64_t positions, float scale,
    struct sparse *out, float *dense, struct error *err)
{
    const struct exchange *exchange = gather->exchange;
    struct merge merge = {.list = gather->list,
        .lists = exchange->members,
        .positions = positions,
        .scale = scale,
        .out = out->position != NULL ? out : NULL,
        .dense = dense,
        .written = gather->elements,
        .parts = merge_parts(positions, gather_count(gather), dense != NULL, &exchange->parallel)};

    merge.cursor = malloc((size_t)merge.parts * merge.lists * sizeof(*merge.cursor));
    if (merge.cursor == NULL) {
        return exchange_no_memory(exchange, "sum", err);
    }
    merge_run(&merge, &exchange->parallel);
    free(merge.cursor);
    if (merge.out == NULL) {
        out->count = merge.count;
    }
    return ADTOPK_OK;
}

enum adtopk_status gather_update(
    const struct gather *gather, struct exchange_tensor *tensor, struct error *err)
{
    return gather_sum(gather, view_size(&tensor->shape.view), exchange_factor(gather->exchange),
        &tensor->update, tensor->dense, err);
}

static enum adtopk_status close_frames(const struct gather *gather, struct error *err)
{
    for (unsigned m = 0; m < gather->exchange->members; m++) {
        if (is_sent(gather, m) && payload_close(&gather->reader[m], err) != ADTOPK_OK) {
            return exchange_blame(gather->exchange, m, err);
        }
    }
    return ADTOPK_OK;
}

enum adtopk_status gather_each(
    struct exchange *exchange, unsigned phase, gather_visit *visit, struct error *err)
{
    struct gather gather = {
        .exchange = exchange,
        .phase = phase,
        .shape = calloc(exchange->members, sizeof(*gather.shape)),
        .reader = calloc(exchange->members, sizeof(*gather.reader)),
        .list = calloc(exchange->members, sizeof(*gather.list)),
        .error = calloc(exchange->members, sizeof(*gather.error)),
    };
    enum adtopk_status status;

    for (unsigned t = 0; t < exchange->tensors; t++) {
        gather.elements += exchange->tensor[t].numel;
    }
    if (gather.shape == NULL || gather.reader == NULL || gather.list == NULL ||
        gather.error == NULL) {
        status = exchange_no_memory(exchange, "sum", err);
    } else {
        status = open_frames(&gather, err);
        for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
            status = visit(&gather, t, err);
        }
        status = status == ADTOPK_OK ? close_frames(&gather, err) : status;
        drop_lists(&gather);
    }
    free(gather.shape);
    free(gather.reader);
    free(gather.list);
    free(gather.error);
    return status;
}

bool list_alloc(struct sparse *list, uint64_t capacity)
{
    *list = (struct sparse){.position = malloc(capacity * sizeof(*list->position) + 1),
        .value = malloc(capacity * sizeof(*list->value) + 1),
        .capacity = capacity};
    return list->position != NULL && list->value != NULL;
}

void list_free(struct sparse *list)
{
    free(list->position);
    free(list->value);
    *list = (struct sparse){0};
}

void list_shift(struct sparse *list, uint32_t by)
{
    for (size_t i = 0; i < list->count; i++) {
        list->position[i] += by;
    }
}
