/*
 * How a pass begins (add.h): scratch is cleared.
 */
#include "kernels/cuda/candidates.cuh"

/* A denser selection than one element in this many has no small set of candidates. */
enum { ADD_DENSE = 8 };

/* Without a hint nothing is a candidate, and ADD_HISTOGRAM finds the bound. */
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

/* Every tensor has as many blocks as there are for it. */
KERNEL add_begin(const struct add_batch batch)
{
    const uint32_t each = gridDim.x > batch.tensors ? gridDim.x / batch.tensors : 1;
    const uint32_t thread = blockIdx.x % each * BLOCK + threadIdx.x;
    if (blockIdx.x == 0 && threadIdx.x < sizeof *batch.steps / sizeof(uint32_t)) {
        ((uint32_t *)batch.steps)[threadIdx.x] = 0;
    }
    for (uint32_t t = blockIdx.x / each; t < batch.tensors; t += (gridDim.x + each - 1) / each) {
        const struct add_tensor *const tensor = &batch.tensor[t];
        uint32_t *const words = (uint32_t *)tensor->scratch;
        const uint64_t cleared = scratch_cleared(tensor);
        for (uint64_t i = thread; i < cleared; i += (uint64_t)each * BLOCK) {
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
