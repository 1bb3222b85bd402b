/*
 * The k largest of every fibre, behind the pass over the elements (add.h). The candidates of a fibre come in any
 * order. A fibre that has fewer than k of them, or more than it has room for, is *open*: it is read
 * again.
 */
#include "kernels/cuda/candidates.cuh"
#include "kernels/cuda/search.cuh"

/* ------------------------------------------------------------------ from the candidates */

/* The candidates of a fibre; a warp works on them. */
struct fibres_dealt {
    uint32_t *position; /* in the fibre */
    float *value;
    uint32_t count;
};

/* What is selected: keys above `cut`, and those equal to it up to the position `last`. */
struct fibres_cut {
    uint32_t cut, last;
};

/* How many candidates have a larger key, or the key and a position of at most `last`. */
DEVICE uint32_t fibres_reach(const struct fibres_dealt *dealt, struct fibres_cut at)
{
    uint32_t count = 0;
    for (uint32_t first = 0; first < dealt->count; first += WARP) {
        const uint32_t i = first + device_lane();
        bool reaches = false;
        if (i < dealt->count) {
            const uint32_t key = batch_key(dealt->value[i]);
            reaches = key > at.cut || (key == at.cut && dealt->position[i] <= at.last);
        }
        count += (uint32_t)__popc(__ballot_sync(WARP_ALL, reaches));
    }
    return count;
}

/* The largest key of the candidates. */
DEVICE uint32_t fibres_most(const struct fibres_dealt *dealt)
{
    uint32_t most = 0;
    for (uint32_t i = device_lane(); i < dealt->count; i += WARP) {
        const uint32_t key = batch_key(dealt->value[i]);
        most = key > most ? key : most;
    }
    for (unsigned d = WARP / 2; d > 0; d /= 2) {
        const uint32_t other = __shfl_xor_sync(WARP_ALL, most, d);
        most = other > most ? other : most;
    }
    return most;
}

/* The cut of the k best of at least k candidates: first its key, then the last of its equals. */
DEVICE struct fibres_cut fibres_halve(const struct fibres_dealt *dealt, uint32_t k, uint32_t length)
{
    struct fibres_cut at = {0, UINT32_MAX};
    uint32_t high = fibres_most(dealt);
    while (at.cut < high) { /* at least k reach at.cut, fewer high + 1 */
        struct fibres_cut middle = {at.cut + (high - at.cut + 1) / 2, UINT32_MAX};
        const uint32_t count = fibres_reach(dealt, middle);
        at.cut = count >= k ? middle.cut : at.cut;
        high = count >= k ? high : middle.cut - 1;
        if (count == k) {
            return at;
        }
    }
    uint32_t low = 0;
    at.last = length - 1;
    while (low < at.last) {
        struct fibres_cut middle = {at.cut, low + (at.last - low) / 2};
        const bool enough = fibres_reach(dealt, middle) >= k;
        at.last = enough ? middle.last : at.last;
        low = enough ? low : middle.last + 1;
    }
    return at;
}

/* Moves the selected candidates to the front; returns the smallest of their keys. */
DEVICE uint32_t fibres_keep(const struct fibres_dealt *dealt, struct fibres_cut at)
{
    uint32_t kept = 0;
    uint32_t least = UINT32_MAX;
    for (uint32_t first = 0; first < dealt->count; first += WARP) {
        const uint32_t i = first + device_lane();
        const uint32_t position = i < dealt->count ? dealt->position[i] : 0;
        const float value = i < dealt->count ? dealt->value[i] : 0;
        const uint32_t key = batch_key(value);
        const bool keeps =
            i < dealt->count && (key > at.cut || (key == at.cut && position <= at.last));
        const uint32_t keepers = __ballot_sync(WARP_ALL, keeps);
        const uint32_t to = kept + (uint32_t)__popc(keepers & ((1u << device_lane()) - 1));
        __syncwarp(); /* all lanes have read */
        if (keeps) {
            dealt->position[to] = position;
            dealt->value[to] = value;
            least = key < least ? key : least;
        }
        kept += (uint32_t)__popc(keepers);
    }
    __syncwarp();
    for (unsigned d = WARP / 2; d > 0; d /= 2) {
        const uint32_t other = __shfl_xor_sync(WARP_ALL, least, d);
        least = other < least ? other : least;
    }
    return least;
}

