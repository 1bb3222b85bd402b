/*
 * After Ok-Topk (Li and Hoefler, PPoPP 2022): the k largest of all sums, at most 6k(P-1)/P words
 * per node. The smallest of them is within 0.4 % of the k-th magnitude. Sums that differ by less
 * may be taken for each other, those of lower positions first (vote.h). To tell them apart would
 * take one more round of messages in every exchange.
 *
 * Every node owns a region of the positions. Phases:
 *   0  split: every node sends every owner the entries of its region
 *   1  vote: every node tells all how large the sums of its region are (vote.h)
 *   2  vote again, if the line was not where it was the last time
 *   3  balance: a node with far more of the k than the others hands some over
 *   4  all-gather: every node sends its share of the k to all
 *
 * k is the mean of the nodes' contributions. Every turn that selects from the whole tensor cuts the
 * regions anew, so that each has as many of the k of the last such turn. Turns of fibres have equal
 * regions, because every fibre has as many entries. (The original moves its cuts, and finds its
 * threshold, only every so many steps, from samples that it gathers.) Contributions to a position
 * that is not among the k stay in the residuals of their senders.
 */
#include "daemon/collective/oktopk.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/collective/predict.h"

static void oktopk_drop(struct exchange *exchange)
{
    struct oktopk *oktopk = exchange->state;

    for (unsigned t = 0; oktopk->region != NULL && t < exchange->tensors; t++) {
        free(oktopk->region[t].bound);
        free(oktopk->region[t].first);
        free(oktopk->region[t].came);
        free(oktopk->region[t].in);
        list_free(&oktopk->region[t].sum);
        list_free(&oktopk->region[t].share);
    }
    free(oktopk->region);
    free(oktopk);
}

/* ------------------------------------------------------------------ split */

/* Whether the turn sees the tensor as a whole. */
static bool oktopk_is_whole(const struct exchange_tensor *tensor)
{
    return tensor->shape.view.fibres == 1;
}

static bool remembers(const struct exchange *exchange, const struct exchange_tensor *tensor)
{
    return tensor->memory != NULL && tensor->memory->view == exchange->header.view &&
           oktopk_is_whole(tensor);
}

static void cut_regions(const struct exchange *exchange, unsigned t)
{
    const struct exchange_tensor *tensor = &exchange->tensor[t];
    struct region *region = oktopk_region(exchange, t);
    unsigned members = exchange->members;
    uint64_t positions = view_size(&tensor->shape.view);
    bool cuts = remembers(exchange, tensor) && tensor->memory->cuts == members;

    for (unsigned m = 0; m <= members; m++) {
        region->bound[m] = (uint32_t)(positions * m / members);
    }
    for (unsigned m = 1; cuts && m < members; m++) {
        region->bound[m] = tensor->memory->cut[m];
    }
    if (remembers(exchange, tensor)) {
        uint32_t line = tensor->memory->line;
        region->vote.first = line > VOTE_WINDOW / 2 ? line - VOTE_WINDOW / 2 : 1;
        region->vote.cells = VOTE_WINDOW;
    }
}

/* Allocates room for the memory of a tensor. All members must have it or none: otherwise they would
 * cut differently the next time. */
static bool make_memory(const struct exchange *exchange, const struct exchange_tensor *tensor)
{
    struct exchange_memory *memory = tensor->memory;

    if (memory == NULL || !oktopk_is_whole(tensor) || memory->room >= exchange->members) {
        return true;
    }
    free(memory->cut);
    *memory = (struct exchange_memory){
        .cut = calloc(exchange->members, sizeof(*memory->cut)), .room = exchange->members};
    memory->room = memory->cut != NULL ? memory->room : 0;
    return memory->cut != NULL;
}

static enum adtopk_status oktopk_begin(struct exchange *exchange, struct error *err)
{
    struct oktopk *oktopk = calloc(1, sizeof(*oktopk));

