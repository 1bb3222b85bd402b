/*
 * The k largest of every fibre, behind the pass over the elements (add.h). The candidates of a
 * fibre come in any order. A fibre that has fewer than k of them, or more than it has room for, is
 * *open*: it is read again.
 */
#include <math.h>

#include "kernels/cuda/candidates.cuh"
#include "kernels/cuda/search.cuh"

/* Fibres of at most so many elements are searched by one warp. */
enum { FIBRES_SHORT = 2048 };

/* The next bound aims at so many candidates more than k: this share of k, and some for each fibre.
 * All of these numbers trade candidates for fibres that must be searched. */
#define FIBRES_AIM 0.25f
#define FIBRES_FEW 8.0f
/* How far it is below the k-th: at least this share of the k-th, and more if few are selected; at
 * most this factor of the last distance. */
#define FIBRES_NEAREST 0.02f
#define FIBRES_NEAREST_FEW 0.2f
#define FIBRES_FARTHEST 1.5f
/* The bound before was too low by this factor at most, as far as the next one allows for it. */
#define FIBRES_GROWTH 1.44f

/* ------------------------------------------------------------------ the cut of some items */

/* The candidates of a fibre, which a warp works on. */
struct fibres_dealt {
    uint32_t *positions; /* in the fibre */
    float *values;
    uint32_t count;
    DEVICE_MEMBER float value(uint32_t i) const
    {
        return values[i];
    }
    DEVICE_MEMBER uint32_t position(uint32_t i) const
    {
        return positions[i];
    }
};

/* All elements of a fibre. */
struct fibres_whole {
    struct search_line line;
    uint32_t count;
    DEVICE_MEMBER float value(uint32_t i) const
    {
        return search_element(&line, i);
    }
    DEVICE_MEMBER uint32_t position(uint32_t i) const
    {
        return i;
    }
};

/* What is selected: keys above `cut`, and those equal to it up to the position `last`. */
struct fibres_cut {
    uint32_t cut, last;
};

template <typename Items>
DEVICE bool fibres_reaches(const Items *items, uint32_t i, struct fibres_cut at)
{
    if (i >= items->count) {
        return false;
    }
    const uint32_t key = batch_key(items->value(i));
    return key > at.cut || (key == at.cut && items->position(i) <= at.last);
}

/* How many items have a larger key, or the key and a position of at most `last`. */
template <typename Items> DEVICE uint32_t fibres_reach(const Items *items, struct fibres_cut at)
{
    uint32_t count = 0;
    for (uint32_t first = 0; first < items->count; first += WARP) {
        const bool reaches = fibres_reaches(items, first + device_lane(), at);
        count += (uint32_t)__popc(__ballot_sync(WARP_ALL, reaches));
    }
    return count;
}

/* The least of the keys that the lanes have; the largest one. */
DEVICE uint32_t fibres_least(uint32_t key)
{
    for (unsigned d = WARP / 2; d > 0; d /= 2) {
        const uint32_t other = __shfl_xor_sync(WARP_ALL, key, d);
        key = other < key ? other : key;
    }
    return key;
}

DEVICE uint32_t fibres_most(uint32_t key)
{
    return UINT32_MAX - fibres_least(UINT32_MAX - key);
}

/* All keys of some items are in between. */
struct fibres_range {
    uint32_t low, high;
};

template <typename Items> DEVICE struct fibres_range fibres_range(const Items *items)
{
    struct fibres_range range = {UINT32_MAX, 0};
    for (uint32_t i = device_lane(); i < items->count; i += WARP) {
        const uint32_t key = batch_key(items->value(i));
        range.low = key < range.low ? key : range.low;
        range.high = key > range.high ? key : range.high;
    }
    return {fibres_least(range.low), fibres_most(range.high)};
}

