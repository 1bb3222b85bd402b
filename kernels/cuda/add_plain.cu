/*
 * The pass over plain tensors: one gradient is added to a residual in f32 that neither decays nor
 * has momentum (add.h). Nearly all tensors are such ones, so this must be as fast as memory.
 * add_stream.cu does the others.
 *
 * While some blocks of a multiprocessor wait for elements, others work. A block has two barriers
 * per chunk:
 *
 * - All warps read, add, sum the ledger's runs, and look for candidates. One publishes the chunk
 *   before.
 * - Barrier: the spare slot is known, and how many candidates each warp has.
 * - All warps write the elements to the spare slot, and the candidates to the slice.
 * - Barrier: everything is written. One warp, another one for each chunk, writes the record.
 *
 * Failure: where another attempt has published the chunk, what was read may be of neither attempt.
 * Then the tensor's candidates count as wrong, and are found again (stream_spoil()).
 */
#include <math.h>

#include "kernels/cuda/candidates.cuh"

enum { PLAIN_RING = 4 }; /* chunks whose entries a block knows */

/* What a block shares. Runs and counts are those of this chunk and the one before. */
struct plain_shared {
    double run[2][SUMS_RUNS];
    uint64_t was[PLAIN_RING];   /* entries */
    uint64_t signs[PLAIN_RING]; /* of the ledger's words */
    uint32_t found[2][WARPS];   /* candidates */
    uint32_t left_out[2];
    uint32_t spare;
    uint32_t dtype, stamp; /* of the tensor, for which threads have no registers */
    float factor;
    const void *gradient;
};

/* A tensor on its way through a block. */
struct plain {
    const struct stream *s;
    struct plain_shared *shared;
};

/* The thread's elements of a chunk as they were, and its gradients: of a 16-bit type, the bits of
 * four of them are in x and y. */
struct plain_loaded {
    float4 old[ROWS], added[ROWS];
};

/* By one thread. spare: the slot that the block writes to. */
DEVICE void plain_begin(const struct plain *p, uint32_t spare)
{
    const struct add_tensor *const tensor = p->s->tensor;
    const float factor = gradient_factor(tensor);
    struct plain_shared *const shared = p->shared;
    shared->gradient = tensor->gradient[0];
    shared->dtype = tensor->dtype;
    shared->stamp = tensor->stamp;
    shared->factor = factor == 0 ? 1 : factor;
    shared->left_out[0] = shared->left_out[1] = 0;
    shared->spare = spare;
}

/* ------------------------------------------------------------------ what is read */

/* By one thread: the entry of a chunk. It is told before the next barrier. */
DEVICE uint64_t plain_fetch(const struct plain *p, uint32_t chunk, uint32_t end)
{
    return chunk < end ? device_load(&p->s->tensor->entry[chunk]) : 0;
}

/* The same: tells it, and the chunk's signs. */
DEVICE void plain_tell(const struct plain *p, uint32_t chunk, uint64_t was)
{
    p->shared->was[chunk % PLAIN_RING] = was;
    p->shared->signs[chunk % PLAIN_RING] = ledger_word_signs(chunk);
}

/* For all threads of a block: the entries of a chunk and the one behind it. */
DEVICE void plain_learn(const struct plain *p, uint32_t chunk, uint32_t end)
{
    __syncthreads(); /* what was known has been read */
    if (threadIdx.x == 0) {
        plain_tell(p, chunk, plain_fetch(p, chunk, end));
        plain_tell(p, chunk + 1, plain_fetch(p, chunk + 1, end));
    }
    __syncthreads();
}

/* Whether the pass has not changed the chunk yet. */
DEVICE bool plain_is_due(const struct plain *p, uint32_t chunk)
{
    return !slot_is_done(p->shared->was[chunk % PLAIN_RING], p->shared->stamp);
}

/* The first ones of four gradients; zeros behind them. */
DEVICE float4 plain_first(const struct plain *p, uint64_t at, uint32_t count)
{
    uint32_t bits[FOUR] = {0, 0, 0, 0};
    UNROLL
    for (uint32_t i = 0; i < FOUR; i++) {
        if (i < count && p->shared->dtype == DTYPE_F32) {
            bits[i] = ((const uint32_t *)p->shared->gradient)[at + i];
        } else if (i < count) {
            bits[i / 2] |= (uint32_t)((const uint16_t *)p->shared->gradient)[at + i] << i % 2 * 16;
        }
    }
    return {convert_float(bits[0]), convert_float(bits[1]), convert_float(bits[2]),
        convert_float(bits[3])};
}

