/*
 * Statistics of a residual, the elements that reach a bound, and single ranks (survey.h).
 *
 * Element i of a chunk is in lane i % 16; a lane has a thread. So half a warp has a chunk.
 */
#include "kernels/cuda/search.cuh"
#include "kernels/cuda/survey.h"

/* ------------------------------------------------------------------ statistics of a chunk */

DEVICE uint32_t survey_length(const struct survey_order *order, uint64_t chunk)
{
    const uint64_t rest = order->numel - chunk * CHUNK;
    return rest < CHUNK ? (uint32_t)rest : (uint32_t)CHUNK;
}

/* A lane's elements. The exponents of their magnitudes are added with their biases, and the
 * mantissa is the product of theirs. */
DEVICE struct stats survey_lane(
    const struct survey_order *order, const struct slots *slots, uint64_t chunk, uint32_t lane)
{
    struct stats sums = stats_none();
    const uint32_t length = survey_length(order, chunk);
    const uint64_t entry = order->entry[chunk];
    for (uint32_t i = lane; i < length; i += STATS_LANES) {
        const float x = batch_element(slots, entry, i);
        const uint32_t key = batch_key(x);
        if (key >= order->least) {
            const double magnitude = (double)convert_float(key);
            sums.count++;
            sums.sum += (double)x;
            sums.sum_abs += magnitude;
            sums.sum_squares += magnitude * magnitude;
            sums.mantissa *= stats_mantissa(magnitude);
            sums.exponent += (int64_t)stats_exponent(magnitude);
            sums.most = key > sums.most ? key : sums.most;
            sums.least = key < sums.least ? key : sums.least;
        }
    }
    return sums;
}

/* Adds the lanes as a tree. */
DEVICE double survey_tree(double sum)
{
    for (uint32_t distance = STATS_LANES / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(WARP_ALL, sum, distance);
    }
    return sum;
}

/* Whole numbers are added in any order. */
DEVICE void survey_fold_numbers(struct stats *sums)
{
    for (uint32_t distance = STATS_LANES / 2; distance > 0; distance /= 2) {
        const uint32_t most = __shfl_xor_sync(WARP_ALL, sums->most, distance);
        const uint32_t least = __shfl_xor_sync(WARP_ALL, sums->least, distance);
        sums->count += __shfl_xor_sync(WARP_ALL, sums->count, distance);
        sums->exponent += __shfl_xor_sync(WARP_ALL, sums->exponent, distance);
        sums->most = most > sums->most ? most : sums->most;
        sums->least = least < sums->least ? least : sums->least;
    }
}

/* The chunk's statistics from those of its lanes. */
DEVICE struct stats survey_fold(struct stats lane)
{
    const uint32_t first = device_lane() / STATS_LANES * STATS_LANES;
    struct stats sums = lane;
    double mantissa = 1;
    survey_fold_numbers(&sums);
    sums.sum = survey_tree(lane.sum);
    sums.sum_abs = survey_tree(lane.sum_abs);
    sums.sum_squares = survey_tree(lane.sum_squares);
    sums.exponent -= (int64_t)sums.count * STATS_BIAS;
    for (uint32_t l = 0; l < STATS_LANES; l++) {
        double product = __shfl_sync(WARP_ALL, lane.mantissa, first + l);
        stats_normalise(&product, &sums.exponent);
        mantissa *= product;
    }
    stats_normalise(&mantissa, &sums.exponent);
    sums.mantissa = mantissa;
    return sums;
}

KERNEL survey_stats(const struct survey_batch batch)
{
    const uint64_t all = (batch.chunks + 1) / 2 * WARP;
    for (uint64_t i = device_thread(); i < all; i += device_threads()) {
        const uint64_t number = i / STATS_LANES;
        const bool there = number < batch.chunks;
        const struct survey_order *const order =
            batch_find(batch.order, batch.orders, there ? number : 0);
        const uint64_t chunk = there ? number - order->first : 0;
        const struct stats lane = survey_lane(order, &batch.slots, chunk, i % STATS_LANES);
        const struct stats sums = survey_fold(lane);
        if (there && i % STATS_LANES == 0) {
            order->chunk[chunk] = sums;
        }
    }
}

/* ------------------------------------------------------------------ of all chunks */

/* The chunks are joined in their order; one thread does so, and the others bring it what they have.
 */
DEVICE void survey_join(const struct survey_order *order)
{
    SHARED(struct stats, some, BLOCK);
    const uint64_t chunks = chunk_count(order->numel);
    struct stats total = stats_none();
    uint32_t before = 0;
    for (uint64_t first = 0; first < chunks; first += BLOCK) {
        const uint64_t chunk = first + threadIdx.x;
        const uint32_t mine = chunk < chunks ? (uint32_t)order->chunk[chunk].count : 0;
        uint32_t all;
        const uint32_t place = before + device_scan(mine, &all);
        if (chunk < chunks) {
            some[threadIdx.x] = order->chunk[chunk];
            order->place[chunk] = place;
        }
        before += all;
        __syncthreads();
        for (uint32_t i = 0; threadIdx.x == 0 && i < BLOCK && first + i < chunks; i++) {
            stats_join(&total, &some[i]);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        *order->total = total;
    }
}

KERNEL survey_total(const struct survey_batch batch)
{
    for (uint32_t o = blockIdx.x; o < batch.orders; o += gridDim.x) {
        survey_join(&batch.order[o]);
    }
}

/* ------------------------------------------------------------------ the list */

/* A warp writes a chunk's elements that reach the bound. */
DEVICE void survey_emit(const struct survey_order *order, const struct slots *slots, uint64_t chunk)
{
    const uint32_t length = survey_length(order, chunk);
    const uint64_t entry = order->entry[chunk];
    uint64_t place = order->place[chunk];
    for (uint32_t first = 0; first < length; first += WARP) {
        const uint32_t i = first + device_lane();
        const float x = i < length ? batch_element(slots, entry, i) : 0;
        const bool reaches = batch_key(x) >= order->least;
        const uint32_t all = __ballot_sync(WARP_ALL, reaches);
        const uint64_t at = place + (uint32_t)__popc(all & ((1u << device_lane()) - 1));
        if (reaches && at < order->room) {
            order->position[at] = (uint32_t)(chunk * CHUNK + i);
            order->value[at] = x;
        }
        place += (uint32_t)__popc(all);
    }
}

KERNEL survey_list(const struct survey_batch batch)
{
    const uint64_t warps = device_threads() / WARP;
    for (uint64_t c = device_thread() / WARP; c < batch.chunks; c += warps) {
        const struct survey_order *const order = batch_find(batch.order, batch.orders, c);
        if (order->position != NULL && order->chunk[c - order->first].count > 0) {
            survey_emit(order, &batch.slots, c - order->first);
        }
    }
}

/* ------------------------------------------------------------------ ranks */

KERNEL survey_ranked(const struct survey_batch batch)
{
    SHARED(uint32_t, bins, ADD_BINS);
    for (uint32_t r = blockIdx.x; r < batch.rankeds; r += gridDim.x) {
        const struct survey_rank *const ranked = &batch.ranked[r];
        const uint64_t length = (ranked->numel - ranked->start - 1) / ranked->stride + 1;
        const struct search_line line = {
            &batch.slots, ranked->entry, ranked->start, ranked->stride, length};
        const struct bins_place cut = search_rank(&line, ranked->rank, bins);
        if (threadIdx.x == 0) {
            *ranked->magnitude = convert_float(cut.bin);
        }
    }
}
