/*
 * All elements of residuals: read, saved, loaded, summed, or replaced by the sum of others
 * (whole.h).
 */
#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/rounding.cuh"
#include "kernels/cuda/sums.cuh"
#include "kernels/cuda/whole.h"

/* A chunk of the batch. */
struct whole_at {
    const struct whole_order *order;
    uint64_t number; /* in its order */
    uint64_t chunk;  /* of the residual */
    uint32_t length; /* elements */
};

DEVICE struct whole_at whole_find(const struct whole_batch *batch, uint64_t number)
{
    struct whole_at at;
    at.order = batch_find(batch->order, batch->orders, number);
    at.number = number - at.order->first;
    at.chunk = at.order->begin + at.number;
    const uint64_t rest = at.order->count - at.number * CHUNK;
    at.length = rest < CHUNK ? (uint32_t)rest : (uint32_t)CHUNK;
    return at;
}

/* Where the slot of a chunk begins in its pool. */
DEVICE uint64_t whole_slot(const uint64_t *entry, uint64_t chunk)
{
    return (uint64_t)slot_of(entry[chunk]) * CHUNK;
}

/* A residual that is read. */
struct whole_source {
    const uint64_t *entry;
    const struct carry *carry; /* NULL: it is in f32 */
};

/* What an element of a chunk in bf16 is in f32: the first ones take the chunk's carry. */
DEVICE float whole_wide(const struct whole_batch *batch, const struct whole_at *at,
    const struct whole_source *source, uint32_t i)
{
    const struct carry *const carry = &source->carry[slot_of(source->entry[at->chunk])];
    const float x = convert_bf16(batch->half[whole_slot(source->entry, at->chunk) + i]);
    return i < at->length ? rounded_wide(carry, at->chunk, at->length, i, x) : 0;
}

/* An element as it is read. */
DEVICE float whole_element(const struct whole_batch *batch, const struct whole_at *at,
    const struct whole_source *source, uint32_t i)
{
    return source->carry != NULL ? whole_wide(batch, at, source, i)
                                 : batch->element[whole_slot(source->entry, at->chunk) + i];
}

KERNEL whole_read(const struct whole_batch batch)
{
    for (uint64_t c = blockIdx.x; c < batch.chunks; c += gridDim.x) {
        const struct whole_at at = whole_find(&batch, c);
        const struct whole_order *const order = at.order;
        const struct whole_source source = {
            order->entry, order->rounded != 0 ? order->carry : NULL};
        for (uint32_t i = threadIdx.x; i < at.length; i += BLOCK) {
            const float x = whole_element(&batch, &at, &source, i) * order->factor;
            const uint64_t to = at.number * CHUNK + i;
            if (order->read != NULL) {
                order->read[to] = x;
            }
            for (uint32_t p = 0; p < order->places; p++) {
                order->place[p][to] = x;
            }
        }
    }
}

/* ------------------------------------------------------------------ images */

/* Copies elements of a chunk out of its slot, or into it. */
DEVICE void whole_move(const struct whole_batch *batch, const struct whole_at *at, bool loads)
{
    const uint64_t slot = whole_slot(at->order->entry, at->chunk), image = at->number * CHUNK;
    const bool rounded = at->order->rounded != 0;
    for (uint32_t i = threadIdx.x; i < at->length; i += BLOCK) {
        uint16_t *const half = (uint16_t *)at->order->image + image + i;
        float *const wide = (float *)at->order->image + image + i;
        if (rounded && loads) {
            batch->half[slot + i] = *half;
        } else if (rounded) {
            *half = batch->half[slot + i];
        } else if (loads) {
            batch->element[slot + i] = *wide;
        } else {
            *wide = batch->element[slot + i];
        }
    }
}

/* The same of its carry. */
DEVICE void whole_move_carry(const struct whole_at *at, bool loads)
{
    struct carry *const carry = &at->order->carry[slot_of(at->order->entry[at->chunk])];
    struct carry *const image = &at->order->image_carry[at->number];
    if (loads) {
        *carry = *image;
    } else {
        *image = *carry;
    }
}

