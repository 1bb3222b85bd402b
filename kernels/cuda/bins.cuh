/*
 * Histograms of keys, and the bin in which the k-th largest is.
 */
#ifndef ADTOPK_KERNELS_BINS_CUH
#define ADTOPK_KERNELS_BINS_CUH

#include "kernels/cuda/batch.cuh"

/* Sets the block's bins to 0. */
DEVICE void bins_clear(uint32_t *bins, uint32_t count)
{
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count; i += BLOCK) {
        bins[i] = 0;
    }
    __syncthreads();
}

/* What a thread has counted in one bin, and not added to it yet. Threads of a warp that add to the
 * same bin wait for each other, so equal values in a row are added once. */
struct bins_run {
    uint32_t bin, count;
};

DEVICE void bins_end(uint32_t *bins, const struct bins_run *run)
{
    if (run->count != 0) {
        (void)atomicAdd(&bins[run->bin], run->count);
    }
}

DEVICE void bins_count(uint32_t *bins, struct bins_run *run, uint32_t bin)
{
    if (bin != run->bin) {
        bins_end(bins, run);
        *run = {bin, 0};
    }
    run->count++;
}

/* Adds the block's bins to those of all blocks. */
DEVICE void bins_flush(const uint32_t *bins, uint32_t count, uint32_t *all)
{
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count; i += BLOCK) {
        if (bins[i] != 0) {
            (void)atomicAdd(&all[i], bins[i]);
        }
    }
}

struct bins_place {
    uint32_t bin;
    uint32_t rank;  /* in the bin, from 1 */
    uint32_t count; /* of all bins */
};

/* The bin of the rank-th largest, rank > 0; rank 0 in the answer: all bins have fewer. For all
 * threads of a block. */
DEVICE struct bins_place bins_find(const uint32_t *bins, uint32_t rank)
{
    enum { EACH = ADD_BINS / BLOCK };
    SHARED(uint32_t, found, 2);
    uint32_t bin = ADD_BINS - 1 - EACH * threadIdx.x;
    uint32_t sum = 0;
    struct bins_place place;
    for (uint32_t i = 0; i < EACH; i++) {
        sum += bins[bin - i];
    }
    uint32_t before = device_scan(sum, &place.count);
    if (before < rank && rank - before <= sum) {
        for (; rank - before > bins[bin]; bin--) {
            before += bins[bin];
        }
        found[0] = bin;
        found[1] = rank - before;
    }
    __syncthreads();
    place.bin = rank <= place.count ? found[0] : 0;
    place.rank = rank <= place.count ? found[1] : 0;
    return place;
}

#endif
