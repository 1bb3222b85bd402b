/*
 * r += g, four elements per thread and step: what no pass over a residual can be faster than. And
 * arithmetic that waits for no memory, as a trainer's kernels have much of.
 */
#include "kernels/cuda/bench.h"

#include "kernels/cuda/gradient.cuh"

KERNEL bench_add(const struct bench_add p)
{
    for (uint64_t i = device_thread(); i < p.n / FOUR; i += device_threads()) {
        float4 *const r = (float4 *)p.r + i;
        const float4 old = *r;
        float sum[FOUR] = {old.x, old.y, old.z, old.w};
        gradient_add(p.g, p.dtype, i * FOUR, FOUR, sum);
        const float4 next = {sum[0], sum[1], sum[2], sum[3]};
        *r = next;
    }
}

KERNEL bench_work(const struct bench_work p)
{
    float x = (float)device_thread();
    for (uint32_t i = 0; i < p.rounds; i++) {
        x = x * 0.75f + 1.0f;
    }
    p.out[device_thread()] = x;
}