/* The cut of the k best of at least k items: first its key, then the last of its equals. */
template <typename Items>
DEVICE struct fibres_cut fibres_halve(const Items *items, uint32_t k, uint32_t length)
{
    const struct fibres_range range = fibres_range(items);
    struct fibres_cut at = {range.low, UINT32_MAX};
    uint32_t high = range.high;
    while (at.cut < high) { /* at least k reach at.cut, fewer high + 1 */
        struct fibres_cut middle = {at.cut + (high - at.cut + 1) / 2, UINT32_MAX};
        const uint32_t count = fibres_reach(items, middle);
        at.cut = count >= k ? middle.cut : at.cut;
        high = count >= k ? high : middle.cut - 1;
        if (count == k) {
            return at;
        }
    }
    uint32_t before = 0;
    at.last = length - 1;
    while (before < at.last) {
        struct fibres_cut middle = {at.cut, before + (at.last - before) / 2};
        const bool enough = fibres_reach(items, middle) >= k;
        at.last = enough ? middle.last : at.last;
        before = enough ? before : middle.last + 1;
    }
    return at;
}

/* ------------------------------------------------------------------ from the candidates */

/* The share of the k-th by which the bound is below it at least. */
DEVICE float fibres_nearest(uint32_t k)
{
    return FIBRES_NEAREST + FIBRES_NEAREST_FEW / (1 + sqrtf((float)k));
}

/* The bound of the next turn. It takes the values between this one and the k-th to lie evenly.
 * Where this one was too low, the residual has grown, and will. */
DEVICE float fibres_hint(float bound, float kth, uint32_t k, uint32_t count)
{
    const float aim = FIBRES_AIM * (float)k + FIBRES_FEW;
    const float more = (float)(count - k);
    const float factor = more * FIBRES_FARTHEST > aim ? aim / more : FIBRES_FARTHEST;
    const float below = (kth - bound) * factor;
    const float nearest = kth * fibres_nearest(k);
    const float hint = kth - (below > nearest ? below : nearest);
    if (!(hint > bound)) {
        return hint > 0 ? hint : kth / 2;
    }
    return hint * sqrtf(sqrtf(hint < bound * FIBRES_GROWTH ? hint / bound : FIBRES_GROWTH));
}

/* Moves the selected candidates to the front; returns the smallest of their keys. */
DEVICE uint32_t fibres_keep(const struct fibres_dealt *dealt, struct fibres_cut at)
{
    uint32_t kept = 0;
    uint32_t least = UINT32_MAX;
    for (uint32_t first = 0; first < dealt->count; first += WARP) {
        const uint32_t i = first + device_lane();
        const uint32_t position = i < dealt->count ? dealt->positions[i] : 0;
        const float value = i < dealt->count ? dealt->values[i] : 0;
        const uint32_t key = batch_key(value);
        const bool keeps =
            i < dealt->count && (key > at.cut || (key == at.cut && position <= at.last));
        const uint32_t keepers = __ballot_sync(WARP_ALL, keeps);
        const uint32_t to = kept + (uint32_t)__popc(keepers & ((1u << device_lane()) - 1));
        __syncwarp(); /* all lanes have read */
        if (keeps) {
            dealt->positions[to] = position;
            dealt->values[to] = value;
            least = key < least ? key : least;
        }
        kept += (uint32_t)__popc(keepers);
    }
    __syncwarp();
    return fibres_least(least);
}

/* Writes the first k candidates to the fibre's part of the list, each behind those before it. */
DEVICE void fibres_sort(
    const struct add_tensor *tensor, const struct fibres_dealt *dealt, uint32_t fibre)
{
    const uint32_t k = (uint32_t)tensor->k;
    const uint64_t list = (uint64_t)fibre * k;
    for (uint32_t i = device_lane(); i < k; i += WARP) {
        const uint32_t position = dealt->positions[i];
        uint32_t rank = 0;
        for (uint32_t j = 0; j < k; j++) {
            rank += dealt->positions[j] < position;
        }
        tensor->position[list + rank] = fibre * (uint32_t)tensor->view.length + position;
        tensor->value[list + rank] = dealt->values[i];
    }
}