DEVICE void plain_load(
    const struct plain *p, uint32_t chunk, uint32_t length, struct plain_loaded *loaded)
{
    const float *const old = batch_slot(&p->s->slots, p->shared->was[chunk % PLAIN_RING]);
    const uint64_t first = (uint64_t)chunk * CHUNK;
    UNROLL
    for (uint32_t row = 0; row < ROWS; row++) {
        loaded->old[row] = *(const float4 *)(old + stream_at(row));
    }
    UNROLL
    for (uint32_t row = 0; row < ROWS; row++) {
        const uint64_t at = first + stream_at(row);
        if (length < CHUNK) {
            loaded->added[row] =
                plain_first(p, at, stream_at(row) < length ? length - stream_at(row) : 0);
        } else if (p->shared->dtype == DTYPE_F32) {
            loaded->added[row] = *(const float4 *)((const float *)p->shared->gradient + at);
        } else {
            const uint2 four = *(const uint2 *)((const uint16_t *)p->shared->gradient + at);
            loaded->added[row] = {convert_float(four.x), convert_float(four.y), 0, 0};
        }
    }
}

/* ------------------------------------------------------------------ adding */

/* Four gradients, scaled. */
DEVICE void plain_gradients(const struct plain *p, float4 from, float *four)
{
    const uint32_t low = convert_bits(from.x);
    const uint32_t high = convert_bits(from.y);
    if (p->shared->dtype == DTYPE_F32) {
        four[0] = from.x;
        four[1] = from.y;
        four[2] = from.z;
        four[3] = from.w;
    } else {
        four[0] = gradient_convert(p->shared->dtype, low & 0xffffu);
        four[1] = gradient_convert(p->shared->dtype, low >> 16);
        four[2] = gradient_convert(p->shared->dtype, high & 0xffffu);
        four[3] = gradient_convert(p->shared->dtype, high >> 16);
    }
    if (p->shared->factor != 1) {
        UNROLL
        for (uint32_t i = 0; i < FOUR; i++) {
            four[i] = gradient_scale(four[i], p->shared->factor);
        }
    }
}

/* Makes -0 of what is not finite; returns how many are not. */
DEVICE uint32_t plain_leave_out(float *four)
{
    uint32_t left_out = 0;
    UNROLL
    for (uint32_t i = 0; i < FOUR; i++) {
        const bool finite = fabsf(four[i]) < KERNEL_FINITE_LIMIT;
        left_out += !finite;
        four[i] = finite ? four[i] : -0.0f;
    }
    return left_out;
}

DEVICE bool plain_is_finite(const float *four)
{
    return fabsf(four[0]) < KERNEL_FINITE_LIMIT && fabsf(four[1]) < KERNEL_FINITE_LIMIT &&
           fabsf(four[2]) < KERNEL_FINITE_LIMIT && fabsf(four[3]) < KERNEL_FINITE_LIMIT;
}

/* x: the thread's new elements. What is added gets into the stage. */
DEVICE void plain_add(
    const struct plain *p, uint32_t chunk, uint32_t length, uint32_t *left_out, float *x)
{
    struct plain_loaded loaded;
    plain_load(p, chunk, length, &loaded);
    UNROLL
    for (uint32_t row = 0; row < ROWS; row++) {
        float *const fresh = x + row * FOUR;
        const float4 old = loaded.old[row];
        float four[FOUR];
        plain_gradients(p, loaded.added[row], four);
        UNROLL
        for (uint32_t i = 0; i < FOUR; i++) { /* the factor may be infinite */
            four[i] = length == CHUNK || stream_at(row) + i < length ? four[i] : 0;
        }
        if (!plain_is_finite(four)) {
            (void)atomicAdd(left_out, plain_leave_out(four));
        }
        *(float4 *)(stream_stage() + stream_at(row)) = {four[0], four[1], four[2], four[3]};
        fresh[0] = old.x + four[0];
        fresh[1] = old.y + four[1];
        fresh[2] = old.z + four[2];
        fresh[3] = old.w + four[3];
    }
}

/* ------------------------------------------------------------------ publishing */

/* By the chunk's own warp: the record of a chunk that all warps have written to the spare slot. */
DEVICE void plain_record(const struct plain *p, uint32_t chunk, uint32_t spare)
{
    struct slot_record *const record = &p->s->slots.record[spare];
    uint32_t *const left_out = &p->shared->left_out[chunk % 2];
    sums_record(p->shared->run[chunk % 2], chunk, record->sums);
    if (device_lane() == 0) {
        record->nonfinite = *left_out;
        *left_out = 0;
    }
    __syncwarp();
}

/* By one thread, of the same warp. */
DEVICE void plain_publish(const struct plain *p, uint32_t chunk)
{
    const uint32_t spare = p->shared->spare;
    const struct slots *const slots = &p->s->slots;
    const uint64_t was = p->shared->was[chunk % PLAIN_RING];
    uint64_t *const entry = &p->s->tensor->entry[chunk];
    slots->owner[spare] = slot_owner(slots, entry);
    __threadfence();
    const bool first = device_swap(entry, was, slot_entry(p->shared->stamp, spare)) == was;
    p->shared->spare = first ? slot_of(was) : spare;
    if (!first) {
        stream_spoil(p->s, chunk);
    }
}

