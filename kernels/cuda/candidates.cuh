/*
 * The candidates of a chunk, among which add_finish selects: of a tensor, in the chunk's slice; of
 * fibres, dealt to them. A block has the chunk's elements on its *stage*, in shared memory.
 */
#ifndef ADTOPK_KERNELS_CANDIDATES_CUH
#define ADTOPK_KERNELS_CANDIDATES_CUH

#include "kernels/cuda/gradient.cuh"
#include "kernels/cuda/top.cuh"

/* An element among the fibres: its fibre is slab * stride + in_slab. Or how far two elements are
 * apart. */
struct stream_fibre {
    uint32_t slab, in_fibre, in_slab;
};

/* A part of a tensor on its way through a block. */
struct stream {
    const struct add_tensor *tensor;
    struct slots slots, velocities;
    uint32_t least; /* TOP: bound and bins */
    uint32_t shift;
    struct top_scratch top;
    struct fibres_scratch fibres;
    struct stream_fibre row; /* FIBRES: from one of a thread's rows to the next */
};

/* The stage. */
DEVICE float *stream_stage(void)
{
    SHARED(float, stage, CHUNK);
    return stage;
}

/* Puts the thread's own elements there. */
DEVICE void stream_set(const float *x)
{
    UNROLL
    for (uint32_t row = 0; row < ROWS; row++) {
        const float *const four = x + row * FOUR;
        *(float4 *)(stream_stage() + stream_at(row)) = {four[0], four[1], four[2], four[3]};
    }
}

/* The block's candidates of a tensor, in bins. */
DEVICE uint32_t *stream_bins(void)
{
    SHARED(uint32_t, bins, ADD_BINS + 1);
    return bins;
}

/* ------------------------------------------------------------------ of a tensor */