/* The selected ones of any number of candidates. Returns the least of their keys. */
DEVICE uint32_t fibres_pick_many(const struct add_tensor *tensor,
    const struct fibres_scratch *scratch, uint32_t fibre, uint32_t count)
{
    const uint32_t k = (uint32_t)tensor->k;
    const uint64_t room = (uint64_t)fibre * tensor->room;
    const struct fibres_dealt dealt = {scratch->position + room, scratch->value + room, count};
    const struct fibres_cut at = fibres_halve(&dealt, k, (uint32_t)tensor->view.length);
    const uint32_t least = fibres_keep(&dealt, at);
    fibres_sort(tensor, &dealt, fibre);
    return least;
}

/* ------------------------------------------------------------------ from few candidates */

/* They are in registers, two per thread of a warp. */
struct fibres_few {
    uint32_t count;
    uint32_t position[2];
    float value[2];
    float bound; /* of the fibre */
};

/* Those of a fibre that has so many; of many, the first ones. */
DEVICE struct fibres_few fibres_fetch(const struct add_tensor *tensor,
    const struct fibres_scratch *scratch, uint32_t fibre, uint32_t count)
{
    const uint64_t room = (uint64_t)fibre * tensor->room;
    const bool writes_hint = tensor->hints != NULL && device_lane() == 0; /* which no other reads */
    struct fibres_few few = {count, {0, 0}, {0, 0}, writes_hint ? tensor->hints[fibre] : 0};
    UNROLL
    for (uint32_t e = 0; e < 2; e++) {
        const uint32_t i = e * WARP + device_lane();
        if (i < count && i < tensor->room) {
            few.position[e] = scratch->position[room + i];
            few.value[e] = scratch->value[room + i];
        }
    }
    return few;
}

/* The lanes whose candidate e reaches it. */
DEVICE uint32_t fibres_lanes(const struct fibres_few *few, uint32_t e, struct fibres_cut at)
{
    const uint32_t key = batch_key(few->value[e]);
    const bool reaches = key > at.cut || (key == at.cut && few->position[e] <= at.last);
    return __ballot_sync(WARP_ALL, e * WARP + device_lane() < few->count && reaches);
}

DEVICE uint32_t fibres_reach(const struct fibres_few *few, struct fibres_cut at)
{
    return (uint32_t)__popc(fibres_lanes(few, 0, at)) + (uint32_t)__popc(fibres_lanes(few, 1, at));
}

DEVICE struct fibres_range fibres_range(const struct fibres_few *few)
{
    struct fibres_range range = {UINT32_MAX, 0};
    UNROLL
    for (uint32_t e = 0; e < 2; e++) {
        const bool there = e * WARP + device_lane() < few->count;
        const uint32_t key = batch_key(few->value[e]);
        range.low = there && key < range.low ? key : range.low;
        range.high = there && key > range.high ? key : range.high;
    }
    return {fibres_least(range.low), fibres_most(range.high)};
}

/* Writes the selected candidates in the order of their positions: each counts those before it.
 * Returns the least of their keys. */
DEVICE uint32_t fibres_place(const struct add_tensor *tensor, const struct fibres_few *few,
    uint32_t fibre, struct fibres_cut at)
{
    const uint64_t list = (uint64_t)fibre * tensor->k;
    const uint32_t lanes[2] = {fibres_lanes(few, 0, at), fibres_lanes(few, 1, at)};
    uint32_t before[2] = {0, 0};
    uint32_t least = UINT32_MAX;
    UNROLL
    for (uint32_t e = 0; e < 2; e++) {
        for (uint32_t left = lanes[e]; left != 0; left &= left - 1) {
            const uint32_t lane = (uint32_t)__popc((left & (0u - left)) - 1);
            const uint32_t other = __shfl_sync(WARP_ALL, few->position[e], lane);
            before[0] += other < few->position[0];
            before[1] += other < few->position[1];
        }
    }
    UNROLL
    for (uint32_t e = 0; e < 2; e++) {
        if ((lanes[e] >> device_lane() & 1u) != 0) {
            const uint32_t key = batch_key(few->value[e]);
            tensor->position[list + before[e]] =
                fibre * (uint32_t)tensor->view.length + few->position[e];
            tensor->value[list + before[e]] = few->value[e];
            least = key < least ? key : least;
        }
    }
    return fibres_least(least);
}

