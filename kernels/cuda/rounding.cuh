/*
 * Rounding of a chunk to bf16, as kernels/cpu/rounded.h defines it, by one block.
 *
 * A rounding error goes from word to word, along a chain for each lane, sign and half of the word.
 * The 64 chains have a thread each; so the first two warps round, one for each sign.
 */
#ifndef ADTOPK_KERNELS_ROUNDING_CUH
#define ADTOPK_KERNELS_ROUNDING_CUH

#include "kernels/base/rounded.h"
#include "kernels/cuda/device.cuh"

struct rounding_chunk {
    uint64_t seed;   /* of its random numbers */
    uint64_t signs;  /* in the ledger, of its words */
    uint32_t length; /* elements */
};

/* The chain of a thread of the first two warps. Returns the error at its end. */
DEVICE float rounding_chain(
    const struct rounding_chunk *chunk, const uint32_t *hash, float e, float *x)
{
    const uint32_t half = device_lane() / LEDGER_LANES;
    for (uint32_t word = 0; word * LEDGER_WORD < chunk->length; word++) {
        const bool same = (chunk->signs >> word & 1u) == device_warp();
        const uint32_t vector = same ? 3 * half : 1 + half;
        const uint32_t in_word = vector * LEDGER_LANES + device_lane() % LEDGER_LANES;
        const uint32_t at = word * LEDGER_WORD + in_word;
        if (at < chunk->length) {
            (void)rounded_element(&x[at], &e, rounded_random(hash[word], in_word));
        }
    }
    return e;
}

/* Rounds a chunk's elements in shared memory, for all threads of a block; each may have written x
 * before. */
DEVICE void rounding_run(
    const struct rounding_chunk *chunk, const struct carry *was, struct carry *becomes, float *x)
{
    SHARED(uint32_t, hash, LEDGER_WORDS);
    if (threadIdx.x < LEDGER_WORDS) {
        hash[threadIdx.x] = rounded_word(chunk->seed, threadIdx.x);
    }
    __syncthreads();
    if (device_warp() < 2) {
        const uint32_t lane = device_lane() % LEDGER_LANES;
        const bool first = device_lane() < LEDGER_LANES; /* half of the words */
        const float begin = first && was != NULL ? was->of[device_warp()][lane] : 0;
        const float e = rounding_chain(chunk, hash, begin, x);
        const float other = __shfl_xor_sync(WARP_ALL, e, LEDGER_LANES);
        if (first) {
            becomes->of[device_warp()][lane] = e + other;
        }
    }
    __syncthreads();
}

#endif
