/*
 * The positions of lists become bytes (encode.h): which encoding, where each section begins, and
 * the positions themselves.
 *
 * No byte is written by two threads. Where several entries have bits in one byte, the first of them
 * writes it.
 */
#include "kernels/base/partition.h"
#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/encode.h"

enum { ENCODE_ROWS_OF_BLOCK = ENCODE_BLOCK / WARP };

/* A block of a list, for a warp. */
struct encode_at {
    const struct encode_order *order;
    uint64_t number; /* in its list */
    uint64_t first;  /* its first entry */
    uint32_t count;  /* its entries */
};

DEVICE struct encode_at encode_find(const struct encode_batch *batch, uint64_t number)
{
    struct encode_at at;
    at.order = batch_find(batch->order, batch->orders, number);
    at.number = number - at.order->first;
    at.first = at.number * ENCODE_BLOCK;
    const uint64_t rest = at.order->count - at.first;
    at.count = rest < ENCODE_BLOCK ? (uint32_t)rest : (uint32_t)ENCODE_BLOCK;
    return at;
}

DEVICE uint64_t encode_blocks(const struct encode_order *order)
{
    return (order->count + ENCODE_BLOCK - 1) / ENCODE_BLOCK;
}

DEVICE uint32_t encode_width(uint64_t value)
{
    uint32_t width = 0;
    for (; value != 0; value >>= 1) {
        width++;
    }
    return width;
}

/* The distance between an entry's position and the lowest that it could have. */
DEVICE uint32_t encode_distance(const struct encode_order *order, uint64_t entry)
{
    const uint32_t before = entry > 0 ? order->position[entry - 1] + 1 : 0;
    return order->position[entry] - before;
}

DEVICE uint64_t encode_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ------------------------------------------------------------------ the scan */

KERNEL encode_begin(const struct encode_batch batch)
{
    for (uint64_t o = device_thread(); o < batch.orders; o += device_threads()) {
        struct encode_found *const found = batch.order[o].found;
        for (uint32_t k = 0; k < ENCODE_RICE; k++) {
            found->quotients[k] = 0;
        }
        found->scattered = 0;
    }
}

/* The sum of a number of all lanes. */
DEVICE uint32_t encode_sum(uint32_t value)
{
    for (uint32_t distance = WARP / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(WARP_ALL, value, distance);
    }
    return value;
}

DEVICE uint32_t encode_or(uint32_t value)
{
    for (uint32_t distance = WARP / 2; distance > 0; distance /= 2) {
        value |= __shfl_xor_sync(WARP_ALL, value, distance);
    }
    return value;
}

/* Counts the entries outside the fibres in which ROWS wants them. */
DEVICE void encode_scan_rows(const struct encode_at *at)
{
    const struct encode_order *const order = at->order;
    const uint64_t each = encode_least(order->per_fibre, order->view.length);
    uint32_t outside = 0;
    for (uint32_t i = device_lane(); each > 0 && i < at->count; i += WARP) {
        const uint64_t fibre = (at->first + i) / each;
        outside += order->position[at->first + i] / order->view.length != fibre;
    }
    if (outside > 0) {
        (void)atomicAdd(&order->found->scattered, outside);
    }
}

KERNEL encode_scan(const struct encode_batch batch)
{
    const uint64_t warps = device_threads() / WARP;
    for (uint64_t b = device_thread() / WARP; b < batch.blocks; b += warps) {
        const struct encode_at at = encode_find(&batch, b);
        uint32_t distance[ENCODE_ROWS_OF_BLOCK];
        uint32_t seen = 0;
        UNROLL
        for (uint32_t r = 0; r < ENCODE_ROWS_OF_BLOCK; r++) {
            const uint32_t i = r * WARP + device_lane();
            distance[r] = i < at.count ? encode_distance(at.order, at.first + i) : 0;
            seen |= distance[r];
        }
        const uint32_t width = encode_width(encode_or(seen));
        for (uint32_t k = 0; k < width; k++) {
            uint32_t mine = 0;
            UNROLL
            for (uint32_t r = 0; r < ENCODE_ROWS_OF_BLOCK; r++) {
                mine += distance[r] >> k;
            }
            const uint32_t sum = encode_sum(mine);
            if (device_lane() == 0 && sum > 0) {
                (void)atomicAdd(&at.order->found->quotients[k], sum);
            }
        }
        if (device_lane() == 0) {
            at.order->block[at.number].width = width;
        }
        encode_scan_rows(&at);
    }
}