/* ------------------------------------------------------------------ a share's fibres */

/* By one warp. */
DEVICE void fibres_pick_one(const struct add_tensor *tensor, const struct fibres_scratch *scratch,
    uint32_t fibre, const struct fibres_few *few)
{
    const uint32_t k = (uint32_t)tensor->k;
    const uint32_t count = few->count;
    uint32_t least;
    if (count < k || count > tensor->room) {
        if (device_lane() == 0) {
            scratch->list[atomicAdd(scratch->open, 1u)] = fibre;
        }
        return;
    }
    if (count > 2 * WARP) {
        least = fibres_pick_many(tensor, scratch, fibre, count);
    } else {
        const struct fibres_cut at = fibres_halve(few, k, (uint32_t)tensor->view.length);
        least = fibres_place(tensor, few, fibre, at);
    }
    if (tensor->hints != NULL && device_lane() == 0) {
        tensor->hints[fibre] = fibres_hint(few->bound, convert_float(least), k, count);
    }
}

/* A warp for each of these fibres. The next one's candidates are on their way meanwhile, and how
 * many the one behind it has. */
DEVICE void fibres_pick_some(const struct add_tensor *tensor, uint32_t begin, uint32_t end)
{
    const struct fibres_scratch scratch = scratch_fibres(tensor);
    const uint32_t first = begin + device_warp();
    if (first >= end) {
        return;
    }
    struct fibres_few next = fibres_fetch(tensor, &scratch, first, scratch.dealt[first]);
    uint32_t count = end - first > WARPS ? scratch.dealt[first + WARPS] : 0;
    for (uint32_t f = first; f < end; f += WARPS) {
        const struct fibres_few few = next;
        if (end - f > WARPS) {
            next = fibres_fetch(tensor, &scratch, f + WARPS, count);
            count = end - f > 2 * WARPS ? scratch.dealt[f + 2 * WARPS] : 0;
        }
        fibres_pick_one(tensor, &scratch, f, &few);
    }
}

/* Parts share things of their tensor as they share its chunks. The first one of a part that begins
 * with this chunk. */
DEVICE uint32_t fibres_first(const struct add_tensor *tensor, uint32_t things, uint32_t chunk)
{
    return (uint32_t)((uint64_t)things * chunk / chunk_count(tensor->numel));
}

/* ADD_PICK of a share. */
DEVICE void fibres_pick(const struct add_batch *batch, uint32_t share)
{
    batch_walk(batch, share, [&](const struct batch_part *part) {
        const struct add_tensor *const tensor = part->tensor;
        if (tensor->mode == ADD_FIBRES) {
            const uint32_t fibres = (uint32_t)tensor->view.fibres;
            fibres_pick_some(tensor, fibres_first(tensor, fibres, part->first),
                fibres_first(tensor, fibres, part->end));
        }
    });
}

/* ------------------------------------------------------------------ from the fibre itself */

/* A fibre of a tensor, in memory; a block works on it. */
DEVICE struct search_line fibres_line(
    const struct add_tensor *tensor, const struct slots *slots, uint32_t number)
{
    const struct search_line line = {slots, tensor->entry, view_base(&tensor->view, number),
        tensor->view.stride, tensor->view.length};
    return line;
}

DEVICE void fibres_search_emit(const struct add_tensor *tensor, const struct search_line *fibre,
    uint32_t number, uint32_t cut, uint32_t ties)
{
    uint64_t place = number * tensor->k;
    search_each(fibre, [&](uint64_t i, bool there, float x) {
        const uint32_t key = batch_key(x);
        const uint32_t above = there && key > cut;
        const uint32_t equal = there && key == cut;
        uint32_t all; /* two counts at once, none above BLOCK */
        const uint32_t before = device_scan(above | equal << 16, &all);
        const uint32_t earlier = before >> 16;
        if (above != 0 || (equal != 0 && earlier < ties)) {
            const uint64_t at = place + (before & 0xffffu) + (earlier < ties ? earlier : ties);
            tensor->position[at] = (uint32_t)(number * fibre->length + i);
            tensor->value[at] = x;
        }
        const uint32_t taken = all >> 16 < ties ? all >> 16 : ties;
        place += (all & 0xffffu) + taken;
        ties -= taken;
    });
}

