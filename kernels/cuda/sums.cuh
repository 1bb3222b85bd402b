/*
 * The ledger's sums of a chunk (base/ledger.h), by one block. Warp w sums run w of the chunk. Then
 * the first warp adds the runs.
 */
#ifndef ADTOPK_KERNELS_SUMS_CUH
#define ADTOPK_KERNELS_SUMS_CUH

#include "kernels/base/chunks.h"
#include "kernels/base/ledger.h"
#include "kernels/cuda/device.cuh"

/* Elements of a warp's run; numbers of all runs, 16 lanes of each for both sums. */
enum { SUMS_RUN = CHUNK / WARPS, SUMS_RUNS = 2 * WARPS * LEDGER_LANES };

/* The warp's run: half of its threads sum the vectors of positive sign, half the others. x: the
 * chunk, of which the warp has written its own run. signs: ledger_word_signs(). */
DEVICE void sums_run(const float *x, uint64_t signs, double *run)
{
    const uint32_t lane = device_lane() % LEDGER_LANES;
    const bool negative = device_lane() >= LEDGER_LANES;
    float sum = 0;
    UNROLL_2
    for (uint32_t w = 0; w < LEDGER_RUN; w++) {
        const uint32_t word = device_warp() * LEDGER_RUN + w;
        const float *const at = x + word * LEDGER_WORD + lane;
        const uint32_t odd = ((signs >> word & 1u) != 0) != negative ? LEDGER_LANES : 0;
        sum += at[odd] + at[3 * LEDGER_LANES - odd];
    }
    const float other = __shfl_xor_sync(WARP_ALL, sum, LEDGER_LANES);
    run[(negative ? WARPS : 0) * LEDGER_LANES + device_warp() * LEDGER_LANES + lane] =
        (double)(negative ? other - sum : sum + other);
}

/* The chunk's sums, by one warp: half of it has the plain one, half the signed one. */
DEVICE void sums_record(const double *run, uint32_t chunk, double sums[2])
{
    const uint32_t lane = device_lane() % LEDGER_LANES;
    const uint32_t kind = device_lane() / LEDGER_LANES;
    const uint64_t signs = ledger_lane_signs(chunk);
    double sum = 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        sum += run[(kind * WARPS + w) * LEDGER_LANES + lane];
    }
    sum *= kind != 0 ? 1.0 - 2.0 * (double)(int)(signs >> lane & 1u) : 1.0;
    for (uint32_t distance = LEDGER_LANES / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(WARP_ALL, sum, distance);
    }
    if (lane == 0) {
        sums[kind] = sum;
    }
}

#endif
