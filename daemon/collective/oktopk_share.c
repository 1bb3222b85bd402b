/*
 * Decides which member sends the selected sums to all. Each member sends those of its region. If
 * that would be far more for one than for the others, each sends equally many, in the order of the
 * positions.
 */
#include <string.h>

#include "daemon/collective/oktopk.h"
#include "kernels/base/quantise.h"

/* The first of member m's share among the k. */
static uint64_t first_of(const struct exchange *exchange, const struct region *region, unsigned m)
{
    return region->balanced ? region->first[exchange->members] * m / exchange->members
                            : region->first[m];
}

/* Keeps only those of this node's sums that are among the k, rounded as the others will get them.
 */
static void select_sums(struct exchange *exchange, unsigned t)
{
    struct region *region = oktopk_region(exchange, t);
    struct sparse *sum = &region->sum;
    uint64_t taken = region->first[exchange->self + 1] - region->first[exchange->self];
    uint64_t above = 0;
    size_t count = 0;

    for (size_t i = 0; i < sum->count; i++) {
        above += vote_cell(sum->value[i]) > region->line.cell;
    }
    for (size_t i = 0; i < sum->count; i++) {
        uint32_t cell = vote_cell(sum->value[i]);
        if (cell < region->line.cell || cell == 0 ||
            (cell == region->line.cell && above == taken)) {
            continue;
        }
        above += cell == region->line.cell;
        sum->position[count] = sum->position[i];
        sum->value[count++] = sum->value[i];
    }
    sum->count = count;
    (void)exchange_reround(exchange, &exchange->tensor[t], sum);
}

/* Rounded sums lose nothing in the exchange's encoding. Sums without room for their rests would, so
 * they go as f32. */
static enum payload_value oktopk_share_value_of(
    const struct exchange *exchange, const struct sparse *sum)
{
    for (size_t i = 0; i < sum->count && exchange->value != PAYLOAD_VALUE_F32; i++) {
        float rounded = sum->value[i];
        quantise_values(&rounded, 1, QUANTISE_BF16, 0);
        if (memcmp(&rounded, &sum->value[i], sizeof(rounded)) != 0) {
            return PAYLOAD_VALUE_F32;
        }
    }
    return exchange->value != PAYLOAD_VALUE_F32 ? PAYLOAD_VALUE_BF16 : PAYLOAD_VALUE_F32;
}

/* Which of the k member `from` hands over to member `to`: *first to the returned end. */
static uint64_t handed(const struct exchange *exchange, const struct region *region, unsigned from,
    unsigned to, uint64_t *first)
{
    uint64_t begin = first_of(exchange, region, to), end = first_of(exchange, region, to + 1);

    *first = begin > region->first[from] ? begin : region->first[from];
    end = end < region->first[from + 1] ? end : region->first[from + 1];
    return from != to && region->balanced && end > *first ? end : *first;
}

bool oktopk_hands_over(const struct exchange *exchange, unsigned from, unsigned to)
{
    for (unsigned t = 0; t < exchange->tensors; t++) {
        uint64_t first;
        if (handed(exchange, oktopk_region(exchange, t), from, to, &first) > first) {
            return true;
        }
    }
    return false;
}

static enum adtopk_status hand_over(struct exchange *exchange, unsigned to, struct error *err)
{
    struct payload_writer *frame = exchange_add_frame(exchange, BALANCE, to);

    for (unsigned t = 0; frame != NULL && t < exchange->tensors; t++) {
        struct region *region = oktopk_region(exchange, t);
        uint32_t base = region->bound[exchange->self];
        uint64_t first, end = handed(exchange, region, exchange->self, to, &first);
        struct payload_shape shape =
            oktopk_shape(region, exchange->self, exchange->self + 1, end - first);
        struct sparse part = {.count = end - first};
        if (part.count > 0) {
            part.position = region->sum.position + (first - region->first[exchange->self]);
            part.value = region->sum.value + (first - region->first[exchange->self]);
        }
        if (oktopk_put(exchange, frame, &shape, &part, base,
                oktopk_share_value_of(exchange, &part)) != ADTOPK_OK) {
            frame = NULL;
        }
    }
    if (frame == NULL) {
        return exchange_no_memory(exchange, "sum", err);
    }
    payload_end(frame);
    return ADTOPK_OK;
}

enum adtopk_status oktopk_balance(struct exchange *exchange, struct error *err)
{
    enum adtopk_status status = oktopk_decide(exchange, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    for (unsigned t = 0; t < exchange->tensors; t++) {
        select_sums(exchange, t);
    }
    for (unsigned i = 1; status == ADTOPK_OK && i < exchange->members; i++) {
        unsigned to = (exchange->self + i) % exchange->members;
        if (oktopk_hands_over(exchange, exchange->self, to)) {
            status = hand_over(exchange, to, err);
        }
    }
    return status;
}

/* ------------------------------------------------------------------ all-gather */

static void oktopk_share_append(struct sparse *to, const struct sparse *from)
{
    if (from->count == 0) {
        return; /* it may have no memory at all */
    }
    (void)memcpy(to->position + to->count, from->position, from->count * sizeof(*to->position));
    (void)memcpy(to->value + to->count, from->value, from->count * sizeof(*to->value));
    to->count += from->count;
}

/* Fails unless member m sent as many as its vote says. */
static enum adtopk_status oktopk_share_check_count(
    const struct gather *gather, unsigned m, uint64_t count, struct error *err)
{
    if (gather->list[m].count == count) {
        return ADTOPK_OK;
    }
    (void)error_set(err, ADTOPK_ERR_PROTOCOL, "%zu sums are there where its vote promised %llu",
        gather->list[m].count, (unsigned long long)count);
    return exchange_blame(gather->exchange, m, err);
}

/* The part of this node's own sums that stays in its share. */
static struct sparse own_part(const struct exchange *exchange, const struct region *region)
{
    uint64_t before = region->first[exchange->self], behind = region->first[exchange->self + 1];
    uint64_t first = first_of(exchange, region, exchange->self);
    uint64_t end = first_of(exchange, region, exchange->self + 1);