/* Whether the thread is the one that publishes the chunk. */
DEVICE bool plain_publishes(uint32_t chunk)
{
    return threadIdx.x == chunk % WARPS * WARP;
}

/* ------------------------------------------------------------------ a chunk */

/* follows: the chunk before has to be published. */
DEVICE void plain_chunk(const struct plain *p, uint32_t chunk, uint32_t end, bool follows)
{
    struct plain_shared *const shared = p->shared;
    const uint32_t mode = p->s->tensor->mode;
    const uint32_t length = batch_length(p->s->tensor, chunk);
    struct stream_found found = {0, 0, 0};
    uint64_t fetched = 0;
    float x[ROWS * FOUR];
    if (threadIdx.x == 0) {
        fetched = plain_fetch(p, chunk + 2, end);
    }
    plain_add(p, chunk, length, &shared->left_out[chunk % 2], x);
    __syncwarp();
    sums_run(stream_stage(), shared->signs[chunk % PLAIN_RING], shared->run[chunk % 2]);
    __syncwarp(); /* the runs have been summed */
    stream_set(x);
    if (mode == ADD_TOP) {
        found = stream_look(p->s, length, x, shared->found[chunk % 2]);
    } else if (mode == ADD_FIBRES) {
        stream_fibres(p->s, chunk, length);
    }
    if (threadIdx.x == 0) {
        plain_tell(p, chunk + 2, fetched);
    }
    if (follows && plain_publishes(chunk - 1)) {
        plain_publish(p, chunk - 1); /* so late that its elements have got to memory */
    }
    __syncthreads();
    const uint32_t spare = shared->spare;
    UNROLL
    for (uint32_t row = 0; row < ROWS; row++) {
        *(float4 *)(batch_slot(&p->s->slots, spare) + stream_at(row)) =
            *(const float4 *)(stream_stage() + stream_at(row));
    }
    if (mode == ADD_TOP) {
        stream_place(p->s, chunk, &found, shared->found[chunk % 2]);
    }
    __syncthreads();
    if (device_warp() == chunk % WARPS) {
        plain_record(p, chunk, spare);
    }
}

/* From a chunk that is due to the next one that is not, or the end. Returns that. */
DEVICE uint32_t plain_chunks(const struct plain *p, uint32_t chunk, uint32_t end)
{
    const uint32_t first = chunk;
    for (; chunk < end && plain_is_due(p, chunk); chunk++) {
        plain_chunk(p, chunk, end, chunk > first);
    }
    if (plain_publishes(chunk - 1)) {
        plain_publish(p, chunk - 1);
    }
    __syncthreads(); /* it is published */
    return chunk;
}

/* A chunk that another attempt has done, perhaps just now: only candidates are found. */
DEVICE void plain_done(const struct plain *p, uint32_t chunk, uint32_t end)
{
    if (threadIdx.x == 0) {
        __threadfence(); /* it has read the entry */
    }
    __syncthreads();
    if (p->s->tensor->mode != ADD_NOTHING) {
        stream_select(p->s, chunk, slot_of(p->shared->was[chunk % PLAIN_RING]));
    }
    plain_learn(p, chunk + 1, end);
}

/* spare: the slot that the block writes to; only the first thread's counts. */
DEVICE void plain_part(
    const struct add_batch *batch, const struct batch_part *part, uint32_t *spare)
{
    SHARED(struct plain_shared, shared, 1);
    const struct stream *const s = stream_begin_part(batch, part->tensor);
    const struct plain p = {s, shared};
    if (threadIdx.x == 0) {
        plain_begin(&p, *spare);
    }
    __syncthreads();
    plain_learn(&p, part->first, part->end);
    for (uint32_t chunk = part->first; chunk < part->end;) {
        if (plain_is_due(&p, chunk)) {
            chunk = plain_chunks(&p, chunk, part->end);
        } else {
            plain_done(&p, chunk++, part->end);
        }
    }
    if (threadIdx.x == 0) {
        *spare = shared->spare;
    }
    if (part->tensor->mode == ADD_TOP) {
        stream_end_part(batch, s, part, &s->top.counts->streamed);
    }
}

KERNEL add_plain(const struct add_batch batch)
{
    uint32_t spare = threadIdx.x == 0 ? batch.slots.spare[blockIdx.x] : 0;
    batch_walk(&batch, blockIdx.x, [&](const struct batch_part *part) {
        if (part->tensor->plain != 0) {
            plain_part(&batch, part, &spare);
        }
    });
    if (threadIdx.x == 0) {
        batch.slots.spare[blockIdx.x] = spare;
    }
}
