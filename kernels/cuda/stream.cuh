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

#endif