/* The bound of the next turn, after a search that found the key of the k-th. With too many
 * candidates the residual has grown, and will. */
DEVICE void fibres_searched(const struct add_tensor *tensor, uint32_t number, uint32_t key)
{
    if (tensor->hints != NULL) {
        const bool many = scratch_fibres(tensor).dealt[number] > tensor->room;
        const float below = many ? 0 : fibres_nearest((uint32_t)tensor->k);
        tensor->hints[number] = convert_float(key) * (1 - below);
    }
}

/* One warp writes the selected elements of a fibre. Returns the least of their keys. */
DEVICE uint32_t fibres_write(const struct add_tensor *tensor, const struct fibres_whole *fibre,
    uint32_t number, struct fibres_cut at)
{
    uint64_t place = number * tensor->k;
    uint32_t least = UINT32_MAX;
    for (uint32_t first = 0; first < fibre->count; first += WARP) {
        const uint32_t i = first + device_lane();
        const bool selected = fibres_reaches(fibre, i, at);
        const uint32_t all = __ballot_sync(WARP_ALL, selected);
        if (selected) {
            const float x = fibre->value(i);
            const uint64_t to = place + (uint32_t)__popc(all & ((1u << device_lane()) - 1));
            tensor->position[to] = number * fibre->count + i;
            tensor->value[to] = x;
            least = batch_key(x) < least ? batch_key(x) : least;
        }
        place += (uint32_t)__popc(all);
    }
    return fibres_least(least);
}

/* By one warp. */
DEVICE void fibres_search_short(
    const struct add_tensor *tensor, const struct slots *slots, uint32_t number)
{
    const struct fibres_whole fibre = {
        fibres_line(tensor, slots, number), (uint32_t)tensor->view.length};
    const struct fibres_cut at = fibres_halve(&fibre, (uint32_t)tensor->k, fibre.count);
    const uint32_t least = fibres_write(tensor, &fibre, number, at);
    if (device_lane() == 0) {
        fibres_searched(tensor, number, least);
    }
}

/* By a block. */
DEVICE void fibres_search_long(
    const struct add_tensor *tensor, const struct slots *slots, uint32_t number)
{
    const struct search_line fibre = fibres_line(tensor, slots, number);
    const struct bins_place cut = search_rank(&fibre, (uint32_t)tensor->k, stream_bins());
    fibres_search_emit(tensor, &fibre, number, cut.bin, cut.rank);
    if (threadIdx.x == 0) {
        fibres_searched(tensor, number, cut.bin);
    }
}

/* Searches these of the open fibres. */
DEVICE void fibres_search_some(
    const struct add_tensor *tensor, const struct slots *slots, uint32_t begin, uint32_t end)
{
    const uint32_t *const list = scratch_fibres(tensor).list;
    const bool brief = tensor->view.length <= FIBRES_SHORT;
    const uint32_t each = brief ? WARPS : 1;
    for (uint32_t i = begin + device_warp() % each; i < end; i += each) {
        if (brief) {
            fibres_search_short(tensor, slots, list[i]);
        } else {
            fibres_search_long(tensor, slots, list[i]);
        }
    }
}

/* ADD_SEARCH of a share. */
DEVICE void fibres_search(const struct add_batch *batch, uint32_t share)
{
    batch_walk(batch, share, [&](const struct batch_part *part) {
        const struct add_tensor *const tensor = part->tensor;
        if (tensor->mode == ADD_FIBRES) {
            const uint32_t open = scratch_fibres(tensor).open[0];
            fibres_search_some(tensor, &batch->slots, fibres_first(tensor, open, part->first),
                fibres_first(tensor, open, part->end));
        }
    });
}