    exchange->state = oktopk;
    if (oktopk == NULL) {
        return exchange_no_memory(exchange, "sum", err);
    }
    oktopk->region = calloc(exchange->tensors, sizeof(*oktopk->region));
    for (unsigned t = 0; oktopk->region != NULL && t < exchange->tensors; t++) {
        struct region *region = &oktopk->region[t];
        region->bound = calloc((size_t)exchange->members + 1, sizeof(*region->bound));
        region->first = calloc((size_t)exchange->members + 1, sizeof(*region->first));
        region->came = calloc(exchange->members, sizeof(*region->came));
        region->in = calloc(exchange->members, sizeof(*region->in));
        if (region->bound == NULL || region->first == NULL || region->came == NULL ||
            region->in == NULL || !make_memory(exchange, &exchange->tensor[t])) {
            return exchange_no_memory(exchange, "sum", err);
        }
        cut_regions(exchange, t);
    }
    return oktopk->region != NULL ? ADTOPK_OK : exchange_no_memory(exchange, "sum", err);
}

/* This node's contribution to member m's region; borrowed. */
static struct sparse oktopk_part_of(const struct exchange *exchange, unsigned t, unsigned m)
{
    const struct sparse *sent = &exchange->tensor[t].sent;
    const struct region *region = oktopk_region(exchange, t);
    const size_t first = sparse_find(sent, region->bound[m]);
    const size_t end = sparse_find(sent, region->bound[m + 1]);

    return (struct sparse){.position = sent->position + first,
        .value = sent->value + first,
        .count = end - first,
        .capacity = end - first};
}

struct payload_shape oktopk_shape(
    const struct region *region, unsigned m, unsigned end, uint64_t most)
{
    uint64_t length = region->bound[end] - region->bound[m];

    return (struct payload_shape){.view = {.fibres = 1, .length = length, .stride = 1},
        .max_count = most < length ? most : length};
}

enum adtopk_status oktopk_put(const struct exchange *exchange, struct payload_writer *frame,
    const struct payload_shape *shape, struct sparse *list, uint32_t base, enum payload_value value)
{
    enum adtopk_status status;

    list_shift(list, 0u - base);
    status = payload_put_list(frame, shape, list, exchange->index, value);
    list_shift(list, base);
    return status;
}

static enum adtopk_status split(struct exchange *exchange, struct error *err)
{
    if (oktopk_begin(exchange, err) != ADTOPK_OK) {
        return err->code;
    }
    for (unsigned i = 1; i < exchange->members; i++) {
        unsigned to = (exchange->self + i) % exchange->members;
        struct payload_writer *frame = exchange_add_frame(exchange, SPLIT, to);
        for (unsigned t = 0; frame != NULL && t < exchange->tensors; t++) {
            struct region *region = oktopk_region(exchange, t);
            struct sparse part = oktopk_part_of(exchange, t, to);
            struct payload_shape shape =
                oktopk_shape(region, to, to + 1, exchange->tensor[t].shape.max_count);
            if (oktopk_put(exchange, frame, &shape, &part, region->bound[to], exchange->value) !=
                ADTOPK_OK) {
                frame = NULL;
            }
        }
        if (frame == NULL) {
            return exchange_no_memory(exchange, "sum", err);
        }
        payload_end(frame);
    }
    return ADTOPK_OK;
}

static enum adtopk_status sum_region(struct gather *gather, unsigned t, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    struct region *region = oktopk_region(exchange, t);
    struct sparse own = oktopk_part_of(exchange, t, exchange->self);
    uint32_t base = region->bound[exchange->self];
    enum adtopk_status status;

    for (unsigned m = 0; m < exchange->members; m++) {
        gather->shape[m] = oktopk_shape(
            region, exchange->self, exchange->self + 1, exchange->tensor[t].shape.max_count);
    }
    list_shift(&own, 0u - base);
    status = gather_next(gather, &own, err);
    if (status == ADTOPK_OK && !list_alloc(&region->sum, gather_count(gather))) {
        status = exchange_no_memory(exchange, "sum", err);
    }
    if (status == ADTOPK_OK) {
        status = gather_sum(gather, gather->shape->view.length, 1, &region->sum, NULL, err);
    }
    for (unsigned m = 0; m < exchange->members; m++) {
        region->came[m] = gather->list[m].count;
    }
    list_shift(&own, base);
    list_shift(&region->sum, base);
    return status;
}

