/*
 * Entries leave a residual, come back to it, or are read (entries.h).
 */
#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/entries.h"

/* The number of the list's first entry at a position or above; the list's count if there is none.
 */
DEVICE uint64_t entries_from(const struct entries *list, uint64_t position)
{
    uint64_t low = 0;
    uint64_t high = list->count;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        const bool below = list->position[middle] < position;
        low = below ? middle + 1 : low;
        high = below ? high : middle;
    }
    return low;
}

/* An entry of the batch. */
struct entries_at {
    const struct entries_order *order;
    uint64_t number;  /* in its order */
    uint64_t element; /* of the tensor */
    uint32_t position;
};

DEVICE struct entries_at entries_find(const struct entries_batch *batch, uint64_t number)
{
    struct entries_at at;
    at.order = batch_find(batch->order, batch->orders, number);
    at.number = number - at.order->first;
    at.position = at.order->list.position[at.number];
    at.element = view_element(&at.order->view, at.position);
    return at;
}

DEVICE float *entries_place(
    const struct entries_batch *batch, const uint64_t *entry, uint64_t element)
{
    const uint64_t slot = slot_of(entry[element / CHUNK]);
    return batch->element + slot * CHUNK + element % CHUNK;
}

DEVICE uint16_t *entries_half(
    const struct entries_batch *batch, const uint64_t *entry, uint64_t element)
{
    const uint64_t slot = slot_of(entry[element / CHUNK]);
    return batch->half + slot * CHUNK + element % CHUNK;
}

DEVICE bool entries_is_set(const uint8_t *bits, uint64_t number)
{
    return bits == NULL || (bits[number / 8] >> number % 8 & 1u) != 0;
}

/* The number of the entry at a position; the list's count if there is none. */
DEVICE uint64_t entries_search(const struct entries *list, uint32_t position)
{
    const uint64_t at = entries_from(list, position);
    return at < list->count && list->position[at] == position ? at : list->count;
}

/* ------------------------------------------------------------------ leaving */

/* What rounding cut off stays, but nothing that is not finite. */
DEVICE void entries_leave_one(const struct entries_batch *batch, const struct entries_at *at)
{
    const struct entries_order *const order = at->order;
    const float rest = order->kept[at->number] - order->list.value[at->number];
    const bool finite = batch_key(rest) < 0x7f800000u;
    *entries_place(batch, order->entry, at->element) = finite ? rest : 0;
    if (order->velocity != NULL) {
        *entries_place(batch, order->velocity, at->element) = 0;
    }
}

/* The entry leaves the residual of every rank that selected it. What rounding cut off the sum stays
 * with the first of them. */
DEVICE void entries_leave_ranks(const struct entries_batch *batch, const struct entries_at *at)
{
    const struct entries_order *const order = at->order;
    double left = -(double)order->list.value[at->number];
    float *first = NULL;
    for (uint32_t r = 0; r < order->ranks; r++) {
        const struct entries_rank *const rank = &order->rank[r];
        const uint64_t own = entries_search(&rank->list, at->position);
        if (own < rank->list.count) {
            float *const place = entries_place(batch, rank->entry, at->element);
            left += (double)rank->list.value[own];
            *place = 0;
            first = first != NULL ? first : place;
        }
        if (own < rank->list.count && rank->velocity != NULL) {
            *entries_place(batch, rank->velocity, at->element) = 0;
        }
    }
    if (first != NULL) {
        *first = (float)left;
    }
}

KERNEL entries_leave(const struct entries_batch batch)
{
    for (uint64_t i = device_thread(); i < batch.entries; i += device_threads()) {
        const struct entries_at at = entries_find(&batch, i);
        if (!entries_is_set(at.order->chosen, at.number)) {
            continue;
        }
        if (at.order->rounded != 0) {
            *entries_half(&batch, at.order->entry, at.element) = 0;
        } else if (at.order->ranks > 0) {
            entries_leave_ranks(&batch, &at);
        } else {
            entries_leave_one(&batch, &at);
        }
    }
}

/* ------------------------------------------------------------------ coming back, reading */

/* Whether LEAVE has written the element. */
DEVICE bool entries_has_left(const struct entries_at *at)
{
    const struct entries_order *const order = at->order;
    const uint64_t sent = entries_search(&order->sent, at->position);
    return sent < order->sent.count && entries_is_set(order->accepted, sent) &&
           entries_search(&order->own, at->position) < order->own.count;
}

KERNEL entries_return(const struct entries_batch batch)
{
    for (uint64_t i = device_thread(); i < batch.entries; i += device_threads()) {
        const struct entries_at at = entries_find(&batch, i);
        const struct entries_order *const order = at.order;
        float *const place = entries_place(&batch, order->entry, at.element);
        if (entries_is_set(order->chosen, at.number)) {
            const float was = entries_has_left(&at) ? *place : order->kept[at.number];
            *place = was + order->list.value[at.number];
        }
    }
}

KERNEL entries_gather(const struct entries_batch batch)
{
    for (uint64_t i = device_thread(); i < batch.entries; i += device_threads()) {
        const struct entries_at at = entries_find(&batch, i);
        at.order->found[at.number] = *entries_place(&batch, at.order->entry, at.element);
    }
}