/* ------------------------------------------------------------------ the choice */

#define ENCODE_IMPOSSIBLE UINT64_MAX

/* The greatest parameter of RICE that can be the best. */
DEVICE uint32_t encode_rice_limit(const struct encode_order *order)
{
    if (order->count == 0) {
        return 0;
    }
    const uint64_t end = (uint64_t)order->position[order->count - 1] + 1;
    const uint32_t limit = encode_width((end - order->count) / order->count);
    return limit < ENCODE_RICE - 1 ? limit : ENCODE_RICE - 1;
}

/* Bytes of RICE; sets its best parameter, the least of equals. */
DEVICE uint64_t encode_rice_size(const struct encode_order *order)
{
    const uint32_t limit = encode_rice_limit(order);
    uint64_t least = ENCODE_IMPOSSIBLE;
    for (uint32_t k = 0; k <= limit; k++) {
        const uint64_t bits = order->count * (k + 1ull) + order->found->quotients[k];
        order->found->rice = bits < least ? k : order->found->rice;
        least = encode_least(bits, least);
    }
    return 1 + (least + 7) / 8;
}

/* Bits of a position in its fibre. */
DEVICE uint32_t encode_rows_width(const struct encode_order *order)
{
    return order->view.length == 0 ? 0 : encode_width(order->view.length - 1);
}

DEVICE uint64_t encode_rows_size(const struct encode_order *order)
{
    const uint64_t each = encode_least(order->per_fibre, order->view.length);
    if (order->per_fibre == 0 || order->count != order->view.fibres * each ||
        order->found->scattered > 0) {
        return ENCODE_IMPOSSIBLE;
    }
    return (order->count * encode_rows_width(order) + 7) / 8;
}

/* Bytes of a map with a bit per position, or per slot of the list's partition. */
DEVICE uint64_t encode_map_size(const struct encode_order *order, bool hashed)
{
    const uint64_t n = view_size(&order->view);
    const bool whole = !hashed || order->parts <= 1;
    return ((whole ? n : partition_size(n, order->part, order->parts)) + 7) / 8;
}

/* Bytes of the positions. delta: those of DELTA. */
DEVICE uint64_t encode_size(const struct encode_order *order, uint32_t index, uint64_t delta)
{
    switch (index) {
    case ENCODE_RAW: return 4 * order->count;
    case ENCODE_ROWS: return encode_rows_size(order);
    case ENCODE_DELTA: return delta;
    case ENCODE_RICE_CODES: return encode_rice_size(order);
    case ENCODE_BITMAP:
    case ENCODE_HASHMAP: return encode_map_size(order, index == ENCODE_HASHMAP);
    default: return ENCODE_IMPOSSIBLE;
    }
}

/* The smallest, but ROWS wherever its section is hardly larger. */
DEVICE uint32_t encode_smallest(const struct encode_order *order, uint64_t delta)
{
    const uint64_t rest = ENCODE_SECTION + encode_values_size(order->count, order->values);
    const uint64_t rows = encode_rows_size(order);
    uint32_t best = ENCODE_RAW;
    uint64_t least = 4 * order->count;
    for (uint32_t index = ENCODE_ROWS; index <= ENCODE_HASHMAP; index++) {
        const uint64_t size = encode_size(order, index, delta);
        best = size < least ? index : best;
        least = encode_least(size, least);
    }
    const bool will_do = rows != ENCODE_IMPOSSIBLE && (rows + rest) * 50 <= (least + rest) * 51;
    return will_do ? (uint32_t)ENCODE_ROWS : best;
}

