/*
 * The search for the k-th key of a tensor: what its kernels share (add.h).
 */
#ifndef ADTOPK_KERNELS_TOP_CUH
#define ADTOPK_KERNELS_TOP_CUH

#include "kernels/cuda/bins.cuh"

/* Keys of a bin, as powers of two: below a guessed bound's half octave; below one bin of all keys;
 * of all keys. */
enum { TOP_SHIFT = 11, TOP_SHIFT_AGAIN = 9, TOP_SHIFT_ALL = 20, TOP_KEY_BITS = 31 };

/* No key reaches it. */
#define TOP_NONE 0x80000000u

/* All candidates are in their bins: finds the one with the k-th, or that the bound was wrong. Then
 * *again is not 0 either. For all threads of a block. */
DEVICE void top_settle(
    const struct add_tensor *tensor, const struct top_scratch *top, uint32_t *again)
{
    const uint32_t sure = top->counts->bins[ADD_BINS]; /* above all bins */
    const uint32_t k = (uint32_t)tensor->k;
    const struct bins_place place = bins_find(top->counts->bins, k > sure ? k - sure : 1);
    if (threadIdx.x == 0) {
        top->state->again = sure >= k || place.rank == 0 || top->counts->spoiled != 0;
        top->state->candidates = sure + place.count;
        top->state->bin = place.bin;
        top->state->rank = place.rank;
        if (top->state->again != 0) {
            (void)atomicAdd(again, 1u);
        }
    }
}

#endif
