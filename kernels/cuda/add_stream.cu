/*
 * The pass over the elements: residual += gradients, the ledger's sums of every chunk, and the
 * elements that reach their bounds (add.h). It reads and writes 12 bytes per element with f32
 * gradients, 10 with 16-bit ones; with a residual in bf16 it is 8 or 6.
 *
 * A block takes one chunk after the other, with four neighbours per thread at a time. Warp w has
 * the elements of the ledger's run w, so only the warp's own threads sum what it has added.
 */
#include "kernels/cuda/decay.cuh"
#include "kernels/cuda/momentum.cuh"
#include "kernels/cuda/rounding.cuh"
#include "kernels/cuda/top.cuh"

/* Candidates of a fibre reach this share of its last threshold. */
#define STREAM_SHARE 0.97f

/* A part of a tensor on its way through a block. */
struct stream {
    const struct add_tensor *tensor;
    struct slots slots, velocities;
    bool looks;     /* nothing is added */
    uint32_t least; /* TOP: bound and bins */
    uint32_t shift;
    uint32_t *bins; /* shared */
    struct top_scratch top;
    struct fibres_scratch fibres;
};

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
    sums_run(shared, chunk, run);
    __syncwarp();
}

DEVICE void stream_read(const struct slots *slots, uint64_t entry, float *x)
{
    for (uint32_t row = 0; row < ROWS; row++) {
        const float4 was = stream_load(slots, entry, stream_at(row));
        x[row * FOUR] = was.x;
        x[row * FOUR + 1] = was.y;
        x[row * FOUR + 2] = was.z;
        x[row * FOUR + 3] = was.w;
    }
}

/* Rounds the thread's elements x of a chunk that lies in the slot of `was`, and writes them to the
 * slot `mine`. shared: CHUNK elements, of which the warp has no more need. */
DEVICE void stream_round(
    const struct stream *s, uint32_t chunk, uint64_t was, uint32_t mine, float *shared, float *x)
{
    const struct slots *const slots = &s->slots;
    const struct rounding_chunk rounding = {.seed = rounded_chunk(s->tensor->rounding, chunk),
        .signs = ledger_word_signs(chunk),
        .length = batch_length(s->tensor, chunk)};
    for (uint32_t row = 0; row < ROWS; row++) {
        const float *const four = x + row * FOUR;
        *(float4 *)(shared + stream_at(row)) = {four[0], four[1], four[2], four[3]};
    }
    rounding_run(&rounding, &slots->carry[slot_of(was)], &slots->carry[mine], shared);
    for (uint32_t row = 0; row < ROWS; row++) {
        const float4 four = *(const float4 *)(shared + stream_at(row));
        x[row * FOUR] = four.x;
        x[row * FOUR + 1] = four.y;
        x[row * FOUR + 2] = four.z;
        x[row * FOUR + 3] = four.w;
        stream_store_half(batch_half(slots, mine) + stream_at(row), four);
    }
}

/* The sums of the runs of a chunk: of what was added, and of what decay took. */
struct stream_runs {
    double *added, *lost;
};

/* Adds to the elements that lie in the slot of `was`, writes them to the slot `mine`, and sums what
 * it has added. velocity: see stream_gradients(). */
DEVICE void stream_add(const struct stream *s, uint32_t chunk, const struct stream_way *way,
    uint64_t velocity, float *x, const struct stream_runs *run, uint32_t *left_out)
{
    SHARED(float, added, CHUNK);
    const bool rounds = s->slots.element == NULL;
    uint32_t bad = 0;
    if (s->tensor->decay > 0) {
        stream_decay(s, chunk, way->was, added, run->lost);
    }
    UNROLL
    for (uint32_t row = 0; row < ROWS; row++) {
        struct stream_four four;
        float *const fresh = x + row * FOUR;
        four.at = stream_at(row);
        four.old = stream_load(&s->slots, way->was, four.at);
        bad += stream_sum(s, chunk, velocity, &four);
        fresh[0] = four.old.x + four.sum[0];
        fresh[1] = four.old.y + four.sum[1];
        fresh[2] = four.old.z + four.sum[2];
        fresh[3] = four.old.w + four.sum[3];
        if (!rounds) {
            *(float4 *)(batch_slot(&s->slots, way->mine) + four.at) = {
                fresh[0], fresh[1], fresh[2], fresh[3]};
        }
        *(float4 *)(added + four.at) = {four.sum[0], four.sum[1], four.sum[2], four.sum[3]};
    }
    __syncwarp();
    sums_run(added, chunk, run->added);
    if (bad > 0) {
        (void)atomicAdd(left_out, bad);
    }
    if (rounds) {
        __syncwarp();
        stream_round(s, chunk, way->was, way->mine, added, x);
    }
}

/* ------------------------------------------------------------------ candidates */