/* For a block of threads: adds up what DELTA takes; all get the sum. */
DEVICE uint64_t encode_delta_size(const struct encode_order *order)
{
    const uint64_t blocks = encode_blocks(order);
    uint64_t before = 0;
    for (uint64_t first = 0; first < blocks; first += BLOCK) {
        const uint64_t b = first + threadIdx.x;
        const uint64_t entries = encode_least(order->count - b * ENCODE_BLOCK, ENCODE_BLOCK);
        const uint32_t mine =
            b < blocks ? 1 + (uint32_t)(entries * order->block[b].width + 7) / 8 : 0;
        uint32_t all;
        const uint32_t place = device_scan(mine, &all);
        if (b < blocks) {
            order->block[b].before = before + place;
        }
        before += all;
    }
    return before;
}

/* Writes the header of a list's section, which begins at `at`. Returns where it ends. */
DEVICE uint64_t encode_section(
    const struct encode_batch *batch, const struct encode_order *order, uint64_t delta, uint64_t at)
{
    struct encode_found *const found = order->found;
    found->index = order->index;
    found->index_size = encode_size(order, order->index, delta);
    if (found->index_size == ENCODE_IMPOSSIBLE) {
        found->index = encode_smallest(order, delta);
        found->index_size = encode_size(order, found->index, delta);
    }
    const uint64_t header = found->index | (uint64_t)order->values << 4 | order->count << 8;
    for (uint32_t i = 0; i < ENCODE_SECTION; i++) {
        batch->frame[at + i] = (uint8_t)(header >> 8 * i);
    }
    found->at = at + ENCODE_SECTION;
    return found->at + found->index_size + encode_values_size(order->count, order->values);
}

/* The first block of threads places all sections, one behind the other. */
KERNEL encode_choose(const struct encode_batch batch)
{
    uint64_t at = ENCODE_FRAME;
    for (uint32_t o = 0; blockIdx.x == 0 && o < batch.orders; o++) {
        const uint64_t delta = encode_delta_size(&batch.order[o]);
        if (threadIdx.x == 0) {
            at = encode_section(&batch, &batch.order[o], delta, at);
        }
        __syncthreads();
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *batch.size = at;
        for (uint32_t i = 0; i < sizeof(uint64_t); i++) {
            batch.frame[ENCODE_AT_LENGTH + i] = (uint8_t)(at >> 8 * i);
        }
    }
}

/* ------------------------------------------------------------------ before writing */

/* The bytes of maps and of RICE begin as zeros; the quotients of each block are added up. */
KERNEL encode_quotients(const struct encode_batch batch)
{
    const uint64_t warps = device_threads() / WARP;
    for (uint32_t o = 0; o < batch.orders; o++) {
        const struct encode_found *const found = batch.order[o].found;
        const bool clears = found->index >= ENCODE_BITMAP;
        for (uint64_t i = device_thread(); clears && i < found->index_size; i += device_threads()) {
            batch.frame[found->at + i] = 0;
        }
    }
    for (uint64_t b = device_thread() / WARP; b < batch.blocks; b += warps) {
        const struct encode_at at = encode_find(&batch, b);
        uint32_t mine = 0;
        if (at.order->found->index != ENCODE_RICE_CODES) {
            continue;
        }
        for (uint32_t i = device_lane(); i < at.count; i += WARP) {
            mine += encode_distance(at.order, at.first + i) >> at.order->found->rice;
        }
        const uint32_t sum = encode_sum(mine);
        if (device_lane() == 0) {
            at.order->block[at.number].ones = sum;
        }
    }
}

