/*
 * All elements of residuals: read, summed, or replaced by the sum of others (whole.h).
 */
#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/sums.cuh"
#include "kernels/cuda/whole.h"

/* A chunk of the batch. */
struct whole_at {
    const struct whole_order *order;
    uint64_t number; /* in its order */
    uint64_t chunk;  /* of the residual */
    uint32_t length; /* elements */
};

DEVICE struct whole_at whole_find(const struct whole_batch *batch, uint64_t number)
{
    struct whole_at at;
    at.order = batch_find(batch->order, batch->orders, number);
    at.number = number - at.order->first;
    at.chunk = at.order->begin + at.number;
    const uint64_t rest = at.order->count - at.number * CHUNK;
    at.length = rest < CHUNK ? (uint32_t)rest : (uint32_t)CHUNK;
    return at;
}

DEVICE float *whole_slot(const struct whole_batch *batch, const uint64_t *entry, uint64_t chunk)
{
    return batch->element + (uint64_t)slot_of(entry[chunk]) * CHUNK;
}

KERNEL whole_read(const struct whole_batch batch)
{
    for (uint64_t c = blockIdx.x; c < batch.chunks; c += gridDim.x) {
        const struct whole_at at = whole_find(&batch, c);
        const float *const from = whole_slot(&batch, at.order->entry, at.chunk);
        float *const to = at.order->read + at.number * CHUNK;
        for (uint32_t i = threadIdx.x; i < at.length; i += BLOCK) {
            to[i] = from[i];
        }
    }
}

/* The sum of one element of the parts; behind the tensor's end they are zeros. */
DEVICE float whole_sum(const struct whole_batch *batch, const struct whole_at *at, uint32_t i)
{
    const struct whole_order *const order = at->order;
    float sum = order->parts > 0 ? whole_slot(batch, order->part[0], at->chunk)[i] : 0;
    for (uint32_t p = 1; p < order->parts; p++) {
        sum += whole_slot(batch, order->part[p], at->chunk)[i];
    }
    return sum;
}

KERNEL whole_fill(const struct whole_batch batch)
{
    for (uint64_t c = blockIdx.x; c < batch.chunks; c += gridDim.x) {
        const struct whole_at at = whole_find(&batch, c);
        float *const to = whole_slot(&batch, at.order->entry, at.chunk);
        for (uint32_t i = threadIdx.x; i < CHUNK; i += BLOCK) {
            to[i] = whole_sum(&batch, &at, i);
        }
    }
}

/* ------------------------------------------------------------------ sums */

/* The sum of the chunk's magnitudes (ledger_magnitude()). Each warp sums its run, then the first
 * warp adds the runs. Only the first thread's result counts. */
DEVICE double whole_magnitude(const float *x, double *lanes)
{
    double sum = 0;
    for (uint32_t i = 0; i < SUMS_RUN; i += WARP) {
        const float value = x[device_warp() * SUMS_RUN + i + device_lane()];
        sum += (double)convert_float(batch_key(value));
    }
    lanes[threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        sum += lanes[w * WARP + device_lane()];
    }
    for (uint32_t distance = WARP / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(WARP_ALL, sum, distance);
    }
    return sum;
}

KERNEL whole_sums(const struct whole_batch batch)
{
    SHARED(float, x, CHUNK);
    SHARED(double, run, SUMS_RUNS);
    SHARED(double, lanes, BLOCK);
    for (uint64_t c = blockIdx.x; c < batch.chunks; c += gridDim.x) {
        const struct whole_at at = whole_find(&batch, c);
        const float *const from = whole_slot(&batch, at.order->entry, at.chunk);
        for (uint32_t i = 0; i < SUMS_RUN; i += WARP) {
            const uint32_t mine = device_warp() * SUMS_RUN + i + device_lane();
            x[mine] = from[mine];
        }
        __syncwarp();
        sums_run(x, (uint32_t)at.chunk, run);
        const double magnitude = whole_magnitude(x, lanes);
        if (device_warp() == 0) {
            sums_record(run, (uint32_t)at.chunk, at.order->chunk[at.number].sums);
        }
        if (threadIdx.x == 0) {
            at.order->chunk[at.number].magnitude = magnitude;
        }
        __syncthreads();
    }
}

/* The chunks are added in their order: a thread for each sum. */
KERNEL whole_total(const struct whole_batch batch)
{
    for (uint32_t o = blockIdx.x; o < batch.orders && threadIdx.x < 3; o += gridDim.x) {
        const struct whole_order *const order = &batch.order[o];
        const double *const chunk = &order->chunk[0].sums[0] + threadIdx.x;
        double sum = 0;
        for (uint64_t c = 0; c < chunk_count(order->count); c++) {
            sum += chunk[3 * c];
        }
        (&order->sums->sums[0])[threadIdx.x] = sum;
    }
}
