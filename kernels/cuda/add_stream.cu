/*
 * The pass over the elements: residual += gradients, the ledger's sums of every chunk, and the
 * elements that reach their bounds (add.h). It reads and writes 12 bytes per element with f32
 * gradients, 10 with 16-bit ones; with a residual in bf16 it is 8 or 6.
 *
 * A block takes one chunk after the other, with four neighbours per thread at a time. Warp w has
 * the elements of the ledger's run w, so only the warp's own threads sum what it has added.
 */
#include "kernels/cuda/candidates.cuh"
#include "kernels/cuda/decay.cuh"
#include "kernels/cuda/momentum.cuh"
#include "kernels/cuda/rounding.cuh"

/* The slots that a block writes to next. Only the first thread's count. */
struct stream_spares {
    uint32_t residual, velocity;
};

/* ------------------------------------------------------------------ adding */

/* Four elements of the residual, from number `at` of the chunk on, and what is added to them. */
struct stream_four {
    uint32_t at;
    float4 old;
    float sum[FOUR];
};

/* Finds the sum: 0 behind the tensor's end. velocity: the entry of the chunk's velocity, if there
 * is one. Returns how many gradients are not finite, if momentum correction has replaced them. */
DEVICE uint32_t stream_gradients(
    const struct stream *s, uint32_t chunk, uint64_t velocity, struct stream_four *four)
{
    const struct add_tensor *const tensor = s->tensor;
    uint32_t left_out = 0;
    if (tensor->velocity != NULL) {
        left_out = momentum_sum(tensor, &s->velocities, chunk, four->at, velocity, four->sum);
    } else {
        gradient_sum(tensor, &s->slots, chunk, four->at, four->sum);
    }
    for (uint32_t i = 0; i < FOUR && tensor->withdraw != 0; i++) {
        four->sum[i] = -four->sum[i];
    }
    return left_out;
}

/* Finds the sum with the old elements' decay, if they decay, and without what is not finite.
 * Returns how many are left out because of that. */
DEVICE uint32_t stream_sum(
    const struct stream *s, uint32_t chunk, uint64_t velocity, struct stream_four *four)
{
    uint32_t left_out = stream_gradients(s, chunk, velocity, four);
    if (s->tensor->decay > 0) {
        float lost[FOUR];
        decay_four(s->tensor, four->old, four->sum, lost);
    }
    for (uint32_t i = 0; i < FOUR; i++) {
        const bool finite = !batch_is_fault(four->sum[i]);
        left_out += !finite;
        four->sum[i] = finite ? four->sum[i] : -0.0f;
    }
    return left_out;
}

/* The ledger's sums of what decay takes from the elements that lie in the slot of `was`. shared:
 * CHUNK elements. They are found before the elements change, because a thread would have to keep
 * too many numbers otherwise. */
DEVICE void stream_decay(
    const struct stream *s, uint32_t chunk, uint64_t was, float *shared, double *run)
{
    for (uint32_t row = 0; row < ROWS; row++) {
        struct stream_four four;
        float lost[FOUR];
        four.at = stream_at(row);
        four.old = stream_load(&s->slots, was, four.at);
        (void)stream_gradients(s, chunk, 0, &four);
        decay_four(s->tensor, four.old, four.sum, lost);
        *(float4 *)(shared + four.at) = {lost[0], lost[1], lost[2], lost[3]};
    }
    __syncwarp();
    sums_run(shared, ledger_word_signs(chunk), run);
    __syncwarp();
}

/* Rounds the elements of the slot of `was`, with what is added to them on the stage, and writes
 * them to the slot `mine`. */
DEVICE void stream_round(const struct stream *s, uint32_t chunk, const struct stream_way *way)
{
    const struct slots *const slots = &s->slots;
    const struct rounding_chunk rounding = {.seed = rounded_chunk(s->tensor->rounding, chunk),
        .signs = ledger_word_signs(chunk),
        .length = batch_length(s->tensor, chunk)};
    for (uint32_t row = 0; row < ROWS; row++) {
        const float4 old = stream_load(slots, way->was, stream_at(row));
        float4 *const four = (float4 *)(stream_stage() + stream_at(row));
        *four = {old.x + four->x, old.y + four->y, old.z + four->z, old.w + four->w};
    }
    rounding_run(
        &rounding, &slots->carry[slot_of(way->was)], &slots->carry[way->mine], stream_stage());
    for (uint32_t row = 0; row < ROWS; row++) {
        const float4 four = *(const float4 *)(stream_stage() + stream_at(row));
        stream_store_half(batch_half(slots, way->mine) + stream_at(row), four);
    }
}

/* The sums of the runs of a chunk: of what was added, and of what decay took. */
struct stream_runs {
    double *added, *lost;
};

/* Adds to the elements that lie in the slot of `was`, writes them to the slot `mine`, and sums what
 * it has added. velocity: see stream_gradients(). */