/* Where the quotients of each block begin. */
KERNEL encode_ones(const struct encode_batch batch)
{
    for (uint32_t o = blockIdx.x; o < batch.orders; o += gridDim.x) {
        const struct encode_order *const order = &batch.order[o];
        const bool is_rice = order->found->index == ENCODE_RICE_CODES;
        const uint64_t blocks = is_rice ? encode_blocks(order) : 0;
        uint32_t before = 0;
        for (uint64_t first = 0; first < blocks; first += BLOCK) {
            const uint64_t b = first + threadIdx.x;
            uint32_t all;
            const uint32_t place = device_scan(b < blocks ? order->block[b].ones : 0, &all);
            if (b < blocks) {
                order->block[b].ones = before + place;
            }
            before += all;
        }
    }
}

/* ------------------------------------------------------------------ fields of one width */

/* What a field has. */
DEVICE uint32_t encode_field(const struct encode_order *order, uint64_t entry)
{
    const struct encode_found *const found = order->found;
    if (found->index == ENCODE_ROWS) {
        return (uint32_t)(order->position[entry] % order->view.length);
    }
    const uint32_t distance = encode_distance(order, entry);
    return found->index == ENCODE_DELTA ? distance : distance & ((1u << found->rice) - 1);
}

/* Byte number `byte` of a block's fields. */
DEVICE uint8_t encode_byte(const struct encode_at *at, uint32_t width, uint32_t byte)
{
    const uint32_t begin = byte * 8;
    uint64_t bits = 0;
    for (uint32_t i = begin / width; i < at->count && i * width < begin + 8; i++) {
        const uint64_t field = encode_field(at->order, at->first + i);
        const uint32_t from = i * width;
        bits |= from >= begin ? field << (from - begin) : field >> (begin - from);
    }
    return (uint8_t)bits;
}

/* A warp writes a block's fields; whole: but not the byte in which they end. */
DEVICE void encode_fields(const struct encode_at *at, uint32_t width, uint8_t *to, bool whole)
{
    const uint32_t bits = at->count * width;
    const uint32_t bytes = whole ? bits / 8 : (bits + 7) / 8;
    for (uint32_t byte = device_lane(); byte < bytes; byte += WARP) {
        to[byte] = encode_byte(at, width, byte);
    }
}

/* ------------------------------------------------------------------ single bits */

/* An entry's bit in the map. */
DEVICE uint64_t encode_bit(const struct encode_order *order, uint64_t entry)
{
    const bool hashed = order->found->index == ENCODE_HASHMAP && order->parts > 1;
    const uint32_t position = order->position[entry];
    return hashed ? partition_slot(position, order->parts) : position;
}

/* Writes the bytes of a map that begin with one of the block's entries. */
DEVICE void encode_map(const struct encode_at *at, uint8_t *to)
{
    const struct encode_order *const order = at->order;
    for (uint64_t i = at->first + device_lane(); i < at->first + at->count; i += WARP) {
        const uint64_t byte = encode_bit(order, i) / 8;
        if (i > 0 && encode_bit(order, i - 1) / 8 == byte) {
            continue;
        }
        uint32_t bits = 0;
        for (uint64_t j = i; j < order->count && encode_bit(order, j) / 8 == byte; j++) {
            bits |= 1u << encode_bit(order, j) % 8;
        }
        to[byte] = (uint8_t)bits;
    }
}

/* The ones of RICE from an entry on that are in the same byte. one: the entry's bit in the stream.
 */
DEVICE uint32_t encode_rice_byte(const struct encode_order *order, uint64_t entry, uint64_t one)
{
    const uint64_t byte = one / 8;
    uint32_t bits = 0;
    while (one / 8 == byte) {
        bits |= 1u << one % 8;
        if (++entry >= order->count) {
            break;
        }
        one += (encode_distance(order, entry) >> order->found->rice) + 1ull;
    }
    return bits;
}

/* Writes the bytes that begin with the one of one of the block's entries. The byte in which the
 * fields of RICE end is the last block's. */
