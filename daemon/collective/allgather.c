/*
 * Sparse all-gather: every node sends its list to every other, and each forms the sum itself, in
 * the order of the nodes. One phase; k(P-1) entries received a node, so it suits small P.
 *
 * Of one tensor at a time all lists are decoded, each frame on a thread of its own where threads
 * are idle, then merged. Which thread did what shows in nothing: of several bad frames, the one of
 * the lowest node is reported.
 */
#include <stdlib.h>

#include "daemon/collective/collective.h"
#include "kernels/cpu/merge.h"

/* Fewer are not worth a thread's attention. */
#define ENTRIES_PER_PART (UINT64_C(1) << 14)
#define BYTES_PER_PART (1u << 17)

static unsigned allgather_phases(const struct exchange *exchange)
{
    (void)exchange;
    return 1;
}

static bool allgather_expects(const struct exchange *exchange, unsigned phase, unsigned from)
{
    (void)phase;
    return from != exchange->self;
}

static enum adtopk_status allgather_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    struct payload_writer *frame = exchange_add_frame(exchange, phase, EXCHANGE_ALL);
    enum adtopk_status status = frame != NULL ? ADTOPK_OK : ADTOPK_ERR_MEMORY;

    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        struct exchange_tensor *tensor = &exchange->tensor[t];
        status = payload_put_list(
            frame, &tensor->shape, &tensor->sent, exchange->index, exchange->value);
    }
    if (status != ADTOPK_OK) {
        return error_set(err, status, "no memory to encode bucket %u", exchange->header.bucket);
    }
    payload_end(frame);
    return ADTOPK_OK;
}

/* The sum of one tensor after the other, on its way. */
struct gathering {
    struct exchange *exchange;
    unsigned tensor;
    struct payload_reader *reader; /* [member] */
    struct sparse *list;           /* [member], of this tensor; what `self` sent is borrowed */
    struct error *error;           /* [member]; OK unless there is one */
};

static enum adtopk_status no_memory(const struct exchange *exchange, struct error *err)
{
    return error_set(err, ADTOPK_ERR_MEMORY, "no memory to sum bucket %u", exchange->header.bucket);
}

/* Checks member m's frame. */
static void open_frame(void *arg, unsigned m, unsigned thread)
{
    struct gathering *gathering = arg;

    (void)thread;
    if (m != gathering->exchange->self) {
        (void)exchange_open(gathering->exchange, 0, m, &gathering->reader[m], &gathering->error[m]);
    }
}

/* Decodes member m's list; its memory is as large as the list. */
static void decode(void *arg, unsigned m, unsigned thread)
{
    struct gathering *gathering = arg;
    const struct exchange *exchange = gathering->exchange;
    const struct exchange_tensor *tensor = &exchange->tensor[gathering->tensor];
    struct sparse *list = &gathering->list[m];
    struct error *err = &gathering->error[m];

    (void)thread;
    if (m == exchange->self) {
        *list = tensor->sent;
        return;
    }
    list->count = 0;
    list->capacity = payload_next_count(&gathering->reader[m], &tensor->shape);
    list->position = malloc(list->capacity * sizeof(*list->position) + 1);
    list->value = malloc(list->capacity * sizeof(*list->value) + 1);
    if (list->position == NULL || list->value == NULL) {
        (void)no_memory(exchange, err);
    } else if (payload_get_list(&gathering->reader[m], &tensor->shape, list, err) != ADTOPK_OK) {
        (void)exchange_blame(exchange, m, err);
    }
}

/* Runs one of the two for each member, on several threads if there is enough to do. The error of
 * the first member that has one counts. */
static enum adtopk_status for_members(struct gathering *gathering,
    void (*part)(void *arg, unsigned m, unsigned thread), unsigned parts, struct error *err)
{
    const struct exchange *exchange = gathering->exchange;
    const struct parallel alone = {.caller = exchange->parallel.caller};

    parallel_for(parts > 1 ? &exchange->parallel : &alone, part, gathering, exchange->members);
    for (unsigned m = 0; m < exchange->members; m++) {
        if (gathering->error[m].code != ADTOPK_OK) {
            *err = gathering->error[m];
            return err->code;
        }
    }
    return ADTOPK_OK;
}

static void drop_lists(struct gathering *gathering)
{
    for (unsigned m = 0; m < gathering->exchange->members; m++) {
        if (m != gathering->exchange->self) {
            free(gathering->list[m].position);
            free(gathering->list[m].value);
        }
        gathering->list[m] = (struct sparse){0};
    }
}

/* Where a node's share depends on its ranks, no list alone is too long, but all together may be
 * longer than the update can get. The node that sent most is to blame. */
