/*
 * What the passes over chunks share: which elements a thread has, and how a chunk is published.
 */
#ifndef ADTOPK_KERNELS_STREAM_CUH
#define ADTOPK_KERNELS_STREAM_CUH

#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/sums.cuh"

/* Rows of a warp: in each, a thread has FOUR neighbours. */
enum { FOUR = 4, ROWS = CHUNK / BLOCK / FOUR };

/* The number in the chunk of the thread's first element of a row. */
DEVICE uint32_t stream_at(uint32_t row)
{
    return device_warp() * SUMS_RUN + row * (WARP * FOUR) + device_lane() * FOUR;
}

/* Four neighbours from number `at` on of the chunk in the slot of this entry. */
DEVICE float4 stream_load(const struct slots *slots, uint64_t entry, uint32_t at)
{
    if (slots->element != NULL) {
        return *(const float4 *)(batch_slot(slots, entry) + at);
    }
    const uint2 four = *(const uint2 *)(batch_half(slots, entry) + at);
    return {convert_float(four.x << 16), convert_float(four.x & 0xffff0000u),
        convert_float(four.y << 16), convert_float(four.y & 0xffff0000u)};
}

/* Writes four values that are bf16. */
DEVICE void stream_store_half(uint16_t *to, float4 four)
{
    *(uint2 *)to = {convert_bits(four.x) >> 16 | (convert_bits(four.y) & 0xffff0000u),
        convert_bits(four.z) >> 16 | (convert_bits(four.w) & 0xffff0000u)};
}

/* Makes a chunk's new elements visible. Returns the slot where it lies now: another block may have
 * been faster. */
DEVICE uint32_t stream_publish(uint64_t *entry, uint64_t was, uint64_t becomes)
{
    __threadfence();
    const uint64_t found = device_swap(entry, was, becomes);
    __threadfence();
    return slot_of(found == was ? becomes : found);
}

/* A chunk on its way through a block. */
struct stream_way {
    uint64_t was;  /* its entry */
    uint32_t mine; /* the block's spare slot */
};

/* For all threads of a block: reads an entry. spare: only the first thread's counts. */
DEVICE struct stream_way stream_begin(const uint64_t *entry, uint32_t spare)
{
    SHARED(struct stream_way, way, 1);
    __syncthreads(); /* the last chunk's has been read */
    if (threadIdx.x == 0) {
        way->was = device_load(entry);
        way->mine = spare;
        __threadfence(); /* another block may just have published it */
    }
    __syncthreads();
    return way[0];
}

/* Publishes what the block has written to its spare slot. Returns the slot where the chunk lies
 * now. The first thread's spare slot is another one then. */
DEVICE uint32_t stream_end(const struct slots *slots, uint64_t *entry, uint32_t stamp,
    const struct stream_way *way, uint32_t *spare)
{
    SHARED(uint32_t, lies, 1);
    __syncthreads(); /* all threads have written */
    if (threadIdx.x == 0) {
        slots->owner[way->mine] = slot_owner(slots, entry);
        lies[0] = stream_publish(entry, way->was, slot_entry(stamp, way->mine));
        *spare = lies[0] == way->mine ? slot_of(way->was) : way->mine;
    }
    __syncthreads();
    return lies[0];
}

#endif
