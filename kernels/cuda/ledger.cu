/*
 * The ledger's sums of a tensor, from the records of its chunks, and what a pass has left out
 * (add.h).
 */
#include "kernels/cuda/candidates.cuh"

/* Of a record: two sums of what was added, then two of what decay took. */
enum { LEDGER_KINDS = 4 };

/* ------------------------------------------------------------------ sums */

/* Of the tensor's list. */
DEVICE uint64_t ledger_entries(const struct add_tensor *tensor)
{
    switch (tensor->mode) {
    case ADD_TOP: return tensor->k;
    case ADD_FIBRES: return tensor->view.fibres * tensor->k;
    default: return 0;
    }
}

DEVICE double ledger_of(const struct slot_record *record, uint32_t kind)
{
    return kind < 2 ? record->sums[kind] : record->lost[kind - 2];
}

DEVICE void ledger_set(struct slot_record *record, uint32_t kind, double sum)
{
    if (kind < 2) {
        record->sums[kind] = sum;
    } else {
        record->lost[kind - 2] = sum;
    }
}

/* Sums the chunks of a group, by one warp: a thread for each kind, in the chunks'
 * order. The other threads fetch the records. */
DEVICE void ledger_group(
    const struct add_tensor *tensor, const struct slots *slots, uint32_t group, double *warp)
{
    const uint32_t chunks = (uint32_t)chunk_count(tensor->numel);
    const uint32_t kinds = tensor->decay > 0 ? LEDGER_KINDS : 2;
    struct slot_record *const sums = &scratch_ledger(tensor).group[group];
    uint32_t left_out = 0;
    double total = 0;
    for (uint32_t first = group * LEDGER_GROUP; first < (group + 1) * LEDGER_GROUP; first += WARP) {
        const uint32_t chunk = first + device_lane();
        if (chunk < chunks) {
            const struct slot_record *const record = &slots->record[slot_of(tensor->entry[chunk])];
            for (uint32_t kind = 0; kind < kinds; kind++) {
                warp[kind * WARP + device_lane()] = ledger_of(record, kind);
            }
            left_out += (uint32_t)record->nonfinite;
        }
        __syncwarp();
        for (uint32_t i = 0; device_lane() < kinds && i < WARP && first + i < chunks; i++) {
            total += warp[device_lane() * WARP + i];
        }
        __syncwarp();
    }
    uint32_t all;
    (void)device_scan_warp(left_out, &all);
    if (device_lane() < LEDGER_KINDS) {
        ledger_set(sums, device_lane(), total);
    }
    if (device_lane() == 0) {
        sums->nonfinite = all;
    }
}

/* The groups are added in their order. Returns how many elements were left out. For all threads of
 * a block. */
DEVICE uint32_t ledger_total_of(const struct add_tensor *tensor, double *sums)
{
    const struct slot_record *const group = scratch_ledger(tensor).group;
    const uint32_t groups = (uint32_t)ledger_groups(chunk_count(tensor->numel));
    uint32_t left_out = 0;
    double total = 0;
    if (threadIdx.x < LEDGER_KINDS) {
        total = threadIdx.x < 2 ? tensor->before->sums[threadIdx.x]
                                : tensor->before->lost[threadIdx.x - 2];
    }
    for (uint32_t first = 0; first < groups; first += BLOCK) {
        const uint32_t g = first + threadIdx.x;
        for (uint32_t kind = 0; g < groups && kind < LEDGER_KINDS; kind++) {
            sums[kind * BLOCK + threadIdx.x] = ledger_of(&group[g], kind);
        }
        left_out += g < groups ? (uint32_t)group[g].nonfinite : 0;
        __syncthreads();
        for (uint32_t i = 0; threadIdx.x < LEDGER_KINDS && i < BLOCK && first + i < groups; i++) {
            total += sums[threadIdx.x * BLOCK + i];
        }
        __syncthreads();
    }
    if (threadIdx.x < 2) {
        tensor->result->sums[threadIdx.x] = total;
    } else if (threadIdx.x < LEDGER_KINDS) {
        tensor->result->lost[threadIdx.x - 2] = total;
    }
    uint32_t all;
    (void)device_scan(left_out, &all);
    return all;
}

/* ------------------------------------------------------------------ what was left out */

/* The first thread of the block gets the least of all threads' numbers. */
DEVICE uint64_t ledger_least(uint64_t mine)
{
    SHARED(uint64_t, all, BLOCK);
    all[threadIdx.x] = mine;
    __syncthreads();
    for (uint32_t i = 0; threadIdx.x == 0 && i < BLOCK; i++) {
        mine = all[i] < mine ? all[i] : mine;
    }
    __syncthreads();
    return mine;
}

/* The first of every BLOCK-th element that is not finite in some gradient; numel if all are. */
DEVICE uint64_t ledger_first_fault(const struct add_tensor *tensor)
{
    for (uint64_t i = threadIdx.x; i < tensor->numel; i += BLOCK) {
        for (uint32_t g = 0; g < tensor->gradients; g++) {
            if (batch_is_fault(batch_gradient(tensor, g, i))) {
                return i;
            }
        }
    }
    return tensor->numel;
}

/* The gradient in which the element is not finite; zeros if there is none. */
DEVICE struct add_fault ledger_describe(const struct add_tensor *tensor, uint64_t element)
{
    struct add_fault fault = {0, 0, 0, 0};
    for (uint32_t g = 0; element < tensor->numel && g < tensor->gradients; g++) {
        const float value = batch_gradient(tensor, g, element);
        if (fault.found == 0 && batch_is_fault(value)) {
            fault.element = element;
            fault.part = g;
            fault.found = 1;
            fault.value = value;
        }
    }
    return fault;
}

/* ------------------------------------------------------------------ a share */

/* For all threads of the block that completes a tensor. It is rare that anything is left out. */
DEVICE void ledger_complete(const struct add_tensor *tensor, double *sums)
{
    const uint32_t left_out = ledger_total_of(tensor, sums);
    const bool any = left_out > 0 && tensor->joined == NULL;
    const uint64_t element = any ? ledger_least(ledger_first_fault(tensor)) : tensor->numel;
    if (threadIdx.x == 0) {
        tensor->result->nonfinite = left_out;
        tensor->result->count = ledger_entries(tensor);
        tensor->result->fault = ledger_describe(tensor, element);
    }
}

/* ADD_LEDGER of a share. A group belongs to the share that has its first chunk. */
DEVICE void ledger_share(const struct add_batch *batch, uint32_t share)
{
    double *const sums = (double *)stream_stage();
    batch_walk(batch, share, [&](const struct batch_part *part) {
        const uint32_t groups = (uint32_t)ledger_groups(part->end);
        for (uint32_t g = (uint32_t)ledger_groups(part->first) + device_warp(); g < groups;
             g += WARPS) {
            ledger_group(
                part->tensor, &batch->slots, g, sums + device_warp() * LEDGER_KINDS * WARP);
        }
        if (device_is_last(scratch_ledger(part->tensor).summed, part->end - part->first,
                (uint32_t)chunk_count(part->tensor->numel))) {
            ledger_complete(part->tensor, sums);
        }
    });
}