/* The same of how far passes have come. A chunk keeps its slot, whatever the stamp. */
DEVICE void whole_move_progress(const struct whole_at *at, bool loads)
{
    struct whole_progress *const image = at->order->image_progress;
    uint64_t *const entry = &at->order->entry[at->chunk];
    struct slot_record *const record = &at->order->record[slot_of(*entry)];
    if (loads) {
        *record = image->chunk[at->chunk].record;
        *entry = slot_entry((uint32_t)image->chunk[at->chunk].stamp, slot_of(*entry));
    } else {
        image->chunk[at->chunk].record = *record;
        image->chunk[at->chunk].stamp = *entry >> 32;
        image->chunk[at->chunk].reserved = 0;
    }
    if (at->chunk == 0 && loads) {
        *at->order->before = image->before;
    } else if (at->chunk == 0) {
        image->before = *at->order->before;
        image->reserved = 0;
    }
}

DEVICE void whole_image(const struct whole_batch *batch, bool loads)
{
    for (uint64_t c = blockIdx.x; c < batch->chunks; c += gridDim.x) {
        const struct whole_at at = whole_find(batch, c);
        if (at.order->image != NULL) {
            whole_move(batch, &at, loads);
        }
        if (at.order->image_carry != NULL && at.order->rounded != 0 && threadIdx.x == 0) {
            whole_move_carry(&at, loads);
        }
        if (at.order->image_progress != NULL) {
            __syncthreads(); /* the entry has been read */
            if (threadIdx.x == 0) {
                whole_move_progress(&at, loads);
            }
        }
    }
}

KERNEL whole_save(const struct whole_batch batch)
{
    whole_image(&batch, false);
}

KERNEL whole_load(const struct whole_batch batch)
{
    whole_image(&batch, true);
}

/* ------------------------------------------------------------------ sums of others */

/* The sum of one element of the parts; behind the tensor's end they are zeros. */
DEVICE float whole_sum(const struct whole_batch *batch, const struct whole_at *at, uint32_t i)
{
    const struct whole_order *const order = at->order;
    float sum = 0;
    for (uint32_t p = 0; p < order->parts; p++) {
        const struct whole_source source = {
            order->part[p], order->from_rounded != 0 ? order->from_carry : NULL};
        const float x = whole_element(batch, at, &source, i);
        sum = p == 0 ? x : sum + x;
    }
    return sum;
}

/* A chunk in bf16 becomes what another is. */
DEVICE void whole_copy(const struct whole_batch *batch, const struct whole_at *at)
{
    const uint64_t *const from = at->order->part[0];
    const uint64_t *const to = at->order->entry;
    for (uint32_t i = threadIdx.x; i < CHUNK; i += BLOCK) {
        batch->half[whole_slot(to, at->chunk) + i] = batch->half[whole_slot(from, at->chunk) + i];
    }
    if (threadIdx.x == 0) {
        at->order->carry[slot_of(to[at->chunk])] = at->order->from_carry[slot_of(from[at->chunk])];
    }
}

/* A chunk in bf16 becomes the sum of the parts, rounded. */
DEVICE void whole_round(const struct whole_batch *batch, const struct whole_at *at)
{
    SHARED(float, x, CHUNK);
    const uint64_t slot = slot_of(at->order->entry[at->chunk]);
    const struct rounding_chunk rounding = {.seed = rounded_chunk(at->order->rounding, at->chunk),
        .signs = ledger_word_signs(at->chunk),
        .length = at->length};
    for (uint32_t i = threadIdx.x; i < CHUNK; i += BLOCK) {
        x[i] = whole_sum(batch, at, i);
    }
    rounding_run(&rounding, NULL, &at->order->carry[slot], x);
    for (uint32_t i = threadIdx.x; i < CHUNK; i += BLOCK) {
        batch->half[slot * CHUNK + i] = (uint16_t)(convert_bits(x[i]) >> 16);
    }
}