/* TOP: bit i is set if the thread's element i is a candidate; counts them in their bins. */
DEVICE uint32_t stream_mask(const struct stream *s, uint32_t length, const float *x)
{
    uint32_t mask = 0;
    for (uint32_t i = 0; i < ROWS * FOUR; i++) {
        const uint32_t key = batch_key(x[i]);
        if (key >= s->least && stream_at(i / FOUR) + i % FOUR < length) {
            const uint32_t bin = (key - s->least) >> s->shift;
            (void)atomicAdd(&s->bins[bin < ADD_BINS ? bin : (uint32_t)ADD_BINS], 1u);
            mask |= 1u << i;
        }
    }
    return mask;
}

/* How many candidates each row of the thread has, one byte per row. */
DEVICE uint32_t stream_rows(uint32_t mask)
{
    uint32_t rows = 0;
    for (uint32_t row = 0; row < ROWS; row++) {
        rows |= (uint32_t)__popc(mask >> row * FOUR & 0xfu) << row * 8;
    }
    return rows;
}

DEVICE uint32_t stream_bytes(uint32_t rows)
{
    return (rows & 0xffu) + (rows >> 8 & 0xffu) + (rows >> 16 & 0xffu) + (rows >> 24);
}

/* Writes the thread's candidates to the chunk's slice, in the order of their positions. before: how
 * many each row has in lanes before this one, all: in all lanes. */
DEVICE void stream_slice(const struct stream *s, uint32_t chunk, const float *x, uint32_t mask,
    uint32_t place, uint32_t before, uint32_t all)
{
    const uint64_t slice = (uint64_t)chunk * s->tensor->room;
    for (uint32_t row = 0; row < ROWS; row++) {
        uint32_t at = place + (before >> row * 8 & 0xffu);
        for (uint32_t i = row * FOUR; i < (row + 1) * FOUR; i++) {
            if ((mask >> i & 1u) != 0 && at < s->tensor->room) {
                s->top.position[slice + at] = chunk * CHUNK + stream_at(row) + i % FOUR;
                s->top.value[slice + at] = x[i];
            }
            at += mask >> i & 1u;
        }
        place += all >> row * 8 & 0xffu;
    }
}

/* An element among its fibres. */
struct stream_fibre {
    uint32_t slab, in_fibre, in_slab; /* its fibre is slab * stride + in_slab */
};

/* The least key of a fibre's candidates. Without hints all elements are candidates that are not 0.
 */
DEVICE uint32_t stream_least(const struct stream *s, uint32_t fibre)
{
    if (s->tensor->hints == NULL) {
        return 1;
    }
    const float bound = s->tensor->hints[fibre] * STREAM_SHARE;
    return bound > 0 ? convert_bits(bound) : TOP_NONE;
}

DEVICE void stream_deal(
    const struct stream *s, uint32_t stride, const struct stream_fibre *at, float x)
{
    const uint32_t fibre = at->slab * stride + at->in_slab;
    if (batch_key(x) >= stream_least(s, fibre)) {
        const uint32_t place = atomicAdd(&s->fibres.dealt[fibre], 1u);
        if (place < s->tensor->room) {
            s->fibres.position[(uint64_t)fibre * s->tensor->room + place] = at->in_fibre;
            s->fibres.value[(uint64_t)fibre * s->tensor->room + place] = x;
        }
    }
}

/* FIBRES: deals the thread's candidates to their fibres. Zeros are none, and fibres without a
 * bound have none. */
