/*
 * The values of lists become bytes, in all types of base/quantise.h, and what the receiver will
 * decode (encode.h).
 *
 * A warp has a block of 128 values; lane l has the values l, l + 32, l + 64 and l + 96 of it.
 */
#include "kernels/base/blocks.h"
#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/encode.h"

enum { VALUES_EACH = ENCODE_BLOCK / WARP, VALUES_LANES = 8 };
#define VALUES_MOST 0x7f7f0000 /* the largest magnitude of packed values, as bits of f32 */

/* A block of values. */
struct values_block {
    const float *value;
    float *decoded;
    uint32_t count;
    uint8_t *to; /* its bytes */
};

DEVICE void values_store(uint8_t *to, uint32_t bits, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++) {
        to[i] = (uint8_t)(bits >> 8 * i);
    }
}

/* ------------------------------------------------------------------ one by one */

DEVICE void values_each(const struct values_block *block, uint32_t type)
{
    const uint32_t bytes = type == QUANTISE_F32 ? 4 : 2;
    for (uint32_t i = device_lane(); i < block->count; i += WARP) {
        const float x = block->value[i];
        uint32_t bits = convert_bits(x);
        block->decoded[i] = x;
        if (type == QUANTISE_BF16) {
            bits = convert_to_bf16(x);
            block->decoded[i] = convert_bf16((uint16_t)bits);
        } else if (type == QUANTISE_F16) {
            bits = convert_to_f16(x);
            block->decoded[i] = convert_f16((uint16_t)bits);
        }
        values_store(block->to + i * bytes, bits, bytes);
    }
}

/* ------------------------------------------------------------------ levels */

/* What a lane has of a block: magnitudes as bits, 0 where there is no value, and signs. */
struct values_lane {
    int32_t magnitude[VALUES_EACH];
    uint32_t negative[VALUES_EACH];
};

DEVICE struct values_lane values_load(const struct values_block *block, int32_t most)
{
    struct values_lane lane;
    UNROLL
    for (uint32_t r = 0; r < VALUES_EACH; r++) {
        const uint32_t i = r * WARP + device_lane();
        const float x = i < block->count ? block->value[i] : 0;
        lane.magnitude[r] = blocks_magnitude(x, most);
        lane.negative[r] = convert_bits(x) >> 31;
    }
    return lane;
}

DEVICE uint32_t values_largest(const struct values_lane *lane)
{
    uint32_t largest = 0;
    UNROLL
    for (uint32_t r = 0; r < VALUES_EACH; r++) {
        const uint32_t mine = (uint32_t)lane->magnitude[r];
        largest = mine > largest ? mine : largest;
    }
    for (uint32_t distance = WARP / 2; distance > 0; distance /= 2) {
        const uint32_t other = __shfl_xor_sync(WARP_ALL, largest, distance);
        largest = other > largest ? other : largest;
    }
    return largest;
}

/* The number of the first value of the largest magnitude. */
DEVICE uint32_t values_first(const struct values_lane *lane, uint32_t largest)
{
    uint32_t first = ENCODE_BLOCK;
    UNROLL
    for (uint32_t r = 0; r < VALUES_EACH; r++) {
        const uint32_t has = (uint32_t)lane->magnitude[r] == largest;
        const uint32_t all = __ballot_sync(WARP_ALL, has != 0);
        for (uint32_t l = 0; first == ENCODE_BLOCK && all != 0 && l < WARP; l++) {
            first = (all >> l & 1u) != 0 ? r * WARP + l : first;
        }
    }
    return first;
}

/* The magnitudes become levels. Returns the step. */
DEVICE uint16_t values_levels(struct values_lane *lane, uint32_t levels)
{
    const uint32_t largest = values_largest(lane);
    const uint32_t first = values_first(lane, largest);
    const uint16_t bits = blocks_step(convert_float(largest), (float)levels);
    const float step = bits > 0 ? convert_bf16(bits) : 1; /* all are 0 */
    UNROLL
    for (uint32_t r = 0; r < VALUES_EACH; r++) {
        const bool is_first = r * WARP + device_lane() == first;
        const float size = convert_float((uint32_t)lane->magnitude[r]);
        const int32_t level = (int32_t)(size / step + 0.5f);
        lane->magnitude[r] = is_first && largest > 0 ? (int32_t)levels : level;
    }
    return bits;
}

/* What is decoded of a magnitude; a level of 0 is +0. */
DEVICE float values_signed(float magnitude, uint32_t negative)
{
    return convert_float(convert_bits(magnitude) | negative << 31);
}

DEVICE void values_decode_levels(
    const struct values_block *block, const struct values_lane *lane, uint16_t step)
{
    UNROLL
    for (uint32_t r = 0; r < VALUES_EACH; r++) {
        const uint32_t i = r * WARP + device_lane();
        const bool is_zero = lane->magnitude[r] == 0;
        const float size = (float)lane->magnitude[r] * convert_bf16(step);
        if (i < block->count) {
            block->decoded[i] = values_signed(size, is_zero ? 0 : lane->negative[r]);
        }
    }
}

