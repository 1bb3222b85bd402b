/*
 * The k largest of a tensor, behind the pass over the elements: the exact cut, and the list
 * (add.h).
 *
 * The chunks' candidates are in ascending order of positions, so the list is, too. Where a slice
 * had no room for all candidates of its chunk, the chunk's elements are read again. A warp looks at
 * one chunk.
 */
#include <math.h>

#include "kernels/cuda/candidates.cuh"
#include "kernels/cuda/search.cuh"

/* The bound of the next turn: so many candidates for each entry that is selected, and how far it is
 * from the cut at most, as a multiple of this turn's distance. */
#define TOP_AIM 1.25f
#define TOP_NOISE 3.0f
#define TOP_FARTHEST 4.0f
/* Its share of the cut where this turn's bound tells nothing. */
#define TOP_SHARE 0.97f

/* ------------------------------------------------------------------ the items of a chunk */

/* Rows of a slice that a warp reads before it knows how many candidates there are. Rows behind
 * them, and rows of a chunk, that it reads together: more would need more registers. */
enum { TOP_ROWS = 2, TOP_TOGETHER = 6 };

/* What a thread has read of a slice: a candidate of each of the first rows. */
struct top_ahead {
    uint32_t count; /* the chunk's candidates; what was read behind them means nothing */
    uint32_t position[TOP_ROWS];
    float value[TOP_ROWS];
};

/* Its candidates, or all its elements where the slice has no room for them. */
struct top_items {
    struct top_ahead ahead;
    const uint32_t *position; /* NULL: they are neighbours from `first` on, and none was read */
    const float *value;
    const uint16_t *half; /* or they are bf16 */
    uint32_t first, count;
};

/* listed: positions are wanted, too. */
DEVICE struct top_ahead top_fetch(const struct add_tensor *tensor, const struct top_scratch *top,
    uint32_t chunk, uint32_t end, bool listed)
{
    const uint64_t slice = (uint64_t)chunk * tensor->room;
    struct top_ahead ahead = {0, {0}, {0}};
    if (chunk < end) {
        ahead.count = top->chunk[chunk].count;
    }
    UNROLL
    for (uint32_t row = 0; row < TOP_ROWS; row++) {
        const uint32_t i = row * WARP + device_lane();
        if (chunk < end && i < tensor->room) {
            ahead.value[row] = top->value[slice + i];
            ahead.position[row] = listed ? top->position[slice + i] : 0;
        }
    }
    return ahead;
}

DEVICE struct top_items top_items(const struct add_tensor *tensor, const struct slots *slots,
    const struct top_scratch *top, uint32_t chunk, const struct top_ahead *ahead)
{
    const uint64_t slice = (uint64_t)chunk * tensor->room;
    if (ahead->count <= tensor->room) {
        const struct top_items items = {
            *ahead, top->position + slice, top->value + slice, NULL, 0, ahead->count};
        return items;
    }
    const uint64_t entry = tensor->entry[chunk];
    const bool rounded = slots->element == NULL;
    const struct top_items items = {*ahead, NULL, rounded ? NULL : batch_slot(slots, entry),
        rounded ? batch_half(slots, entry) : NULL, chunk * CHUNK, batch_length(tensor, chunk)};
    return items;
}

/* An item as it is read: the bits of its value. */
struct top_word {
    uint32_t bits, position;
};

/* listed: its position is wanted, too. */
DEVICE struct top_word top_read(const struct top_items *items, uint32_t i, bool listed)
{
    struct top_word word = {0, items->first + i};
    if (i < items->count) {
        word.bits = items->half != NULL ? items->half[i] : convert_bits(items->value[i]);
    }
    if (listed && items->position != NULL && i < items->count) {
        word.position = items->position[i];
    }
    return word;
}

/* An item of this thread, in a row of the chunk's. */
struct top_item {
    bool there;
    uint32_t key, position;
    float value;
};

DEVICE struct top_item top_item(const struct top_items *items, uint32_t i, struct top_word word)
{
    const float value =
        items->half != NULL ? convert_bf16((uint16_t)word.bits) : convert_float(word.bits);
    return {i < items->count, batch_key(value), word.position, value};
}

/* Calls work(item) for some rows of a chunk's items, from `first` on. All are read before the first
 * is looked at: a warp that waits for each of them takes several times as long. */