DEVICE void stream_fibres(const struct stream *s, uint32_t chunk, uint32_t length, const float *x)
{
    const uint32_t stride = (uint32_t)s->tensor->view.stride;
    const uint32_t whole = (uint32_t)s->tensor->view.length;
    for (uint32_t row = 0; row < ROWS; row++) {
        const uint32_t element = chunk * CHUNK + stream_at(row);
        const uint32_t slab = element / (whole * stride);
        const uint32_t rest = element % (whole * stride);
        struct stream_fibre at = {slab, rest / stride, rest % stride};
        for (uint32_t i = 0; i < FOUR && stream_at(row) + i < length; i++) {
            stream_deal(s, stride, &at, x[row * FOUR + i]);
            at.in_slab = at.in_slab + 1 < stride ? at.in_slab + 1 : 0;
            at.in_fibre += at.in_slab == 0;
            at.slab += at.in_fibre == whole;
            at.in_fibre = at.in_fibre < whole ? at.in_fibre : 0;
        }
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

/* Adds to the chunk's elements and publishes them, unless that has been done. x: all of the
 * thread's elements, as they are visible. A block that was not the first may have read a slot that
 * others write to again, so it reads the chunk once more. velocity: as stream_sum() takes it.
 * spare: the slot that the block writes to; only the first thread's counts. */
DEVICE void stream_elements(
    const struct stream *s, uint32_t chunk, uint64_t velocity, uint32_t *spare, float *x)
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
    if (s->looks || slot_is_done(way.was, tensor->stamp)) {
        stream_read(&s->slots, way.was, x);
        return;
    }
    stream_add(s, chunk, &way, velocity, x, &run, left_out);
    __syncthreads();
    if (device_warp() == 0) {
        stream_record(s, chunk, &run, left_out[0], &s->slots.record[way.mine]);
    }
    const uint32_t lies = stream_end(&s->slots, &tensor->entry[chunk], tensor->stamp, &way, spare);
    if (lies != way.mine) {
        stream_read(&s->slots, lies, x);
    }
}

/* The chunk's elements, and its velocity's: what is added depends on a velocity, so that this is
 * first when gradients come in, and last when they are withdrawn. */
DEVICE void stream_both(
    const struct stream *s, uint32_t chunk, struct stream_spares *spare, float *x)
{
    const struct add_tensor *const tensor = s->tensor;
    uint64_t velocity = 0;
    if (tensor->velocity != NULL && !s->looks) {
        velocity = tensor->withdraw == 0
                       ? momentum_chunk(tensor, &s->velocities, chunk, &spare->velocity)
                       : stream_begin(&tensor->velocity[chunk], spare->velocity).was;
    }
    stream_elements(s, chunk, velocity, &spare->residual, x);
    if (velocity != 0 && tensor->withdraw != 0) {
        (void)momentum_chunk(tensor, &s->velocities, chunk, &spare->velocity);
    }
}

/* Finds the candidates of a chunk and puts them where they belong. */
DEVICE void stream_top(const struct stream *s, uint32_t chunk, const float *x)
{
    SHARED(uint32_t, found, WARPS);
    const uint32_t mask = stream_mask(s, batch_length(s->tensor, chunk), x);
    uint32_t all;
    const uint32_t before = device_scan_warp(stream_rows(mask), &all);
    uint32_t place = 0;
    uint32_t count = 0;
    if (device_lane() == 0) {
        found[device_warp()] = stream_bytes(all);
    }
    __syncthreads();
    for (uint32_t w = 0; w < WARPS; w++) {
        place += w < device_warp() ? found[w] : 0;
        count += found[w];
    }
    stream_slice(s, chunk, x, mask, place, before, all);
    if (threadIdx.x == 0) {
        s->top.chunk[chunk].count = count;
    }
}

DEVICE void stream_chunk(const struct stream *s, uint32_t chunk, struct stream_spares *spare)
{
    float x[ROWS * FOUR];
    stream_both(s, chunk, spare, x);
    if (s->tensor->mode == ADD_TOP) {
        stream_top(s, chunk, x);
    } else if (s->tensor->mode == ADD_FIBRES) {
        stream_fibres(s, chunk, batch_length(s->tensor, chunk), x);
    }
}

/* ------------------------------------------------------------------ the kernels */

/* A part of a tensor; the block that completes the tensor finds out whether the bound was right. */
DEVICE void stream_part(const struct add_batch *batch, const struct batch_part *part,
    uint32_t *bins, struct stream_spares *spare, bool looks)
{
    const struct add_tensor *const tensor = part->tensor;
    const bool top = tensor->mode == ADD_TOP;
    struct stream s;
    s.tensor = tensor;
    s.slots = batch->slots;
    s.velocities = batch->velocities;
    s.looks = looks;
    s.top = scratch_top(tensor);
    s.fibres = scratch_fibres(tensor);
    s.bins = bins;
    s.least = top ? s.top.state->least : 0;
    s.shift = top ? s.top.state->shift : 0;
    if (top) {
        bins_clear(bins, ADD_BINS + 1);
    }
    for (uint32_t chunk = part->first; chunk < part->end; chunk++) {
        stream_chunk(&s, chunk, spare);
    }
    if (top) {
        bins_flush(bins, ADD_BINS + 1, s.top.counts->bins);
        if (device_is_last(looks ? &s.top.counts->collected : &s.top.counts->streamed,
                part->end - part->first, (uint32_t)chunk_count(tensor->numel))) {
            top_settle(tensor, &s.top);
        }
    }
}

KERNEL add_stream(const struct add_batch batch)
{
    SHARED(uint32_t, bins, ADD_BINS + 1);
    const uint32_t end = batch_share(&batch, blockIdx.x + 1);
    uint32_t at = batch_share(&batch, blockIdx.x);
    const bool moves = threadIdx.x == 0 && batch.velocities.found != NULL;
    struct stream_spares spare = {threadIdx.x == 0 ? batch.slots.spare[blockIdx.x] : 0,
        moves ? batch.velocities.spare[blockIdx.x] : 0};
    while (at < end) {
        const struct batch_part part = batch_part(&batch, at, end);
        stream_part(&batch, &part, bins, &spare, false);
        at += part.end - part.first;
    }
    if (threadIdx.x == 0) {
        batch.slots.spare[blockIdx.x] = spare.residual;
    }
    if (moves) {
        batch.velocities.spare[blockIdx.x] = spare.velocity;
    }
}

/* Once more for tensors whose bound was wrong, with one that is right. */
KERNEL top_collect(const struct add_batch batch)
{
    SHARED(uint32_t, bins, ADD_BINS + 1);
    const uint32_t end = batch_share(&batch, blockIdx.x + 1);
    uint32_t at = batch_share(&batch, blockIdx.x);
    struct stream_spares spare = {0, 0};
    while (at < end) {
        const struct batch_part part = batch_part(&batch, at, end);
        if (part.tensor->mode == ADD_TOP && scratch_top(part.tensor).state->again != 0) {
            stream_part(&batch, &part, bins, &spare, true);
        }
        at += part.end - part.first;
    }
}