DEVICE void values_int8(const struct values_block *block)
{
    struct values_lane lane = values_load(block, (int32_t)blocks_largest(127));
    const uint16_t step = values_levels(&lane, 127);
    UNROLL
    for (uint32_t r = 0; r < VALUES_EACH; r++) {
        const uint32_t i = r * WARP + device_lane();
        const int32_t level = lane.negative[r] != 0 ? -lane.magnitude[r] : lane.magnitude[r];
        if (i < block->count) {
            block->to[2 + i] = (uint8_t)level;
        }
    }
    if (device_lane() == 0) {
        values_store(block->to, step, 2);
    }
    values_decode_levels(block, &lane, step);
}

/* ------------------------------------------------------------------ packed */

/* Writes a plane: bit i of the block is set where the lane says so of its value in a row. Its bytes
 * begin at `to`. */
DEVICE void values_plane(const struct values_block *block, uint8_t *to, uint32_t rows)
{
    const uint32_t bytes = (block->count + 7) / 8;
    UNROLL
    for (uint32_t r = 0; r < VALUES_EACH; r++) {
        const uint32_t all = __ballot_sync(WARP_ALL, (rows >> r & 1u) != 0);
        const uint32_t byte = r * (WARP / 8) + device_lane();
        if (device_lane() < WARP / 8 && byte < bytes) {
            to[byte] = (uint8_t)(all >> 8 * device_lane());
        }
    }
}

/* One bit per row: those of values that are below 0. */
DEVICE uint32_t values_signs(const struct values_lane *lane)
{
    uint32_t rows = 0;
    UNROLL
    for (uint32_t r = 0; r < VALUES_EACH; r++) {
        rows |= (uint32_t)(lane->negative[r] != 0 && lane->magnitude[r] != 0) << r;
    }
    return rows;
}

DEVICE void values_few(const struct values_block *block, uint32_t planes)
{
    const uint32_t bytes = (block->count + 7) / 8;
    const uint32_t levels = (1u << (planes - 1)) - 1;
    struct values_lane lane = values_load(block, (int32_t)blocks_largest(levels));
    const uint16_t step = values_levels(&lane, levels);
    values_plane(block, block->to + 2, values_signs(&lane));
    for (uint32_t p = 1; p < planes; p++) {
        uint32_t rows = 0;
        UNROLL
        for (uint32_t r = 0; r < VALUES_EACH; r++) {
            rows |= ((uint32_t)lane.magnitude[r] >> (p - 1) & 1u) << r;
        }
        values_plane(block, block->to + 2 + p * bytes, rows);
    }
    if (device_lane() == 0) {
        values_store(block->to, step, 2);
    }
    values_decode_levels(block, &lane, step);
}

/* The sum of the magnitudes of the rows with a bit: lane i % 8 adds the values i in their order,
 * then the lanes are added as a tree. All threads get it. */
DEVICE double values_sum(const struct values_lane *lane, uint32_t rows)
{
    double sum = 0;
    UNROLL
    for (uint32_t r = 0; r < VALUES_EACH; r++) {
        const uint32_t mine = (rows >> r & 1u) != 0 ? (uint32_t)lane->magnitude[r] : 0;
        for (uint32_t first = 0; first < WARP; first += VALUES_LANES) {
            const uint32_t from = first + device_lane() % VALUES_LANES;
            sum += (double)convert_float(__shfl_sync(WARP_ALL, mine, from));
        }
    }
    for (uint32_t distance = VALUES_LANES / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(WARP_ALL, sum, distance);
    }
    return sum;
}

DEVICE uint32_t values_count(uint32_t rows)
{
    uint32_t count = 0;
    UNROLL
    for (uint32_t r = 0; r < VALUES_EACH; r++) {
        count += (uint32_t)__popc(__ballot_sync(WARP_ALL, (rows >> r & 1u) != 0));
    }
    return count;
}

/* One bit per row: those that have a value. */
DEVICE uint32_t values_there(const struct values_block *block)
{
    uint32_t rows = 0;
    for (uint32_t r = 0; r < VALUES_EACH; r++) {
        rows |= (uint32_t)(r * WARP + device_lane() < block->count) << r;
    }
    return rows;
}

/* The values become one of two magnitudes. over: the rows with the upper one. */
DEVICE void values_decode_groups(const struct values_block *block, const struct values_lane *lane,
    uint32_t over, uint16_t low, uint16_t high)
{
    const uint32_t signs = values_signs(lane);
    UNROLL
    for (uint32_t r = 0; r < VALUES_EACH; r++) {
        const uint32_t i = r * WARP + device_lane();
        const float size = convert_bf16((over >> r & 1u) != 0 ? high : low);
        if (i < block->count) {
            block->decoded[i] = values_signed(size, signs >> r & 1u);
        }
    }
}