DEVICE void stream_add(const struct stream *s, uint32_t chunk, const struct stream_way *way,
    uint64_t velocity, const struct stream_runs *run, uint32_t *left_out)
{
    const bool rounds = s->slots.element == NULL;
    uint32_t bad = 0;
    if (s->tensor->decay > 0) {
        stream_decay(s, chunk, way->was, stream_stage(), run->lost);
    }
    for (uint32_t row = 0; row < ROWS; row++) {
        struct stream_four four;
        four.at = stream_at(row);
        four.old = stream_load(&s->slots, way->was, four.at);
        bad += stream_sum(s, chunk, velocity, &four);
        if (!rounds) {
            *(float4 *)(batch_slot(&s->slots, way->mine) + four.at) = {four.old.x + four.sum[0],
                four.old.y + four.sum[1], four.old.z + four.sum[2], four.old.w + four.sum[3]};
        }
        *(float4 *)(stream_stage() + four.at) = {
            four.sum[0], four.sum[1], four.sum[2], four.sum[3]};
    }
    __syncwarp();
    sums_run(stream_stage(), ledger_word_signs(chunk), run->added);
    if (bad > 0) {
        (void)atomicAdd(left_out, bad);
    }
    if (rounds) {
        __syncwarp();
        stream_round(s, chunk, way);
    }
}

/* ------------------------------------------------------------------ a chunk */

/* The chunk's record, by one warp. */
DEVICE void stream_record(const struct stream *s, uint32_t chunk, const struct stream_runs *run,
    uint32_t left_out, struct slot_record *record)
{
    sums_record(run->added, chunk, record->sums);
    if (s->tensor->decay > 0) {
        sums_record(run->lost, chunk, record->lost);
        __syncwarp();
        if (device_lane() < 2) {
            record->sums[device_lane()] += record->lost[device_lane()];
        }
    }
    if (device_lane() == 0) {
        record->nonfinite = left_out;
    }
    __syncwarp();
}

/* Adds to the chunk's elements and publishes them, unless that has been done. Returns the slot
 * where they lie: a block that was not the first may have read a slot that others write to again.
 * velocity: as stream_sum() takes it. spare: the slot that the block writes to; only the first
 * thread's counts. */
DEVICE uint32_t stream_elements(
    const struct stream *s, uint32_t chunk, uint64_t velocity, uint32_t *spare)
{
    SHARED(uint32_t, left_out, 1);
    SHARED(double, added, SUMS_RUNS);
    SHARED(double, lost, SUMS_RUNS);
    const struct stream_runs run = {added, lost};
    const struct add_tensor *const tensor = s->tensor;

    if (threadIdx.x == 0) {
        left_out[0] = velocity != 0 && tensor->withdraw == 0
                          ? (uint32_t)s->velocities.record[slot_of(velocity)].nonfinite
                          : 0;
    }
    const struct stream_way way = stream_begin(&tensor->entry[chunk], *spare);
    if (slot_is_done(way.was, tensor->stamp)) {
        return slot_of(way.was);
    }
    stream_add(s, chunk, &way, velocity, &run, left_out);
    __syncthreads();
    if (device_warp() == 0) {
        stream_record(s, chunk, &run, left_out[0], &s->slots.record[way.mine]);
    }
    return stream_end(&s->slots, &tensor->entry[chunk], tensor->stamp, &way, spare);
}

/* The chunk's elements, and its velocity's: what is added depends on a velocity, so that this is
 * first when gradients come in, and last when they are withdrawn. Returns the elements' slot. */
DEVICE uint32_t stream_both(const struct stream *s, uint32_t chunk, struct stream_spares *spare)
{
    const struct add_tensor *const tensor = s->tensor;
    uint64_t velocity = 0;
    if (tensor->velocity != NULL) {
        velocity = tensor->withdraw == 0
                       ? momentum_chunk(tensor, &s->velocities, chunk, &spare->velocity)
                       : stream_begin(&tensor->velocity[chunk], spare->velocity).was;
    }
    const uint32_t lies = stream_elements(s, chunk, velocity, &spare->residual);
    if (velocity != 0 && tensor->withdraw != 0) {
        (void)momentum_chunk(tensor, &s->velocities, chunk, &spare->velocity);
    }
    return lies;
}

DEVICE void stream_chunk(const struct stream *s, uint32_t chunk, struct stream_spares *spare)
{
    const uint32_t slot = stream_both(s, chunk, spare);
    if (s->tensor->mode != ADD_NOTHING) {
        stream_select(s, chunk, slot);
    }
}

/* ------------------------------------------------------------------ the kernels */

/* A part of a tensor. */
DEVICE void stream_part(
    const struct add_batch *batch, const struct batch_part *part, struct stream_spares *spare)
{
    const struct stream *const s = stream_begin_part(batch, part->tensor);
    for (uint32_t chunk = part->first; chunk < part->end; chunk++) {
        stream_chunk(s, chunk, spare);
    }
    if (part->tensor->mode == ADD_TOP) {
        stream_end_part(batch, s, part, &s->top.counts->streamed);
    }
}

KERNEL_LARGE add_stream(const struct add_batch batch)
{
    const bool moves = threadIdx.x == 0 && batch.velocities.found != NULL;
    struct stream_spares spare = {threadIdx.x == 0 ? batch.slots.spare[blockIdx.x] : 0,
        moves ? batch.velocities.spare[blockIdx.x] : 0};
    batch_walk(&batch, blockIdx.x, [&](const struct batch_part *part) {
        if (part->tensor->plain == 0) {
            stream_part(&batch, part, &spare);
        }
    });
    if (threadIdx.x == 0) {
        batch.slots.spare[blockIdx.x] = spare.residual;
    }
    if (moves) {
        batch.velocities.spare[blockIdx.x] = spare.velocity;
    }
}