    first = first > before ? first : before;
    end = end < behind ? end : behind;
    return (struct sparse){.position = region->sum.position + (first < end ? first - before : 0),
        .value = region->sum.value + (first < end ? first - before : 0),
        .count = first < end ? end - first : 0};
}

/* Puts this node's share together: its own part, and the sums that others handed over. */
static enum adtopk_status take_share(struct gather *gather, unsigned t, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    struct region *region = oktopk_region(exchange, t);
    struct sparse own = own_part(exchange, region);
    uint64_t begin = first_of(exchange, region, exchange->self);
    uint64_t end = first_of(exchange, region, exchange->self + 1), first;
    enum adtopk_status status;

    for (unsigned m = 0; m < exchange->members; m++) {
        uint64_t last = handed(exchange, region, m, exchange->self, &first);
        gather->shape[m] = oktopk_shape(region, m, m + 1, last - first);
    }
    status = gather_next(gather, &own, err);
    if (status == ADTOPK_OK && !list_alloc(&region->share, end - begin)) {
        status = exchange_no_memory(exchange, "sum", err);
    }
    for (unsigned m = 0; status == ADTOPK_OK && m < exchange->members; m++) {
        uint64_t last = handed(exchange, region, m, exchange->self, &first);
        if (m != exchange->self) {
            status = oktopk_share_check_count(gather, m, last - first, err);
            list_shift(&gather->list[m], region->bound[m]);
        }
        if (status == ADTOPK_OK) {
            oktopk_share_append(&region->share, &gather->list[m]);
        }
    }
    return status;
}

/* The member whose region has the entry. */
static unsigned owner_of(
    const struct exchange *exchange, const struct region *region, uint64_t entry)
{
    unsigned low = 0, high = exchange->members;

    while (high - low > 1) {
        unsigned middle = low + (high - low) / 2;
        if (region->first[middle] <= entry) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* How member m's share looks: it has sums of one region, or, balanced, of some in a row. */
static struct payload_shape share_shape(
    const struct exchange *exchange, const struct region *region, unsigned m, uint32_t *base)
{
    uint64_t first = first_of(exchange, region, m), end = first_of(exchange, region, m + 1);
    bool moved = region->balanced && end > first;
    unsigned from = moved ? owner_of(exchange, region, first) : m;
    unsigned to = moved ? owner_of(exchange, region, end - 1) : m;

    *base = region->bound[from];
    return oktopk_shape(region, from, to + 1, end - first);
}

static enum adtopk_status send_share(struct gather *gather, unsigned t, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    struct region *region = oktopk_region(exchange, t);
    uint32_t base;
    struct payload_shape shape = share_shape(exchange, region, exchange->self, &base);
    enum adtopk_status status = take_share(gather, t, err);

    if (status == ADTOPK_OK &&
        oktopk_put(exchange, &exchange->outgoing[0].frame, &shape, &region->share, base,
            oktopk_share_value_of(exchange, &region->share)) != ADTOPK_OK) {
        status = exchange_no_memory(exchange, "sum", err);
    }
    return status;
}

enum adtopk_status oktopk_send_shares(struct exchange *exchange, struct error *err)
{
    enum adtopk_status status;

    if (exchange_add_frame(exchange, SHARE, EXCHANGE_ALL) == NULL) {
        return exchange_no_memory(exchange, "sum", err);
    }
    status = gather_each(exchange, BALANCE, send_share, err);
    payload_end(&exchange->outgoing[0].frame);
    return status;
}

enum adtopk_status oktopk_take_shares(struct gather *gather, unsigned t, struct error *err)
{
    struct exchange *exchange = gather->exchange;
    struct region *region = oktopk_region(exchange, t);
    enum adtopk_status status;
    uint32_t base;

    for (unsigned m = 0; m < exchange->members; m++) {
        gather->shape[m] = share_shape(exchange, region, m, &base);
    }
    status = gather_next(gather, &region->share, err);
    for (unsigned m = 0; status == ADTOPK_OK && m < exchange->members; m++) {
        uint64_t count = first_of(exchange, region, m + 1) - first_of(exchange, region, m);
        status = oktopk_share_check_count(gather, m, count, err);
        if (m != exchange->self) {
            (void)share_shape(exchange, region, m, &base);
            list_shift(&gather->list[m], base);
        }
    }
    return status;
}