DEVICE void values_sign(const struct values_block *block)
{
    const struct values_lane lane = values_load(block, VALUES_MOST);
    const uint16_t mean = blocks_mean(values_sum(&lane, values_there(block)), block->count);
    values_plane(block, block->to + 2, values_signs(&lane));
    if (device_lane() == 0) {
        values_store(block->to, mean, 2);
    }
    values_decode_groups(block, &lane, 0, mean, 0);
}

/* The groups of a block. */
struct values_groups {
    uint16_t low, high;
    uint32_t over; /* the lane's rows in the upper group */
};

/* The lane's rows whose magnitude is larger. */
DEVICE uint32_t values_over(const struct values_lane *lane, uint32_t threshold)
{
    uint32_t rows = 0;
    UNROLL
    for (uint32_t r = 0; r < VALUES_EACH; r++) {
        rows |= (uint32_t)((uint32_t)lane->magnitude[r] > threshold) << r;
    }
    return rows;
}

/* The smallest magnitude, and whether all are that or the largest. */
DEVICE uint32_t values_smallest(
    const struct values_lane *lane, uint32_t there, uint32_t largest, bool *two)
{
    uint32_t least = UINT32_MAX;
    uint32_t others = 0;
    UNROLL
    for (uint32_t r = 0; r < VALUES_EACH; r++) {
        const uint32_t mine = (uint32_t)lane->magnitude[r];
        least = (there >> r & 1u) != 0 && mine < least ? mine : least;
    }
    for (uint32_t distance = WARP / 2; distance > 0; distance /= 2) {
        const uint32_t other = __shfl_xor_sync(WARP_ALL, least, distance);
        least = other < least ? other : least;
    }
    UNROLL
    for (uint32_t r = 0; r < VALUES_EACH; r++) {
        const uint32_t mine = (uint32_t)lane->magnitude[r];
        others |= (uint32_t)(mine != least && mine != largest) & there >> r;
    }
    *two = __ballot_sync(WARP_ALL, others != 0) == 0;
    return least;
}

DEVICE struct values_groups values_part(
    const struct values_lane *lane, uint32_t there, uint32_t count)
{
    const uint32_t largest = values_largest(lane);
    bool two;
    const uint32_t least = values_smallest(lane, there, largest, &two);
    struct values_groups groups;
    if (two && ((least | largest) & 0xffffu) == 0) {
        groups.low = (uint16_t)(least >> 16);
        groups.high = (uint16_t)(largest > least ? largest >> 16 : 0);
        groups.over = values_over(lane, least);
        return groups;
    }
    groups.over = values_over(lane, blocks_threshold(values_sum(lane, there), count, least));
    const uint32_t above = values_count(groups.over & there);
    groups.low = blocks_mean(values_sum(lane, there & ~groups.over), count - above);
    groups.high = blocks_mean(values_sum(lane, there & groups.over), above);
    if (groups.high <= groups.low) {
        groups.high = 0;
        groups.over = 0;
    }
    return groups;
}

DEVICE void values_two(const struct values_block *block)
{
    const struct values_lane lane = values_load(block, VALUES_MOST);
    const struct values_groups groups = values_part(&lane, values_there(block), block->count);
    values_plane(block, block->to + 4, values_signs(&lane));
    values_plane(block, block->to + 4 + (block->count + 7) / 8, groups.over);
    if (device_lane() == 0) {
        values_store(block->to, groups.low, 2);
        values_store(block->to + 2, groups.high, 2);
    }
    values_decode_groups(block, &lane, groups.over, groups.low, groups.high);
}

/* ------------------------------------------------------------------ the kernel */

DEVICE void values_write(const struct values_block *block, uint32_t type)
{
    switch (type) {
    case QUANTISE_INT8: values_int8(block); break;
    case QUANTISE_TWO: values_two(block); break;
    case QUANTISE_SIGN: values_sign(block); break;
    case QUANTISE_INT4: values_few(block, 4); break;
    case QUANTISE_INT3: values_few(block, 3); break;
    default: values_each(block, type);
    }
}

KERNEL encode_values(const struct encode_batch batch)
{
    const uint64_t warps = device_threads() / WARP;
    for (uint64_t b = device_thread() / WARP; b < batch.blocks; b += warps) {
        const struct encode_order *const order = batch_find(batch.order, batch.orders, b);
        const uint64_t first = (b - order->first) * ENCODE_BLOCK;
        const uint64_t rest = order->count - first;
        const struct encode_found *const found = order->found;
        const struct values_block block = {order->value + first, order->decoded + first,
            rest < ENCODE_BLOCK ? (uint32_t)rest : (uint32_t)ENCODE_BLOCK,
            batch.frame + found->at + found->index_size + encode_values_size(first, order->values)};
        values_write(&block, order->values);
    }
}