KERNEL whole_fill(const struct whole_batch batch)
{
    for (uint64_t c = blockIdx.x; c < batch.chunks; c += gridDim.x) {
        const struct whole_at at = whole_find(&batch, c);
        if (at.order->rounded != 0 && at.order->from_rounded != 0) {
            whole_copy(&batch, &at);
        } else if (at.order->rounded != 0) {
            whole_round(&batch, &at);
        } else {
            float *const to = batch.element + whole_slot(at.order->entry, at.chunk);
            for (uint32_t i = threadIdx.x; i < CHUNK; i += BLOCK) {
                to[i] = whole_sum(&batch, &at, i);
            }
        }
    }
}

/* ------------------------------------------------------------------ sums */

/* The sum of the chunk's magnitudes (ledger_magnitude()). Each warp sums its run, then the first
 * warp adds the runs. Only the first thread's result counts. */
DEVICE double whole_magnitude(const float *x, double *lanes)
{
    double sum = 0;
    for (uint32_t i = 0; i < SUMS_RUN; i += WARP) {
        const float value = x[device_warp() * SUMS_RUN + i + device_lane()];
        sum += (double)convert_float(batch_key(value));
    }
    lanes[threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        sum += lanes[w * WARP + device_lane()];
    }
    for (uint32_t distance = WARP / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(WARP_ALL, sum, distance);
    }
    return sum;
}

KERNEL whole_sums(const struct whole_batch batch)
{
    SHARED(float, x, CHUNK);
    SHARED(double, run, SUMS_RUNS);
    SHARED(double, lanes, BLOCK);
    for (uint64_t c = blockIdx.x; c < batch.chunks; c += gridDim.x) {
        const struct whole_at at = whole_find(&batch, c);
        const uint64_t from = whole_slot(at.order->entry, at.chunk);
        const bool rounded = at.order->rounded != 0;
        for (uint32_t i = 0; i < SUMS_RUN; i += WARP) {
            const uint32_t mine = device_warp() * SUMS_RUN + i + device_lane();
            x[mine] = rounded ? convert_bf16(batch.half[from + mine]) : batch.element[from + mine];
        }
        __syncwarp();
        sums_run(x, ledger_word_signs((uint32_t)at.chunk), run);
        const double magnitude = whole_magnitude(x, lanes);
        if (device_warp() == 0) {
            sums_record(run, (uint32_t)at.chunk, at.order->chunk[at.number].sums);
        }
        if (threadIdx.x == 0) {
            at.order->chunk[at.number].magnitude = magnitude;
        }
        __syncthreads();
    }
}

/* Adds a chunk's carry to a sum of its residual, to the plain one (kind 0) or the signed one. */
DEVICE double whole_carry(const struct carry *carry, uint64_t chunk, uint32_t kind, double sum)
{
    const uint64_t lanes = ledger_lane_signs(chunk);
    for (uint32_t l = 0; l < LEDGER_LANES; l++) {
        const double plus = (double)carry->of[0][l];
        const double minus = (double)carry->of[1][l];
        const double hashed = (lanes >> l & 1u) != 0 ? minus - plus : plus - minus;
        sum += kind == 0 ? plus + minus : hashed;
    }
    return sum;
}

/* The chunks are added in their order: a thread for each sum. */
KERNEL_LARGE whole_total(const struct whole_batch batch)
{
    for (uint32_t o = blockIdx.x; o < batch.orders && threadIdx.x < 3; o += gridDim.x) {
        const struct whole_order *const order = &batch.order[o];
        const double *const chunk = &order->chunk[0].sums[0] + threadIdx.x;
        double sum = 0;
        for (uint64_t c = 0; c < chunk_count(order->count); c++) {
            sum += chunk[3 * c];
            if (order->rounded != 0 && threadIdx.x < 2) {
                sum = whole_carry(&order->carry[slot_of(order->entry[c])], c, threadIdx.x, sum);
            }
        }
        (&order->sums->sums[0])[threadIdx.x] = sum;
    }
}
