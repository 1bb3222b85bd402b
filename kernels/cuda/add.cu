/*
 * How ADD begins and ends (add.h): scratch is cleared, and the ledger's sums of the chunks are
 * added up.
 */
#include "kernels/cuda/top.cuh"

/* A denser selection than one element in this many has no small set of candidates. */
enum { ADD_DENSE = 8 };

/* Without a hint nothing is a candidate, and top_histogram finds the bound. */
DEVICE void add_bound(const struct add_tensor *tensor)
{
    struct top_state *const state = scratch_top(tensor).state;
    const float hint = tensor->hints[0];
    const bool serves = hint > 0 && tensor->k <= tensor->numel / ADD_DENSE;
    state->least = serves ? convert_bits(hint) : TOP_NONE;
    state->shift = TOP_SHIFT;
}

KERNEL add_begin(const struct add_batch batch)
{
    const uint32_t thread = blockIdx.x * BLOCK + threadIdx.x;
    for (uint32_t t = 0; t < batch.tensors; t++) {
        const struct add_tensor *const tensor = &batch.tensor[t];
        uint32_t *const words = (uint32_t *)tensor->scratch;
        const uint64_t cleared = scratch_cleared(tensor);
        for (uint64_t i = thread; i < cleared; i += (uint64_t)gridDim.x * BLOCK) {
            words[i] = 0;
        }
        if (thread == 0 && tensor->mode == ADD_TOP) {
            add_bound(tensor);
        }
    }
}

/* ------------------------------------------------------------------ the ledger */

DEVICE uint64_t add_entries(const struct add_tensor *tensor)
{
    switch (tensor->mode) {
    case ADD_TOP: return tensor->k;
    case ADD_FIBRES: return tensor->view.fibres * tensor->k;
    default: return 0;
    }
}

/* The chunks are added in their order: two threads do so, one for each sum, and the others bring
 * them the chunks' sums. */
DEVICE void add_sums(const struct add_tensor *tensor, const struct slots *slots)
{
    SHARED(double, sums, 2 * BLOCK);
    const uint32_t chunks = (uint32_t)chunk_count(tensor->numel);
    double total = threadIdx.x < 2 ? tensor->before[threadIdx.x] : 0;
    uint32_t left_out = 0;
    for (uint32_t first = 0; first < chunks; first += BLOCK) {
        const uint32_t chunk = first + threadIdx.x;
        if (chunk < chunks) {
            const struct slot_record *record = &slots->record[slot_of(tensor->entry[chunk])];
            sums[threadIdx.x] = record->sums[0];
            sums[BLOCK + threadIdx.x] = record->sums[1];
            left_out += (uint32_t)record->nonfinite;
        }
        __syncthreads();
        for (uint32_t i = 0; threadIdx.x < 2 && i < BLOCK && first + i < chunks; i++) {
            total += sums[threadIdx.x * BLOCK + i];
        }
        __syncthreads();
    }
    uint32_t all;
    (void)device_scan(left_out, &all);
    if (threadIdx.x < 2) {
        tensor->result->sums[threadIdx.x] = total;
    }
    if (threadIdx.x == 0) {
        tensor->result->nonfinite = all;
        tensor->result->count = add_entries(tensor);
    }
}

KERNEL add_ledger(const struct add_batch batch)
{
    for (uint32_t t = blockIdx.x; t < batch.tensors; t += gridDim.x) {
        add_sums(&batch.tensor[t], &batch.slots);
    }
}
