/*
 * The rank-th largest of elements at equal distances, by a block that reads them several times.
 */
#ifndef ADTOPK_KERNELS_SEARCH_CUH
#define ADTOPK_KERNELS_SEARCH_CUH

#include "kernels/cuda/bins.cuh"

/* Elements of a tensor. */
struct search_line {
    const struct slots *slots;
    const uint64_t *entry; /* of the tensor's chunks */
    uint64_t base, stride; /* the first one, and how far apart they are */
    uint64_t length;
};

DEVICE float search_element(const struct search_line *line, uint64_t i)
{
    const uint64_t element = line->base + i * line->stride;
    return batch_element(line->slots, line->entry[element / CHUNK], (uint32_t)(element % CHUNK));
}

/* Elements that a thread reads before it looks at the first of them: a block that waits for each
 * takes several times as long. */
enum { SEARCH_TOGETHER = 4 };

/* Calls work(i, whether it is there, element i) for all threads of a block, in rows. */
template <typename Work> DEVICE void search_each(const struct search_line *line, Work work)
{
    for (uint64_t first = 0; first < line->length; first += SEARCH_TOGETHER * BLOCK) {
        float x[SEARCH_TOGETHER];
        UNROLL
        for (uint32_t row = 0; row < SEARCH_TOGETHER; row++) {
            const uint64_t i = first + row * BLOCK + threadIdx.x;
            x[row] = i < line->length ? search_element(line, i) : 0;
        }
        UNROLL
        for (uint32_t row = 0; row < SEARCH_TOGETHER; row++) {
            const uint64_t i = first + row * BLOCK + threadIdx.x;
            if (first + row * BLOCK < line->length) {
                work(i, i < line->length, x[row]);
            }
        }
    }
}

/* The key of the rank-th (`bin`), and how many of its equals are at this rank or before (`rank`):
 * level by level, the bits above `shift` first. */
DEVICE struct bins_place search_rank(const struct search_line *line, uint32_t rank, uint32_t *bins)
{
    uint32_t base = 0;
    for (uint32_t bits = 31; bits > 0;) {
        const uint32_t shift = bits > ADD_BITS ? bits - ADD_BITS : 0;
        struct bins_run run = {0, 0};
        bins_clear(bins, ADD_BINS);
        search_each(line, [&](uint64_t, bool there, float x) {
            const uint32_t offset = batch_key(x) - base;
            if (there && offset >> bits == 0) {
                bins_count(bins, &run, offset >> shift);
            }
        });
        bins_end(bins, &run);
        __syncthreads();
        const struct bins_place place = bins_find(bins, rank);
        base += place.bin << shift;
        rank = place.rank;
        bits = shift;
    }
    const struct bins_place cut = {base, rank, 0};
    return cut;
}

#endif
