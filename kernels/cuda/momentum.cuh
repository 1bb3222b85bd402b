/*
 * Momentum correction (kernels/cpu/momentum.h), in a pass that may be killed anywhere.
 *
 * A chunk of the velocity has an entry of its own, so it is not published together with the chunk
 * of the residual. What the residual gets follows from the new velocity when gradients come in, and
 * from the old one when they are withdrawn. So the velocity is published first or last. A block
 * whose velocity is out of date cannot publish what it makes of it: the residual's entry has
 * changed by then.
 */
#ifndef ADTOPK_KERNELS_MOMENTUM_CUH
#define ADTOPK_KERNELS_MOMENTUM_CUH

#include "kernels/cuda/gradient.cuh"

DEVICE float momentum_finite(float value, uint32_t *left_out)
{
    const bool finite = !batch_is_fault(value);
    *left_out += !finite;
    return finite ? value : 0;
}

/* The velocity after a step. */
DEVICE float momentum_step(
    const struct add_tensor *tensor, float m, float added, uint32_t *left_out)
{
    const float moved = tensor->momentum.nesterov != 0 ? tensor->momentum.mu * (m + added)
                                                       : tensor->momentum.mu * m + added;
    return momentum_finite(moved, left_out);
}

/* The velocity before it. With mu = 0 this is no number, and becomes 0. */
DEVICE float momentum_undo(const struct add_tensor *tensor, float m, float added)
{
    const float before = tensor->momentum.nesterov != 0 ? m / tensor->momentum.mu - added
                                                        : (m - added) / tensor->momentum.mu;
    uint32_t dropped = 0;
    return momentum_finite(before, &dropped);
}

/* What the residual grows by for four neighbours, if gradients come in, or shrinks by. slots: the
 * pool of velocities. velocity: the entry of the new one, or of the old one. Returns how many
 * gradients are not finite, if they are withdrawn; else momentum_chunk() has counted them. */
DEVICE uint32_t momentum_sum(const struct add_tensor *tensor, const struct slots *slots,
    uint32_t chunk, uint32_t at, uint64_t velocity, float sum[FOUR])
{
    const float4 m = stream_load(slots, velocity, at);
    const float four[FOUR] = {m.x, m.y, m.z, m.w};
    const bool adds = tensor->momentum.nesterov != 0;
    uint32_t left_out = 0;
    if (adds || tensor->withdraw != 0) {
        gradient_sum(tensor, slots, chunk, at, sum);
    }
    UNROLL
    for (uint32_t i = 0; i < FOUR; i++) {
        const float added = adds || tensor->withdraw != 0 ? momentum_finite(sum[i], &left_out) : 0;
        sum[i] = adds ? four[i] + added : four[i];
    }
    return tensor->withdraw != 0 ? left_out : 0;
}

/* Writes the velocity of four neighbours; returns how many were not finite. */
DEVICE uint32_t momentum_four(const struct add_tensor *tensor, const struct slots *slots,
    uint32_t chunk, uint32_t at, const struct stream_way *way)
{
    const float4 m = stream_load(slots, way->was, at);
    float four[FOUR] = {m.x, m.y, m.z, m.w};
    float sum[FOUR];
    uint32_t left_out = 0;
    gradient_sum(tensor, slots, chunk, at, sum);
    UNROLL
    for (uint32_t i = 0; i < FOUR; i++) {
        const float added = momentum_finite(sum[i], &left_out);
        four[i] = tensor->withdraw != 0 ? momentum_undo(tensor, four[i], added)
                                        : momentum_step(tensor, four[i], added, &left_out);
    }
    *(float4 *)(batch_slot(slots, way->mine) + at) = {four[0], four[1], four[2], four[3]};
    return left_out;
}

/* Moves a chunk of the velocity and publishes it, unless that has been done. slots: the pool of
 * velocities, and spare: the block's slot there. Returns the chunk's entry; its record has how many
 * elements were not finite. */
DEVICE uint64_t momentum_chunk(
    const struct add_tensor *tensor, const struct slots *slots, uint32_t chunk, uint32_t *spare)
{
    SHARED(uint32_t, left_out, 1);
    if (threadIdx.x == 0) {
        left_out[0] = 0;
    }
    const struct stream_way way = stream_begin(&tensor->velocity[chunk], *spare);
    if (slot_is_done(way.was, tensor->stamp)) {
        return way.was;
    }
    uint32_t bad = 0;
    for (uint32_t row = 0; row < ROWS; row++) {
        bad += momentum_four(tensor, slots, chunk, stream_at(row), &way);
    }
    if (bad > 0) {
        (void)atomicAdd(left_out, bad);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        slots->record[way.mine].nonfinite = left_out[0];
    }
    const uint32_t lies = stream_end(slots, &tensor->velocity[chunk], tensor->stamp, &way, spare);
    return slot_entry(tensor->stamp, lies);
}

#endif