/* Writes the first k candidates to the fibre's part of the list, each behind those before it. */
DEVICE void fibres_sort(
    const struct add_tensor *tensor, const struct fibres_dealt *dealt, uint32_t fibre)
{
    const uint32_t k = (uint32_t)tensor->k;
    const uint64_t list = (uint64_t)fibre * k;
    for (uint32_t i = device_lane(); i < k; i += WARP) {
        const uint32_t position = dealt->position[i];
        uint32_t rank = 0;
        for (uint32_t j = 0; j < k; j++) {
            rank += dealt->position[j] < position;
        }
        tensor->position[list + rank] = fibre * (uint32_t)tensor->view.length + position;
        tensor->value[list + rank] = dealt->value[i];
    }
}

DEVICE void fibres_pick_one(
    const struct add_tensor *tensor, const struct fibres_scratch *scratch, uint32_t fibre)
{
    const uint32_t k = (uint32_t)tensor->k;
    const uint64_t room = (uint64_t)fibre * tensor->room;
    const struct fibres_dealt dealt = {
        scratch->position + room, scratch->value + room, scratch->dealt[fibre]};
    if (dealt.count < k || dealt.count > tensor->room) {
        if (device_lane() == 0) {
            scratch->list[atomicAdd(scratch->open, 1u)] = fibre;
        }
        return;
    }
    const struct fibres_cut at = fibres_halve(&dealt, k, (uint32_t)tensor->view.length);
    const uint32_t least = fibres_keep(&dealt, at);
    fibres_sort(tensor, &dealt, fibre);
    if (device_lane() == 0 && tensor->hints != NULL) {
        tensor->hints[fibre] = convert_float(least);
    }
}

/* ADD_PICK of a share: its fibres of each tensor. */
DEVICE void fibres_pick(const struct add_batch *batch, uint32_t share)
{
    for (uint32_t t = 0; t < batch->tensors; t++) {
        const struct add_tensor *const tensor = &batch->tensor[t];
        if (tensor->mode != ADD_FIBRES) {
            continue;
        }
        const struct fibres_scratch scratch = scratch_fibres(tensor);
        const uint32_t fibres = (uint32_t)tensor->view.fibres;
        for (uint32_t f = share * WARPS + device_warp(); f < fibres; f += gridDim.x * WARPS) {
            fibres_pick_one(tensor, &scratch, f);
        }
    }
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
    const uint32_t length = (uint32_t)tensor->view.length;
    uint64_t place = number * tensor->k;
    for (uint32_t first = 0; first < length; first += BLOCK) {
        const uint32_t i = first + threadIdx.x;
        const float x = i < length ? search_element(fibre, i) : 0;
        const uint32_t key = batch_key(x);
        const uint32_t above = i < length && key > cut;
        const uint32_t equal = i < length && key == cut;
        uint32_t all; /* two counts at once, none above BLOCK */
        const uint32_t before = device_scan(above | equal << 16, &all);
        const uint32_t earlier = before >> 16;
        if (above != 0 || (equal != 0 && earlier < ties)) {
            const uint64_t at = place + (before & 0xffffu) + (earlier < ties ? earlier : ties);
            tensor->position[at] = number * length + i;
            tensor->value[at] = x;
        }
        const uint32_t taken = all >> 16 < ties ? all >> 16 : ties;
        place += (all & 0xffffu) + taken;
        ties -= taken;
    }
}

/* ADD_SEARCH of a share. */
DEVICE void fibres_search(const struct add_batch *batch, uint32_t share)
{
    uint32_t *const bins = stream_bins();
    for (uint32_t t = 0; t < batch->tensors; t++) {
        const struct add_tensor *const tensor = &batch->tensor[t];
        if (tensor->mode != ADD_FIBRES) {
            continue;
        }
        const struct fibres_scratch scratch = scratch_fibres(tensor);
        const uint32_t open = scratch.open[0];
        for (uint32_t i = share; i < open; i += gridDim.x) {
            const uint32_t number = scratch.list[i];
            const struct search_line fibre = fibres_line(tensor, &batch->slots, number);
            const struct bins_place cut = search_rank(&fibre, (uint32_t)tensor->k, bins);
            fibres_search_emit(tensor, &fibre, number, cut.bin, cut.rank);
            if (threadIdx.x == 0 && tensor->hints != NULL) {
                tensor->hints[number] = convert_float(cut.bin);
            }
        }
    }
}