template <typename Work>
DEVICE void top_rows(const struct top_items *items, uint32_t first, bool listed, Work work)
{
    struct top_word word[TOP_TOGETHER];
    UNROLL
    for (uint32_t row = 0; row < TOP_TOGETHER; row++) {
        word[row] = top_read(items, first + row * WARP + device_lane(), listed);
    }
    UNROLL
    for (uint32_t row = 0; row < TOP_TOGETHER; row++) {
        if (first + row * WARP < items->count) {
            work(top_item(items, first + row * WARP + device_lane(), word[row]));
        }
    }
}

/* Calls work(item) for all rows of a chunk's items, by a warp. */
template <typename Work> DEVICE void top_each(const struct top_items *items, bool listed, Work work)
{
    uint32_t first = 0;
    if (items->position != NULL) {
        UNROLL
        for (uint32_t row = 0; row < TOP_ROWS; row++) {
            const struct top_item item = {row * WARP + device_lane() < items->count,
                batch_key(items->ahead.value[row]), items->ahead.position[row],
                items->ahead.value[row]};
            if (row * WARP < items->count) {
                work(item);
            }
        }
        first = TOP_ROWS * WARP;
    }
    for (; first < items->count; first += TOP_TOGETHER * WARP) {
        top_rows(items, first, listed, work);
    }
}

/* ------------------------------------------------------------------ the parts of a share */

/* Calls work(part, its tensor's scratch) for each part of a share whose tensor is of mode TOP.
 * again: only of tensors whose bound was wrong. */
template <typename Work>
DEVICE void top_walk(const struct add_batch *batch, uint32_t share, bool again, Work work)
{
    batch_walk(batch, share, [&](const struct batch_part *part) {
        if (part->tensor->mode == ADD_TOP) {
            const struct top_scratch top = scratch_top(part->tensor);
            if (!again || top.state->again != 0) {
                work(part, &top);
            }
        }
    });
}

/* Whether the block has completed the tensor. */
DEVICE bool top_is_last(const struct batch_part *part, uint32_t *done)
{
    return device_is_last(
        done, part->end - part->first, (uint32_t)chunk_count(part->tensor->numel));
}

/* Calls look(chunk, its items) for each chunk of the part, a warp for one chunk. Those of its next
 * one are on their way meanwhile. listed: positions are wanted, too. */
template <typename Look>
DEVICE void top_look(const struct add_batch *batch, const struct batch_part *part,
    const struct top_scratch *top, bool listed, Look look)
{
    const uint32_t first = part->first + device_warp();
    struct top_ahead next = top_fetch(part->tensor, top, first, part->end, listed);
    for (uint32_t c = first; c < part->end; c += WARPS) {
        const struct top_items items = top_items(part->tensor, &batch->slots, top, c, &next);
        next = top_fetch(part->tensor, top, c + WARPS, part->end, listed);
        look(&top->chunk[c], &items);
    }
}

/* ------------------------------------------------------------------ after a wrong bound */

/* The bound becomes the beginning of the bin that has the k-th. */
DEVICE void top_rebound(const struct add_tensor *tensor, const struct top_scratch *top)
{
    const struct bins_place place = bins_find(top->counts->all, (uint32_t)tensor->k);
    bins_clear(top->counts->bins, ADD_BINS + 1);
    if (threadIdx.x == 0) {
        top->state->least = place.bin << TOP_SHIFT_ALL;
        top->state->shift = TOP_SHIFT_AGAIN;
    }
}

DEVICE void top_histogram_part(
    const struct add_batch *batch, const struct batch_part *part, uint32_t *bins)
{
    const uint64_t first = (uint64_t)part->first * CHUNK;
    const uint64_t end = (uint64_t)part->end * CHUNK;
    const uint64_t numel = part->tensor->numel;
    const struct search_line line = {
        &batch->slots, part->tensor->entry, first, 1, (end < numel ? end : numel) - first};
    struct bins_run run = {0, 0};
    search_each(&line, [&](uint64_t, bool there, float x) {
        if (there) {
            bins_count(bins, &run, batch_key(x) >> TOP_SHIFT_ALL);
        }
    });
    bins_end(bins, &run);
}

/* ADD_HISTOGRAM of a share. */
DEVICE void top_histogram(const struct add_batch *batch, uint32_t share)
{
    uint32_t *const bins = stream_bins();
    top_walk(batch, share, true, [&](const struct batch_part *part, const struct top_scratch *top) {
        bins_clear(bins, ADD_BINS);
        top_histogram_part(batch, part, bins);
        bins_flush(bins, ADD_BINS, top->counts->all);
        if (top_is_last(part, &top->counts->histogrammed)) {
            top_rebound(part->tensor, top);
        }
    });
}

