/*
 * How blocks share a batch. The blocks of ADD have a contiguous part of all chunks each, and go
 * through it tensor by tensor. The other kernels find the order of each unit of work.
 */
#ifndef ADTOPK_KERNELS_BATCH_CUH
#define ADTOPK_KERNELS_BATCH_CUH

#include "kernels/base/convert.h"
#include "kernels/base/dtype.h"
#include "kernels/base/ledger.h"
#include "kernels/cuda/add.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/scratch.h"

struct batch_part {
    const struct add_tensor *tensor;
    uint32_t first, end; /* chunks of the tensor */
};

/* The first chunk of a share. A block of a pass has the share of its own number. */
DEVICE uint32_t batch_share(const struct add_batch *batch, uint32_t share)
{
    return (uint32_t)((uint64_t)batch->chunks * share / gridDim.x);
}

/* The order of a table in which unit `at` is. Orders number their units through, each from its own
 * field `first` on; one without units has the same number as the next. */
template <typename Order, typename Number>
DEVICE const Order *batch_find_by(
    const Order *order, uint32_t orders, uint64_t at, Number Order::*first)
{
    uint32_t low = 0;
    uint32_t high = orders;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        low = order[middle].*first <= at ? middle : low;
        high = order[middle].*first <= at ? high : middle;
    }
    return &order[low];
}

template <typename Order>
DEVICE const Order *batch_find(const Order *order, uint32_t orders, uint64_t at)
{
    return batch_find_by(order, orders, at, &Order::first);
}

/* The next part of one tensor: from chunk `at` of the batch on, to `end` at most. */
DEVICE struct batch_part batch_part(const struct add_batch *batch, uint32_t at, uint32_t end)
{
    const struct add_tensor *tensor = batch_find(batch->tensor, batch->tensors, at);
    const uint32_t stop = tensor->first + (uint32_t)chunk_count(tensor->numel);
    struct batch_part part = {
        tensor, at - tensor->first, (end < stop ? end : stop) - tensor->first};
    return part;
}

/* Calls work(part) for each part of a share of the batch, which has as many shares as the launch
 * has blocks. */
template <typename Work>
DEVICE void batch_walk(const struct add_batch *batch, uint32_t share, Work work)
{
    const uint32_t end = batch_share(batch, share + 1);
    for (uint32_t at = batch_share(batch, share); at < end;) {
        const struct batch_part part = batch_part(batch, at, end);
        work(&part);
        at += part.end - part.first;
    }
}

/* Magnitudes compare as these keys do: zeros are 0, and NaN is above infinity. */
DEVICE uint32_t batch_key(float value)
{
    return convert_bits(value) & 0x7fffffffu;
}

/* Elements of a chunk. */
DEVICE uint32_t batch_length(const struct add_tensor *tensor, uint32_t chunk)
{
    const uint64_t rest = tensor->numel - (uint64_t)chunk * CHUNK;
    return rest < CHUNK ? (uint32_t)rest : (uint32_t)CHUNK;
}

DEVICE float *batch_slot(const struct slots *slots, uint64_t entry)
{
    return slots->element + (uint64_t)slot_of(entry) * CHUNK;
}

DEVICE uint16_t *batch_half(const struct slots *slots, uint64_t entry)
{
    return slots->half + (uint64_t)slot_of(entry) * CHUNK;
}

/* Element i of the chunk with this entry. */
DEVICE float batch_element(const struct slots *slots, uint64_t entry, uint32_t i)
{
    return slots->element != NULL ? batch_slot(slots, entry)[i]
                                  : convert_bf16(batch_half(slots, entry)[i]);
}

/* An element of a gradient; 0 if the rank has none. */
DEVICE float batch_gradient(const struct add_tensor *tensor, uint32_t gradient, uint64_t element)
{
    const void *const from = tensor->gradient[gradient];
    if (from == NULL) {
        return 0;
    }
    switch (tensor->dtype) {
    case DTYPE_F16: return convert_f16(((const uint16_t *)from)[element]);
    case DTYPE_BF16: return convert_bf16(((const uint16_t *)from)[element]);
    default: return ((const float *)from)[element];
    }
}

/* Whether the pass leaves a gradient's element out. */
DEVICE bool batch_is_fault(float value)
{
    return batch_key(value) >= convert_bits(KERNEL_FINITE_LIMIT);
}

#endif
