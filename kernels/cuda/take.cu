/*
 * TAKE: what was sent of a dense tensor leaves the residual, and rests come back (add.h). The bits
 * are those of kernels/cpu/gradient.c.
 *
 * A batch of TAKE runs the kernels of ADD, with take_stream in the place of add_stream.
 */
#include "kernels/base/quantise.h"
#include "kernels/base/rests.h"
#include "kernels/cuda/stream.cuh"

/* Adds the rest of an element, if it has one, to its sum. */
DEVICE float take_rest(
    const struct add_tensor *tensor, const struct add_rest *rest, uint64_t element, float sum)
{
    const uint64_t i = element - rest->first;
    const enum dtype dtype = (enum dtype)tensor->dtype;
    if (element < rest->first || i >= rest->count) {
        return sum;
    }
    if (rest->exact != NULL) {
        return sum + rests_of_shown(rest->exact[i], dtype) * rest->shrink * rest->unscale;
    }
    if (rest->rounded != NULL) {
        const float rounded = rests_rounded(rest->rounded[i], rest->shrink);
        return sum + rests_of_sum(rounded, rest->low[i]) * rest->unscale;
    }
    const uint16_t bits = (uint16_t)rest->low[i];
    return sum + (tensor->take->values == QUANTISE_BF16 ? convert_bf16(bits) : convert_f16(bits));
}

/* What is added to an element: the opposite of what was sent, and the rests. */
DEVICE float take_sum(const struct add_tensor *tensor, uint64_t element, float x)
{
    const struct add_take *const take = tensor->take;
    float sum = take->nothing != 0 ? 0 : -rests_sent((enum quantisation)take->values, x);
    sum = take_rest(tensor, &take->rest[0], element, sum);
    return take_rest(tensor, &take->rest[1], element, sum);
}

/* Writes the chunk's new elements and what was added. Returns how many sums are so large that
 * take_large() has to look at them. */
DEVICE uint32_t take_elements(
    const struct add_tensor *tensor, uint32_t chunk, const float *old, float *fresh, float *added)
{
    uint32_t large = 0;
    for (uint32_t row = 0; row < ROWS; row++) {
        for (uint32_t i = 0; i < FOUR; i++) {
            const uint32_t at = stream_at(row) + i;
            const float sum = take_sum(tensor, (uint64_t)chunk * CHUNK + at, old[at]);
            const bool fits = !batch_is_fault(sum);
            large += !fits;
            added[at] = fits ? sum : -0.0f;
            fresh[at] = old[at] + added[at];
        }
    }
    return large;
}

/* Large sums are added, too; where one is not finite, nothing stays. One thread does so, in the
 * order of the elements. */
DEVICE void take_large(const struct add_tensor *tensor, uint32_t chunk, const float *old,
    float *fresh, struct slot_record *record)
{
    const uint64_t words = ledger_word_signs(chunk);
    const uint64_t lanes = ledger_lane_signs(chunk);
    for (uint32_t i = 0; i < batch_length(tensor, chunk); i++) {
        const float sum = take_sum(tensor, (uint64_t)chunk * CHUNK + i, old[i]);
        const bool finite = batch_key(sum) < RESTS_INFINITY;
        const double sign = ledger_is_negative(words, lanes, i) != 0 ? -1.0 : 1.0;
        if (batch_is_fault(sum)) {
            fresh[i] = finite ? fresh[i] + sum : 0;
            record->nonfinite += !finite;
            record->sums[0] += finite ? (double)sum : 0;
            record->sums[1] += finite ? (double)sum * sign : 0;
        }
    }
}

/* For all threads of a block, of a chunk that the pass has not changed. */
DEVICE void take_write(const struct add_batch *batch, const struct add_tensor *tensor,
    uint32_t chunk, const struct stream_way *way)
{
    SHARED(float, added, CHUNK);
    SHARED(double, run, SUMS_RUNS);
    SHARED(uint32_t, large, 1);
    const float *const old = batch_slot(&batch->slots, way->was);
    float *const fresh = batch_slot(&batch->slots, way->mine);
    struct slot_record *const record = &batch->slots.record[way->mine];
    if (threadIdx.x == 0) {
        large[0] = 0;
        record->nonfinite = 0;
    }
    __syncthreads();
    (void)atomicAdd(&large[0], take_elements(tensor, chunk, old, fresh, added));
    __syncwarp();
    sums_run(added, ledger_word_signs(chunk), run);
    __syncthreads();
    if (device_warp() == 0) {
        sums_record(run, chunk, record->sums);
        __syncwarp();
    }
    if (threadIdx.x == 0 && large[0] > 0) {
        take_large(tensor, chunk, old, fresh, record);
    }
}

DEVICE void take_chunk(
    const struct add_batch *batch, const struct add_tensor *tensor, uint32_t chunk, uint32_t *spare)
{
    const struct stream_way way = stream_begin(&tensor->entry[chunk], *spare);
    if (!slot_is_done(way.was, tensor->stamp)) {
        take_write(batch, tensor, chunk, &way);
        (void)stream_end(&batch->slots, &tensor->entry[chunk], tensor->stamp, &way, spare);
    }
}

KERNEL take_stream(const struct add_batch batch)
{
    uint32_t spare = threadIdx.x == 0 ? batch.slots.spare[blockIdx.x] : 0;
    batch_walk(&batch, blockIdx.x, [&](const struct batch_part *part) {
        for (uint32_t chunk = part->first; chunk < part->end; chunk++) {
            take_chunk(&batch, part->tensor, chunk, &spare);
        }
    });
    if (threadIdx.x == 0) {
        batch.slots.spare[blockIdx.x] = spare;
    }
}