/* ADD_COLLECT of a share: finds the candidates again, with a bound that is right. */
DEVICE void top_collect(const struct add_batch *batch, uint32_t share)
{
    top_walk(batch, share, true, [&](const struct batch_part *part, const struct top_scratch *) {
        const struct stream *const s = stream_begin_part(batch, part->tensor);
        for (uint32_t chunk = part->first; chunk < part->end; chunk++) {
            stream_select(s, chunk, slot_of(part->tensor->entry[chunk]));
        }
        stream_end_part(batch, s, part, &s->top.counts->collected);
    });
}

/* ------------------------------------------------------------------ the cut */

/* A bound that somewhat more than k elements reach, if the next turn is like this one: it takes the
 * keys below the cut to lie evenly. */
DEVICE float top_hint(const struct add_tensor *tensor, const struct top_state *state)
{
    const float k = (float)tensor->k;
    const float aim = (TOP_AIM - 1) * k + TOP_NOISE * sqrtf(k);
    const float more = (float)(state->candidates - (uint32_t)tensor->k);
    const float distance = (float)(state->cut - state->least);
    const float factor = more * TOP_FARTHEST > aim ? aim / more : TOP_FARTHEST;
    const float below = distance * factor;
    if (state->again != 0 || !(below < (float)state->cut)) {
        return convert_float(state->cut) * TOP_SHARE;
    }
    return convert_float(state->cut - (uint32_t)below);
}

/* The keys of the k-th one's bin have been counted. */
DEVICE void top_cut(const struct add_tensor *tensor, const struct top_scratch *top)
{
    struct top_state *const state = top->state;
    const struct bins_place place = bins_find(top->counts->fine, state->rank);
    if (threadIdx.x == 0) {
        state->cut = state->least + (state->bin << state->shift) + place.bin;
        state->ties = place.rank;
        tensor->hints[0] = top_hint(tensor, state);
    }
}

/* Counts the keys of a chunk's items in the bin of the k-th. */
DEVICE void top_border_chunk(
    const struct top_items *items, const struct top_state *state, uint32_t *fine)
{
    const uint32_t base = state->least + (state->bin << state->shift);
    const uint32_t keys = 1u << state->shift;
    struct bins_run run = {0, 0};
    top_each(items, false, [&](struct top_item item) {
        if (item.there && item.key >= base && item.key - base < keys) {
            bins_count(fine, &run, item.key - base);
        }
    });
    bins_end(fine, &run);
}

/* ADD_BORDER of a share. */
DEVICE void top_border(const struct add_batch *batch, uint32_t share)
{
    uint32_t *const fine = stream_bins();
    top_walk(
        batch, share, false, [&](const struct batch_part *part, const struct top_scratch *top) {
            bins_clear(fine, ADD_BINS);
            top_look(
                batch, part, top, false, [&](struct top_chunk *, const struct top_items *items) {
                    top_border_chunk(items, top->state, fine);
                });
            bins_flush(fine, ADD_BINS, top->counts->fine);
            if (top_is_last(part, &top->counts->bordered)) {
                top_cut(part->tensor, top);
            }
        });
}

/* ------------------------------------------------------------------ the list */

DEVICE uint32_t top_least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* A tally as one word, which is never 0. */
DEVICE uint64_t top_told(struct top_tally tally)
{
    return (uint64_t)(tally.above + 1) << 32 | tally.equal;
}

/* Tells each chunk of a part how many its part has before it. Returns how many the part has. */
DEVICE struct top_tally top_add_up(const struct batch_part *part, const struct top_scratch *top)
{
    struct top_tally all = {0, 0};
    __syncthreads(); /* all chunks have been counted */
    for (uint32_t first = part->first; first < part->end; first += BLOCK) {
        const uint32_t c = first + threadIdx.x;
        struct top_chunk *const chunk = &top->chunk[c];
        const bool there = c < part->end;
        struct top_tally more;
        const uint32_t above = device_scan(there ? chunk->own.above : 0, &more.above);
        const uint32_t equal = device_scan(there ? chunk->own.equal : 0, &more.equal);
        if (there) {
            chunk->before = {all.above + above, all.equal + equal};
        }
        all = {all.above + more.above, all.equal + more.equal};
    }
    return all;
}

/* The first chunk of a share in a tensor, if it has any: else the tensor's end. */
DEVICE uint32_t top_head(
    const struct add_batch *batch, const struct add_tensor *tensor, uint32_t share)
{
    const uint32_t begin = batch_share(batch, share);
    const uint32_t end = batch_share(batch, share + 1);
    const uint32_t first = begin > tensor->first ? begin : tensor->first;
    return first < end ? first - tensor->first : (uint32_t)chunk_count(tensor->numel);
}

