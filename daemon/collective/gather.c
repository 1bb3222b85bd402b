/* See gather.h. */
#include "daemon/collective/gather.h"

#include <stdlib.h>

#include "kernels/cpu/merge.h"

/* Fewer are not worth a thread's attention. */
#define ENTRIES_PER_PART (UINT64_C(1) << 14)
#define BYTES_PER_PART (1u << 17)

static enum adtopk_status no_memory(const struct exchange *exchange, struct error *err)
{
    return error_set(err, ADTOPK_ERR_MEMORY, "no memory to sum bucket %u", exchange->header.bucket);
}

/* Whether member m's list comes in a frame. */
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
    list->capacity = payload_next_count(&gather->reader[m], shape);
    list->position = malloc(list->capacity * sizeof(*list->position) + 1);
    list->value = malloc(list->capacity * sizeof(*list->value) + 1);
    if (list->position == NULL || list->value == NULL) {
        (void)no_memory(gather->exchange, err);
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

enum adtopk_status gather_open(
    struct gather *gather, struct exchange *exchange, unsigned phase, struct error *err)
{
    size_t bytes = 0;

    *gather = (struct gather){
        .exchange = exchange,
        .phase = phase,
        .reader = calloc(exchange->members, sizeof(*gather->reader)),
        .list = calloc(exchange->members, sizeof(*gather->list)),
        .error = calloc(exchange->members, sizeof(*gather->error)),
    };
    if (gather->reader == NULL || gather->list == NULL || gather->error == NULL) {
        return no_memory(exchange, err);
    }
    for (unsigned m = 0; m < exchange->members; m++) {
        bytes += exchange->input[phase * exchange->members + m].size;
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
            free(gather->list[m].position);
            free(gather->list[m].value);
        }
        gather->list[m] = (struct sparse){0};
    }
}

enum adtopk_status gather_next(struct gather *gather, const struct payload_shape *shape,
    const struct sparse *own, struct error *err)
{
    const struct exchange *exchange = gather->exchange;
    uint64_t total = 0;

    drop_lists(gather);
    gather->shape = shape;
    gather->list[exchange->self] = *own;
    for (unsigned m = 0; m < exchange->members; m++) {
        total += is_sent(gather, m) ? payload_next_count(&gather->reader[m], &shape[m]) : 0;
    }
    return for_members(gather, decode,
        parallel_parts(&exchange->parallel, total, ENTRIES_PER_PART, exchange->members), err);
}

static uint64_t total_of(const struct gather *gather)
{
    uint64_t total = 0;

    for (unsigned m = 0; m < gather->exchange->members; m++) {
        total += gather->list[m].count;
    }
    return total;
}

enum adtopk_status gather_limit(const struct gather *gather, uint64_t most, struct error *err)
{
    const struct exchange *exchange = gather->exchange;
    uint64_t longest = 0;
    unsigned culprit = 0;

    if (total_of(gather) <= most) {
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
        (unsigned long long)most);
    return exchange_blame(exchange, culprit, err);
}

enum adtopk_status gather_sum(const struct gather *gather, uint64_t positions, float scale,
    struct sparse *out, struct error *err)
{
    const struct exchange *exchange = gather->exchange;
    struct merge merge = {.list = gather->list,
        .lists = exchange->members,
        .positions = positions,
        .scale = scale,
        .out = out,
        .parts = merge_parts(positions, total_of(gather), &exchange->parallel)};

    merge.cursor = malloc((size_t)merge.parts * merge.lists * sizeof(*merge.cursor));
    if (merge.cursor == NULL) {
        return no_memory(exchange, err);
    }
    merge_run(&merge, &exchange->parallel);
    free(merge.cursor);
    return ADTOPK_OK;
}

enum adtopk_status gather_close(const struct gather *gather, struct error *err)
{
    for (unsigned m = 0; m < gather->exchange->members; m++) {
        if (is_sent(gather, m) && payload_close(&gather->reader[m], err) != ADTOPK_OK) {
            return exchange_blame(gather->exchange, m, err);
        }
    }
    return ADTOPK_OK;
}

void gather_free(struct gather *gather)
{
    if (gather->list != NULL) {
        drop_lists(gather);
    }
    free(gather->reader);
    free(gather->list);
    free(gather->error);
}