/* TOP: counts a candidate in its bin. */
DEVICE void stream_count(const struct stream *s, uint32_t key)
{
    const uint32_t bin = (key - s->least) >> s->shift;
    (void)atomicAdd(&stream_bins()[bin < ADD_BINS ? bin : (uint32_t)ADD_BINS], 1u);
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

/* The thread's candidates: bit i is set if its element i is one. */
struct stream_found {
    uint32_t mask;
    uint32_t before, all; /* in the warp's lanes before this one, and in all: a byte per row */
};

/* Of four neighbours that lie at `at` and behind, those that are no elements of the tensor. */
DEVICE uint32_t stream_behind(uint32_t at, uint32_t length)
{
    const uint32_t there = at < length ? length - at : 0;
    return there < FOUR ? 0xfu << there & 0xfu : 0;
}

/* Finds the thread's candidates among its elements x. count: how many each warp has. */
DEVICE struct stream_found stream_look(
    const struct stream *s, uint32_t length, const float *x, uint32_t *count)
{
    struct stream_found found = {0, 0, 0};
    UNROLL
    for (uint32_t i = 0; i < ROWS * FOUR; i++) {
        found.mask |= (uint32_t)(batch_key(x[i]) >= s->least) << i;
    }
    for (uint32_t row = 0; length < CHUNK && row < ROWS; row++) {
        found.mask &= ~(stream_behind(stream_at(row), length) << row * FOUR);
    }
    found.before = device_scan_warp(stream_rows(found.mask), &found.all);
    if (device_lane() == 0) {
        count[device_warp()] = stream_bytes(found.all);
    }
    return found;
}

/* Where in the slice the thread's candidates of a row begin, if the warp's begin at `place`. */
DEVICE uint32_t stream_row(const struct stream_found *found, uint32_t place, uint32_t row)
{
    const uint32_t rows = found->all & ((1u << row * 8) - 1); /* those before */
    return place + stream_bytes(rows) + (found->before >> row * 8 & 0xffu);
}

/* Counts the thread's candidates in their bins, and writes them from the stage to the chunk's
 * slice, in the order of their positions. */
DEVICE void stream_slice(
    const struct stream *s, uint32_t chunk, const struct stream_found *found, uint32_t place)
{
    const uint32_t room = s->tensor->room;
    const uint64_t slice = (uint64_t)chunk * room;
    for (uint32_t left = found->mask; left != 0; left &= left - 1) {
        const uint32_t i = (uint32_t)__popc((left & (0u - left)) - 1);
        const uint32_t row = i / FOUR;
        const uint32_t in_chunk = stream_at(row) + i % FOUR;
        const uint32_t before = found->mask >> row * FOUR & ((1u << i % FOUR) - 1);
        const uint32_t at = stream_row(found, place, row) + (uint32_t)__popc(before);
        const float x = stream_stage()[in_chunk];
        stream_count(s, batch_key(x));
        if (at < room) {
            s->top.position[slice + at] = chunk * CHUNK + in_chunk;
            s->top.value[slice + at] = x;
        }
    }
}

/* When all warps have counted: places the warp's candidates behind those of the warps before. */
DEVICE void stream_place(
    const struct stream *s, uint32_t chunk, const struct stream_found *found, const uint32_t *count)
{
    uint32_t place = 0;
    uint32_t all = 0;
    UNROLL
    for (uint32_t w = 0; w < WARPS; w++) {
        const uint32_t theirs = count[w];
        place += w < device_warp() ? theirs : 0;
        all += theirs;
    }
    stream_slice(s, chunk, found, place);
    if (threadIdx.x == 0) {
        s->top.chunk[chunk].count = all;
        s->top.chunk[chunk].told = 0;
    }
}

/* For all threads of a block: finds the candidates of a chunk and puts them into its slice. */
DEVICE void stream_top(const struct stream *s, uint32_t chunk, const float *x)
{
    SHARED(uint32_t, count, WARPS);
    __syncthreads(); /* the last chunk's have been read */
    const struct stream_found found = stream_look(s, batch_length(s->tensor, chunk), x, count);
    __syncthreads();
    stream_place(s, chunk, &found, count);
}

/* ------------------------------------------------------------------ of fibres */

DEVICE struct stream_fibre stream_fibre(const struct view *view, uint32_t element)
{
    const uint32_t stride = (uint32_t)view->stride;
    const uint32_t in_slab = element % ((uint32_t)view->length * stride);
    return {element / ((uint32_t)view->length * stride), in_slab / stride, in_slab % stride};
}

DEVICE void stream_move(const struct view *view, struct stream_fibre *at, struct stream_fibre by)
{
    at->in_slab += by.in_slab;
    const bool next = at->in_slab >= view->stride;
    at->in_slab -= next ? (uint32_t)view->stride : 0;
    at->in_fibre += by.in_fibre + next;
    const bool over = at->in_fibre >= view->length;
    at->in_fibre -= over ? (uint32_t)view->length : 0;
    at->slab += by.slab + over;
}

/* The key that a fibre's candidates reach. Without hints these are all elements that are not 0. */
DEVICE uint32_t stream_bound(const struct stream *s, uint32_t fibre)
{
    if (s->tensor->hints == NULL) {
        return 1;
    }
    const float hint = s->tensor->hints[fibre];
    return hint > 0 ? convert_bits(hint) : TOP_NONE;
}

/* Bit i is set if the thread's element i on the stage reaches its fibre's bound. */
DEVICE uint32_t stream_reach(const struct stream *s, uint32_t chunk, uint32_t length)
{
    const struct view *const view = &s->tensor->view;
    const bool rows =
        view->stride == 1 && view->length % FOUR == 0; /* neighbours are of one fibre */
    struct stream_fibre at = stream_fibre(view, chunk * CHUNK + stream_at(0));
    uint32_t mask = 0;
    ROLLED
    for (uint32_t row = 0; row < ROWS; row++) {
        const float *const x = stream_stage() + stream_at(row);
        struct stream_fibre of = at;
        uint32_t bound = TOP_NONE;
        UNROLL
        for (uint32_t i = 0; i < FOUR; i++) {
            if ((i == 0 || !rows) && stream_at(row) + i < length) {
                bound = stream_bound(s, of.slab * (uint32_t)view->stride + of.in_slab);
                stream_move(view, &of, {0, view->stride == 1, view->stride != 1});
            }
            const bool there = stream_at(row) + i < length;
            mask |= (uint32_t)(there && batch_key(x[i]) >= bound) << (row * FOUR + i);
        }
        stream_move(view, &at, s->row);
    }
    return mask;
}

/* FIBRES: deals the thread's candidates on the stage to their fibres. Zeros are none, and fibres
 * without a bound have none. */
DEVICE void stream_fibres(const struct stream *s, uint32_t chunk, uint32_t length)
{
    const uint32_t room = s->tensor->room;
    for (uint32_t left = stream_reach(s, chunk, length); left != 0; left &= left - 1) {
        const uint32_t i = (uint32_t)__popc((left & (0u - left)) - 1);
        const uint32_t in_chunk = stream_at(i / FOUR) + i % FOUR;
        const struct stream_fibre at = stream_fibre(&s->tensor->view, chunk * CHUNK + in_chunk);
        const uint32_t fibre = at.slab * (uint32_t)s->tensor->view.stride + at.in_slab;
        const uint32_t place = atomicAdd(&s->fibres.dealt[fibre], 1u);
        if (place < room) {
            s->fibres.position[(uint64_t)fibre * room + place] = at.in_fibre;
            s->fibres.value[(uint64_t)fibre * room + place] = stream_stage()[in_chunk];
        }
    }
}

/* Opens the fibres of a chunk: they have more candidates than they have room for. */
DEVICE void stream_open(const struct stream *s, uint32_t chunk)
{
    const uint32_t stride = (uint32_t)s->tensor->view.stride;
    const uint32_t slab = (uint32_t)s->tensor->view.length * stride;
    const uint64_t first = (uint64_t)chunk * CHUNK;
    for (uint64_t e = first; e < first + CHUNK && e < s->tensor->numel; e++) {
        s->fibres.dealt[(uint32_t)(e / slab) * stride + (uint32_t)(e % stride)] =
            s->tensor->room + 1;
    }
}

/* By one thread: the candidates of a chunk are wrong. */
DEVICE void stream_spoil(const struct stream *s, uint32_t chunk)
{
    if (s->tensor->mode == ADD_TOP) {
        s->top.counts->spoiled = 1;
    } else if (s->tensor->mode == ADD_FIBRES) {
        stream_open(s, chunk);
    }
}

/* ------------------------------------------------------------------ of a part */

DEVICE void stream_read(const struct slots *slots, uint64_t entry, float *x)
{
    UNROLL
    for (uint32_t row = 0; row < ROWS; row++) {
        const float4 was = stream_load(slots, entry, stream_at(row));
        x[row * FOUR] = was.x;
        x[row * FOUR + 1] = was.y;
        x[row * FOUR + 2] = was.z;
        x[row * FOUR + 3] = was.w;
    }
}

/* Finds the candidates of the chunk in this slot. */
DEVICE void stream_select(const struct stream *s, uint32_t chunk, uint32_t slot)
{
    float x[ROWS * FOUR];
    stream_read(&s->slots, slot, x);
    __syncwarp(); /* what the stage has been used for is done */
    stream_set(x);
    if (s->tensor->mode == ADD_TOP) {
        stream_top(s, chunk, x);
    } else {
        stream_fibres(s, chunk, batch_length(s->tensor, chunk));
    }
}

DEVICE struct stream stream_of(const struct add_batch *batch, const struct add_tensor *tensor)
{
    const bool top = tensor->mode == ADD_TOP;
    struct stream s;
    s.tensor = tensor;
    s.slots = batch->slots;
    s.velocities = batch->velocities;
    s.top = scratch_top(tensor);
    s.fibres = scratch_fibres(tensor);
    if (tensor->mode == ADD_FIBRES) {
        s.row = stream_fibre(&tensor->view, WARP * FOUR);
    }
    s.least = top ? s.top.state->least : 0;
    s.shift = top ? s.top.state->shift : 0;
    return s;
}

/* For all threads of a block: a part begins. Threads have no registers for all of it, and a fence
 * makes the next read of the tensor as slow as the first. */
DEVICE const struct stream *stream_begin_part(
    const struct add_batch *batch, const struct add_tensor *tensor)
{
    SHARED(struct stream, s, 1);
    SHARED(struct add_tensor, copy, 1);
    __syncthreads(); /* the last part is done */
    if (threadIdx.x == 0) {
        copy[0] = *tensor;
        s[0] = stream_of(batch, copy);
    }
    bins_clear(stream_bins(), tensor->mode == ADD_TOP ? ADD_BINS + 1 : 0);
    return s;
}

/* The block that completes the tensor finds out whether the bound was right. */
DEVICE void stream_end_part(const struct add_batch *batch, const struct stream *s,
    const struct batch_part *part, uint32_t *done)
{
    bins_flush(stream_bins(), ADD_BINS + 1, s->top.counts->bins);
    if (device_is_last(done, part->end - part->first, (uint32_t)chunk_count(part->tensor->numel))) {
        top_settle(part->tensor, &s->top, &batch->steps->again);
    }
}

#endif