/* The first share that has chunks of a tensor. */
DEVICE uint32_t top_share_of(const struct add_batch *batch, const struct add_tensor *tensor)
{
    uint32_t share = (uint32_t)((uint64_t)tensor->first * gridDim.x / batch->chunks);
    while (batch_share(batch, share + 1) <= tensor->first) {
        share++;
    }
    return share;
}

/* The sum of what the tensor's parts before this one have, which is in this share. Blocks have
 * begun their shares, and tell what they have before they wait for others. */
DEVICE struct top_tally top_before(const struct add_batch *batch, uint32_t mine_is,
    const struct batch_part *part, const struct top_scratch *top)
{
    const struct add_tensor *const tensor = part->tensor;
    struct top_tally mine = {0, 0};
    for (uint32_t share = top_share_of(batch, tensor) + threadIdx.x; share < mine_is;
         share += BLOCK) {
        const uint32_t head = top_head(batch, tensor, share);
        uint64_t told = head < part->first ? 0 : top_told({0, 0});
        while (told == 0) {
            told = device_load(&top->chunk[head].told);
            if (told == 0) {
                device_pause();
            }
        }
        mine.above += (uint32_t)(told >> 32) - 1;
        mine.equal += (uint32_t)told;
    }
    struct top_tally all;
    (void)device_scan(mine.above, &all.above);
    (void)device_scan(mine.equal, &all.equal);
    return all;
}

/* Counts the items of a chunk above the cut and at it. */
DEVICE void top_count_chunk(const struct top_items *items, uint32_t cut, struct top_chunk *chunk)
{
    uint32_t above = 0;
    uint32_t equal = 0;
    top_each(items, false, [&](struct top_item item) {
        above += (uint32_t)__popc(__ballot_sync(WARP_ALL, item.there && item.key > cut));
        equal += (uint32_t)__popc(__ballot_sync(WARP_ALL, item.there && item.key == cut));
    });
    if (device_lane() == 0) {
        chunk->own = {above, equal};
    }
}

/* Writes the items of a chunk that are selected. part: what the parts before have. */
DEVICE void top_emit_chunk(const struct add_tensor *tensor, const struct top_items *items,
    const struct top_state *state, const struct top_chunk *chunk, struct top_tally part)
{
    const uint32_t cut = state->cut;
    const uint32_t before = (1u << device_lane()) - 1;
    const uint32_t gone = top_least(part.equal + chunk->before.equal, state->ties);
    uint32_t place = part.above + chunk->before.above + gone;
    uint32_t ties = top_least(chunk->own.equal, state->ties - gone);
    top_each(items, true, [&](struct top_item item) {
        const bool is_above = item.there && item.key > cut;
        const bool is_equal = item.there && item.key == cut;
        const uint32_t above = __ballot_sync(WARP_ALL, is_above);
        const uint32_t equal = __ballot_sync(WARP_ALL, is_equal);
        const uint32_t earlier = (uint32_t)__popc(equal & before);
        const uint32_t at = place + (uint32_t)__popc(above & before) + top_least(earlier, ties);
        if (is_above || (is_equal && earlier < ties)) {
            tensor->position[at] = item.position;
            tensor->value[at] = item.value;
        }
        const uint32_t taken = top_least((uint32_t)__popc(equal), ties);
        place += (uint32_t)__popc(above) + taken;
        ties -= taken;
    });
}

/* Counts what a part has of the list, and tells it. */
DEVICE void top_tell(
    const struct add_batch *batch, const struct batch_part *part, const struct top_scratch *top)
{
    const uint32_t cut = top->state->cut;
    top_look(batch, part, top, false, [&](struct top_chunk *chunk, const struct top_items *items) {
        top_count_chunk(items, cut, chunk);
    });
    const struct top_tally tally = top_add_up(part, top);
    if (threadIdx.x == 0) {
        device_store(&top->chunk[part->first].told, top_told(tally));
    }
}

/* ADD_EMIT of a share. All of its parts are told before any is waited for: else the blocks would
 * wait for each other in a row. */
DEVICE void top_emit(const struct add_batch *batch, uint32_t share)
{
    top_walk(
        batch, share, false, [&](const struct batch_part *part, const struct top_scratch *top) {
            top_tell(batch, part, top);
        });
    top_walk(
        batch, share, false, [&](const struct batch_part *part, const struct top_scratch *top) {
            const struct top_tally before = top_before(batch, share, part, top);
            top_look(batch, part, top, true,
                [&](struct top_chunk *chunk, const struct top_items *items) {
                    top_emit_chunk(part->tensor, items, top->state, chunk, before);
                });
        });
}
