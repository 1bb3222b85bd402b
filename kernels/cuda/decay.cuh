/*
 * The decay of a residual before gradients are added, and its inverse (kernels/cpu/gradient.c).
 */
#ifndef ADTOPK_KERNELS_DECAY_CUH
#define ADTOPK_KERNELS_DECAY_CUH

#include "kernels/cuda/stream.cuh"

/* Takes the decay of an element x out of what is added to it. An element whose gradient is not
 * finite is left out, and does not decay either. Returns what goes. */
DEVICE float decay_one(float share, float x, float *sum)
{
    const float gone = share * x;
    const bool whole = !batch_is_fault(*sum) && !batch_is_fault(*sum - gone);
    const float lost = whole ? gone : 0;
    *sum -= lost;
    return lost;
}

/* The inverse, after a step of which the sum is the opposite: x becomes what it was. Returns what
 * comes back, negative. */
DEVICE float decay_undo(float share, float x, float *sum)
{
    const float kept = x + *sum;
    const float before = kept / (1 - share);
    const bool whole = !batch_is_fault(*sum) && !batch_is_fault(before);
    *sum = whole ? before - x : *sum;
    return whole ? kept - before : 0;
}

DEVICE void decay_four(
    const struct add_tensor *tensor, float4 old, float sum[FOUR], float lost[FOUR])
{
    const float x[FOUR] = {old.x, old.y, old.z, old.w};
    UNROLL
    for (uint32_t i = 0; i < FOUR; i++) {
        lost[i] = tensor->withdraw != 0 ? decay_undo(tensor->decay, x[i], &sum[i])
                                        : decay_one(tensor->decay, x[i], &sum[i]);
    }
}

#endif