static enum adtopk_status check_total(
    const struct gathering *gathering, uint64_t *total, struct error *err)
{
    const struct exchange *exchange = gathering->exchange;
    const struct exchange_tensor *tensor = &exchange->tensor[gathering->tensor];
    uint64_t capacity = tensor->update.capacity, longest = 0;
    unsigned most = 0;

    *total = 0;
    for (unsigned m = 0; m < exchange->members; m++) {
        uint64_t count = gathering->list[m].count;
        *total += count;
        if (m != exchange->self && count >= longest) {
            most = m;
            longest = count;
        }
    }
    if (*total <= capacity || capacity >= tensor->numel) {
        return ADTOPK_OK;
    }
    (void)error_set(err, ADTOPK_ERR_PROTOCOL,
        "with the entries it sent there are more than the %llu that the ranks may select",
        (unsigned long long)capacity);
    return exchange_blame(exchange, most, err);
}

/* ((c0 + c1) + c2) + ... */
static enum adtopk_status sum_lists(
    const struct gathering *gathering, uint64_t total, struct error *err)
{
    const struct exchange *exchange = gathering->exchange;
    struct exchange_tensor *tensor = &exchange->tensor[gathering->tensor];
    uint64_t positions = view_size(&tensor->shape.view);
    struct merge merge = {.list = gathering->list,
        .lists = exchange->members,
        .positions = positions,
        .scale = exchange->scale,
        .out = &tensor->update,
        .parts = merge_parts(positions, total, &exchange->parallel)};

    merge.cursor = malloc((size_t)merge.parts * merge.lists * sizeof(*merge.cursor));
    if (merge.cursor == NULL) {
        return no_memory(exchange, err);
    }
    merge_run(&merge, &exchange->parallel);
    free(merge.cursor);
    return ADTOPK_OK;
}

static enum adtopk_status finish_tensor(struct gathering *gathering, struct error *err)
{
    struct exchange *exchange = gathering->exchange;
    const struct payload_shape *shape = &exchange->tensor[gathering->tensor].shape;
    enum adtopk_status status;
    uint64_t total = 0;

    for (unsigned m = 0; m < exchange->members; m++) {
        total += m != exchange->self ? payload_next_count(&gathering->reader[m], shape) : 0;
    }
    status = for_members(gathering, decode,
        parallel_parts(&exchange->parallel, total, ENTRIES_PER_PART, exchange->members), err);
    if (status == ADTOPK_OK) {
        status = check_total(gathering, &total, err);
    }
    if (status == ADTOPK_OK) {
        status = sum_lists(gathering, total, err);
    }
    drop_lists(gathering);
    return status;
}

static enum adtopk_status open_frames(struct gathering *gathering, struct error *err)
{
    struct exchange *exchange = gathering->exchange;
    size_t bytes = 0;

    for (unsigned m = 0; m < exchange->members; m++) {
        bytes += m != exchange->self ? exchange->input[m].size : 0;
    }
    if (for_members(gathering, open_frame,
            parallel_parts(&exchange->parallel, bytes, BYTES_PER_PART, exchange->members),
            err) != ADTOPK_OK) {
        return err->code;
    }
    for (unsigned m = 0; m < exchange->members; m++) {
        if (m != exchange->self) {
            exchange_note(exchange, &gathering->reader[m]);
        }
    }
    return ADTOPK_OK;
}

static enum adtopk_status finish_tensors(struct gathering *gathering, struct error *err)
{
    struct exchange *exchange = gathering->exchange;
    enum adtopk_status status = open_frames(gathering, err);

    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        gathering->tensor = t;
        status = finish_tensor(gathering, err);
    }
    for (unsigned m = 0; status == ADTOPK_OK && m < exchange->members; m++) {
        if (m != exchange->self && payload_close(&gathering->reader[m], err) != ADTOPK_OK) {
            status = exchange_blame(exchange, m, err);
        }
    }
    return status;
}

static enum adtopk_status allgather_finish(struct exchange *exchange, struct error *err)
{
    struct gathering gathering = {
        .exchange = exchange,
        .reader = calloc(exchange->members, sizeof(*gathering.reader)),
        .list = calloc(exchange->members, sizeof(*gathering.list)),
        .error = calloc(exchange->members, sizeof(*gathering.error)),
    };
    enum adtopk_status status;

    if (gathering.reader == NULL || gathering.list == NULL || gathering.error == NULL) {
        status = no_memory(exchange, err);
    } else {
        status = finish_tensors(&gathering, err);
    }
    free(gathering.reader);
    free(gathering.list);
    free(gathering.error);
    return status;
}

const struct collective_ops collective_allgather = {
    .name = "allgather",
    .dense = false,
    .phases = allgather_phases,
    .expects = allgather_expects,
    .produce = allgather_produce,
    .finish = allgather_finish,
    .accepts = NULL,
};
