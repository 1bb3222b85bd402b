/*
 * The sum of several lists (merge.h).
 */
#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/entries.cuh"
#include "kernels/cuda/merge.h"

/* A window of the batch, and its sums in shared memory. */
struct merge_at {
    const struct merge_order *order;
    uint64_t number; /* in its order */
    uint64_t base;   /* its first position */
    uint32_t count;  /* its positions */
};

DEVICE struct merge_at merge_find(const struct merge_batch *batch, uint64_t number)
{
    struct merge_at at;
    at.order = batch_find(batch->order, batch->orders, number);
    at.number = number - at.order->first;
    at.base = at.number * MERGE_WINDOW;
    const uint64_t rest = at.order->positions - at.base;
    at.count = rest < MERGE_WINDOW ? (uint32_t)rest : (uint32_t)MERGE_WINDOW;
    return at;
}

/* Adds the lists' entries to a window's sums, for all threads of a block: one list after the other,
 * as each has a position once. there: 1 for positions that are in some list. */
DEVICE void merge_add(const struct merge_at *at, float *sum, uint32_t *there)
{
    for (uint32_t i = threadIdx.x; i < MERGE_WINDOW; i += BLOCK) {
        sum[i] = 0;
        there[i] = 0;
    }
    for (uint32_t l = 0; l < at->order->lists; l++) {
        const struct entries *const list = &at->order->list[l];
        const uint64_t end = entries_from(list, at->base + at->count);
        __syncthreads();
        for (uint64_t e = entries_from(list, at->base) + threadIdx.x; e < end; e += BLOCK) {
            const uint32_t i = (uint32_t)(list->position[e] - at->base);
            sum[i] += list->value[e];
            there[i] = 1;
        }
    }
    __syncthreads();
}

KERNEL merge_count(const struct merge_batch batch)
{
    SHARED(float, sum, MERGE_WINDOW);
    SHARED(uint32_t, there, MERGE_WINDOW);
    for (uint64_t w = blockIdx.x; w < batch.windows; w += gridDim.x) {
        const struct merge_at at = merge_find(&batch, w);
        uint32_t mine = 0;
        merge_add(&at, sum, there);
        for (uint32_t i = threadIdx.x; i < MERGE_WINDOW; i += BLOCK) {
            mine += there[i];
        }
        uint32_t all;
        (void)device_scan(mine, &all);
        if (threadIdx.x == 0) {
            at.order->place[at.number] = all;
        }
    }
}

/* A window's count becomes the place of its first entry. Scratch that a killed attempt has written
 * is counted anew. */
KERNEL merge_place(const struct merge_batch batch)
{
    for (uint32_t o = blockIdx.x; o < batch.orders; o += gridDim.x) {
        const struct merge_order *const order = &batch.order[o];
        const uint64_t windows = merge_windows(order->positions);
        uint32_t before = 0;
        for (uint64_t first = 0; first < windows; first += BLOCK) {
            const uint64_t w = first + threadIdx.x;
            uint32_t all;
            const uint32_t place = device_scan(w < windows ? order->place[w] : 0, &all);
            if (w < windows) {
                order->place[w] = before + place;
            }
            before += all;
        }
        if (threadIdx.x == 0) {
            *order->count = before;
        }
    }
}

/* Writes a window's entries: BLOCK neighbours at a time. */
DEVICE void merge_list(const struct merge_at *at, const float *sum, const uint32_t *there)
{
    uint64_t place = at->order->place[at->number];
    for (uint32_t first = 0; first < at->count; first += BLOCK) {
        const uint32_t i = first + threadIdx.x;
        uint32_t all;
        const uint64_t to = place + device_scan(there[i], &all);
        if (there[i] != 0) {
            at->order->position[to] = (uint32_t)(at->base + i);
            at->order->value[to] = sum[i] * at->order->scale;
        }
        place += all;
    }
}

KERNEL merge_write(const struct merge_batch batch)
{
    SHARED(float, sum, MERGE_WINDOW);
    SHARED(uint32_t, there, MERGE_WINDOW);
    for (uint64_t w = blockIdx.x; w < batch.windows; w += gridDim.x) {
        const struct merge_at at = merge_find(&batch, w);
        merge_add(&at, sum, there);
        for (uint32_t i = threadIdx.x; at.order->dense != NULL && i < at.count; i += BLOCK) {
            at.order->dense[at.base + i] = sum[i] * at.order->scale;
        }
        if (at.order->position != NULL) {
            merge_list(&at, sum, there);
        }
        __syncthreads();
    }
}