/* ------------------------------------------------------------------ the result */

static void oktopk_remember(const struct exchange *exchange, unsigned t)
{
    const struct exchange_tensor *tensor = &exchange->tensor[t];
    const struct region *region = oktopk_region(exchange, t);
    struct exchange_memory *memory = tensor->memory;
    const struct sparse *update = &tensor->update;

    if (memory == NULL || !oktopk_is_whole(tensor) || update->count < exchange->members) {
        return;
    }
    memory->view = exchange->header.view;
    memory->line = region->line.cell;
    memory->cuts = exchange->members;
    for (unsigned m = 0; m < memory->cuts; m++) {
        memory->cut[m] = update->position[update->count * m / exchange->members];
    }
}

static enum adtopk_status oktopk_finish_tensor(struct gather *gather, unsigned t, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    struct exchange_tensor *tensor = &exchange->tensor[t];
    enum adtopk_status status = oktopk_take_shares(gather, t, err);

    if (status == ADTOPK_OK) {
        status = gather_limit(gather, tensor, tensor->numel, err);
    }
    if (status == ADTOPK_OK) {
        status = gather_update(gather, tensor, err);
        oktopk_remember(exchange, t);
    }
    return status;
}

static enum adtopk_status oktopk_finish(struct exchange *exchange, struct error *err)
{
    return gather_each(exchange, SHARE, oktopk_finish_tensor, err);
}

/* ------------------------------------------------------------------ the table's */

static unsigned oktopk_phases(const struct exchange *exchange)
{
    (void)exchange;
    return OKTOPK_PHASES;
}

static bool oktopk_expects(const struct exchange *exchange, unsigned phase, unsigned from)
{
    const struct oktopk *oktopk = exchange->state;

    if (from == exchange->self) {
        return false;
    }
    switch ((enum oktopk_phase)phase) {
    case VOTE_AGAIN: return oktopk->again;
    case BALANCE: return oktopk_hands_over(exchange, from, exchange->self);
    default: return true;
    }
}

static enum adtopk_status oktopk_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    switch ((enum oktopk_phase)phase) {
    case SPLIT: return split(exchange, err);
    case VOTE:
        return gather_each(exchange, SPLIT, sum_region, err) == ADTOPK_OK
                   ? oktopk_vote(exchange, err)
                   : err->code;
    case VOTE_AGAIN: return oktopk_vote_again(exchange, err);
    case BALANCE: return oktopk_balance(exchange, err);
    default: return oktopk_send_shares(exchange, err);
    }
}

#define PREDICT_VOTE_BYTES 250.0 /* bytes of a node's votes */
#define PREDICT_PHASES 4.0       /* split, vote, balance, all-gather */

static double oktopk_bytes(const struct collective_load *load)
{
    return predict_entry(load) * 2 * load->entries * predict_share(load) +
           PREDICT_VOTE_BYTES * predict_others(load);
}

static double oktopk_messages(const struct collective_load *load)
{
    return PREDICT_PHASES * predict_others(load);
}

static double oktopk_hops(const struct collective_load *load)
{
    (void)load;
    return PREDICT_PHASES;
}

static double oktopk_summed(const struct collective_load *load)
{
    return 3 * load->entries;
}

static const struct collective_cost oktopk_cost = {
    .bytes = oktopk_bytes,
    .messages = oktopk_messages,
    .hops = oktopk_hops,
    .summed = oktopk_summed,
};

const struct collective_ops collective_oktopk = {
    .name = "oktopk",
    .traits = {.picks = PICKS_ENTRIES,
        .values = COLLECTIVE_VALUES_CUT,
        .rerounds = true,
        .cost = &oktopk_cost},
    .phases = oktopk_phases,
    .expects = oktopk_expects,
    .produce = oktopk_produce,
    .finish = oktopk_finish,
    .drop = oktopk_drop,
};
