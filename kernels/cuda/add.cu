/*
 * How ADD begins and ends (add.h): scratch is cleared, and the ledger's sums of the chunks are
 * added up.
 */
#include "kernels/cuda/top.cuh"

/* A denser selection than one element in this many has no small set of candidates. */
enum { ADD_DENSE = 8 };
enum { ADD_SUMS = 4 };

/* Without a hint nothing is a candidate, and top_histogram finds the bound. */
DEVICE void add_bound(const struct add_tensor *tensor)
{
    struct top_state *const state = scratch_top(tensor).state;
    const float hint = tensor->hints[0];
    const bool serves = hint > 0 && tensor->k <= tensor->numel / ADD_DENSE;
    state->least = serves ? convert_bits(hint) : TOP_NONE;
    state->shift = TOP_SHIFT;
}

/* A pass that is repeated goes on from the sums that its first attempt found. */
DEVICE void add_remember(const struct add_tensor *tensor)
{
    const uint64_t stamp = (uint64_t)1 << 32 | tensor->stamp;
    if (tensor->before->stamp != stamp) {
        tensor->before->sums[0] = tensor->ledger.input[0];
        tensor->before->sums[1] = tensor->ledger.input[1];
        tensor->before->lost[0] = tensor->decay > 0 ? tensor->ledger.lost[0] : 0;
        tensor->before->lost[1] = tensor->decay > 0 ? tensor->ledger.lost[1] : 0;
        __threadfence();
        tensor->before->stamp = stamp;
    }
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
        if (thread == 0) {
            add_remember(tensor);
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

/* A chunk's sums of its record, and what decay took. */
DEVICE double add_of_record(const struct slot_record *record, uint32_t kind, bool decays)
{
    if (kind < 2) {
        return record->sums[kind];
    }
    return decays ? record->lost[kind - 2] : 0;
}

/* The chunks are added in their order: four threads do so, one for each sum, and the others bring
 * them the chunks' sums. The first two sums are the ledger's, the others are those of decay. */
DEVICE void add_sums(const struct add_tensor *tensor, const struct slots *slots)
{
    SHARED(double, sums, ADD_SUMS *BLOCK);
    const uint32_t chunks = (uint32_t)chunk_count(tensor->numel);
    const bool decays = tensor->decay > 0;
    double total = 0;
    uint32_t left_out = 0;
    if (threadIdx.x < ADD_SUMS) {
        total = threadIdx.x < 2 ? tensor->before->sums[threadIdx.x]
                                : tensor->before->lost[threadIdx.x - 2];
    }
    for (uint32_t first = 0; first < chunks; first += BLOCK) {
        const uint32_t chunk = first + threadIdx.x;
        if (chunk < chunks) {
            const struct slot_record *record = &slots->record[slot_of(tensor->entry[chunk])];
            for (uint32_t kind = 0; kind < ADD_SUMS; kind++) {
                sums[kind * BLOCK + threadIdx.x] = add_of_record(record, kind, decays);
            }
            left_out += (uint32_t)record->nonfinite;
        }
        __syncthreads();
        for (uint32_t i = 0; threadIdx.x < ADD_SUMS && i < BLOCK && first + i < chunks; i++) {
            total += sums[threadIdx.x * BLOCK + i];
        }
        __syncthreads();
    }
    uint32_t all;
    (void)device_scan(left_out, &all);
    if (threadIdx.x < 2) {
        tensor->result->sums[threadIdx.x] = total;
    } else if (threadIdx.x < ADD_SUMS) {
        tensor->result->lost[threadIdx.x - 2] = total;
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

/* ------------------------------------------------------------------ what was left out */

/* The first thread of the block gets the least of all threads' numbers. */
DEVICE uint64_t add_least(uint64_t mine)
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

/* The first element of the thread's share that is not finite in any gradient; numel if all are. */
DEVICE uint64_t add_first_fault(const struct add_tensor *tensor)
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

DEVICE struct add_fault add_describe(const struct add_tensor *tensor, uint64_t element)
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

/* A block per tensor: it is rare that anything is left out. */
KERNEL add_faults(const struct add_batch batch)
{
    for (uint32_t t = blockIdx.x; t < batch.tensors; t += gridDim.x) {
        const struct add_tensor *const tensor = &batch.tensor[t];
        const bool any = tensor->result->nonfinite > 0 && tensor->joined == NULL;
        const uint64_t element = add_least(any ? add_first_fault(tensor) : tensor->numel);
        if (threadIdx.x == 0) {
            tensor->result->fault = add_describe(tensor, element);
        }
    }
}