DEVICE void encode_rice_ones(const struct encode_at *at, uint8_t *to)
{
    const struct encode_order *const order = at->order;
    const uint32_t rice = order->found->rice;
    const uint64_t begin = order->count * rice;
    uint64_t ones = begin + order->block[at->number].ones + at->first;
    for (uint32_t first = 0; first < at->count; first += WARP) {
        const uint32_t i = first + device_lane();
        const bool there = i < at->count;
        const uint32_t mine = there ? encode_distance(order, at->first + i) >> rice : 0;
        uint32_t all;
        const uint64_t one = ones + device_scan_warp(mine, &all) + mine + device_lane();
        const uint64_t previous = one - mine - 1; /* of the entry before */
        const bool follows = at->first + i > 0 && previous / 8 == one / 8;
        const bool ends_fields = begin % 8 != 0 && one / 8 == begin / 8;
        if (there && !follows && !ends_fields) {
            to[one / 8] = (uint8_t)encode_rice_byte(order, at->first + i, one);
        }
        ones += all + WARP;
    }
}

/* The byte in which the fields of RICE end, with the ones that are in it. */
DEVICE void encode_rice_border(const struct encode_at *at, uint8_t *to)
{
    const struct encode_order *const order = at->order;
    const uint32_t rice = order->found->rice;
    const uint64_t begin = order->count * rice;
    if (begin % 8 == 0 || at->first + at->count < order->count || device_lane() != 0) {
        return;
    }
    const uint64_t one = begin + (encode_distance(order, 0) >> rice);
    uint32_t bits = encode_byte(at, rice, at->count * rice / 8);
    if (one / 8 == begin / 8) {
        bits |= encode_rice_byte(order, 0, one);
    }
    to[begin / 8] = (uint8_t)bits;
}

DEVICE void encode_rice(const struct encode_at *at, uint8_t *to)
{
    const uint32_t rice = at->order->found->rice;
    if (at->first == 0 && device_lane() == 0) {
        to[0] = (uint8_t)rice;
    }
    if (rice > 0) {
        encode_fields(at, rice, to + 1 + at->number * (ENCODE_BLOCK / 8) * rice, true);
    }
    encode_rice_border(at, to + 1);
    encode_rice_ones(at, to + 1);
}

/* ------------------------------------------------------------------ writing */

DEVICE void encode_raw(const struct encode_at *at, uint8_t *to)
{
    for (uint64_t i = at->first + device_lane(); i < at->first + at->count; i += WARP) {
        for (uint32_t byte = 0; byte < 4; byte++) {
            to[4 * i + byte] = (uint8_t)(at->order->position[i] >> 8 * byte);
        }
    }
}

DEVICE void encode_delta(const struct encode_at *at, uint8_t *to)
{
    const struct encode_block *const block = &at->order->block[at->number];
    if (device_lane() == 0) {
        to[block->before] = (uint8_t)block->width;
    }
    if (block->width > 0) {
        encode_fields(at, block->width, to + block->before + 1, false);
    }
}

DEVICE void encode_rows(const struct encode_at *at, uint8_t *to)
{
    const uint32_t width = encode_rows_width(at->order);
    if (width > 0) {
        encode_fields(at, width, to + at->number * (ENCODE_BLOCK / 8) * width, false);
    }
}

KERNEL encode_index(const struct encode_batch batch)
{
    const uint64_t warps = device_threads() / WARP;
    for (uint64_t b = device_thread() / WARP; b < batch.blocks; b += warps) {
        const struct encode_at at = encode_find(&batch, b);
        uint8_t *const to = batch.frame + at.order->found->at;
        switch (at.order->found->index) {
        case ENCODE_RAW: encode_raw(&at, to); break;
        case ENCODE_ROWS: encode_rows(&at, to); break;
        case ENCODE_DELTA: encode_delta(&at, to); break;
        case ENCODE_RICE_CODES: encode_rice(&at, to); break;
        default: encode_map(&at, to);
        }
    }
    for (uint64_t o = device_thread(); o < batch.orders; o += device_threads()) {
        const struct encode_order *const order = &batch.order[o];
        if (order->count == 0 && order->found->index == ENCODE_RICE_CODES) {
            batch.frame[order->found->at] = (uint8_t)order->found->rice;
        }
    }
}
