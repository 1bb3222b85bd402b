#include "kernels/base/packed.h"

#include <string.h>

#include "kernels/base/blocks.h"
#include "kernels/base/packed_plain.h"

unsigned packed_planes(enum quantisation type)
{
    switch (type) {
    case QUANTISE_SIGN: return 1;
    case QUANTISE_TWO: return 2;
    case QUANTISE_INT3: return 3;
    default: return 4;
    }
}

unsigned packed_scales(enum quantisation type)
{
    return type == QUANTISE_TWO ? 2 : 1;
}

static unsigned packed_levels(enum quantisation type)
{
    return (1u << (packed_planes(type) - 1)) - 1;
}

/* ------------------------------------------------------------------ encoding */

static double packed_tree(const double lane[PACKED_LANES])
{
    double sum[PACKED_LANES];

    memcpy(sum, lane, sizeof(sum));
    for (unsigned half = PACKED_LANES / 2; half > 0; half /= 2) {
        for (unsigned i = 0; i < half; i++) {
            sum[i] += sum[i + half];
        }
    }
    return sum[0];
}

static unsigned packed_count(const uint8_t plane[PACKED_PLANE_SIZE])
{
    uint64_t word[PACKED_PLANE_SIZE / 8];

    memcpy(word, plane, sizeof(word));
    return (unsigned)(__builtin_popcountll(word[0]) + __builtin_popcountll(word[1]));
}

static void packed_measure_all(
    const struct packed_ops *ops, const float *value, size_t n, struct packed_measure *measure)
{
    const size_t whole = n - n % PACKED_GROUP;

    *measure = (struct packed_measure){.least = UINT32_MAX};
    ops->measure(value, whole, measure);
    packed_plain.measure(value + whole, n - whole, measure);
}

static void packed_split_all(const struct packed_ops *ops, const float *value, size_t n,
    uint32_t threshold, struct packed_split *split)
{
    const size_t whole = n - n % PACKED_GROUP;
    struct packed_split rest = {.sign = {0}};

    *split = (struct packed_split){.sign = {0}};
    ops->split(value, whole, threshold, split);
    if (n == whole) {
        return;
    }
    memcpy(rest.below, split->below, sizeof(rest.below));
    memcpy(rest.above, split->above, sizeof(rest.above));
    packed_plain.split(value + whole, n - whole, threshold, &rest);
    memcpy(split->below, rest.below, sizeof(rest.below));
    memcpy(split->above, rest.above, sizeof(rest.above));
    memcpy(split->sign + whole / 8, rest.sign, (n - whole + 7) / 8);
    memcpy(split->over + whole / 8, rest.over, (n - whole + 7) / 8);
}

/* Encodes a block whose magnitudes are at most two numbers, which bf16 can hold. Returns false for
 * other blocks. This is the second encoding of a block, and needs no means. */
static bool packed_encode_again(const struct packed_ops *ops, const float *value, size_t n,
    const struct packed_measure *measure, struct packed_block *block)
{
    const size_t whole = n - n % PACKED_GROUP;
    const uint32_t least = measure->least, most = measure->most;
    uint8_t *sign = block->plane[0], *over = block->plane[1];

    if (((least | most) & 0xffffu) != 0 || !ops->mark(value, whole, least, most, sign, over) ||
        !packed_plain.mark(
            value + whole, n - whole, least, most, sign + whole / 8, over + whole / 8)) {
        return false;
    }
    block->scale[0] = (uint16_t)(least >> 16);
    block->scale[1] = (uint16_t)(most > least ? most >> 16 : 0);
    return true;
}

static void packed_encode_means(const struct packed_ops *ops, const float *value, size_t n,
    uint32_t threshold, struct packed_block *block)
{
    struct packed_split split;
    unsigned above;
    uint16_t low, high;

    packed_split_all(ops, value, n, threshold, &split);
    above = packed_count(split.over);
    low = blocks_mean(packed_tree(split.below), (unsigned)n - above);
    high = blocks_mean(packed_tree(split.above), above);
    *block = (struct packed_block){.scale = {low, high > low ? high : 0}};
    memcpy(block->plane[0], split.sign, sizeof(split.sign));
    if (high > low) {
        memcpy(block->plane[1], split.over, sizeof(split.over));
    }
}

static void packed_encode_two(
    const struct packed_ops *ops, const float *value, size_t n, struct packed_block *block)
{
    struct packed_measure measure;

    packed_measure_all(ops, value, n, &measure);
    if (!packed_encode_again(ops, value, n, &measure, block)) {
        packed_encode_means(ops, value, n,
            blocks_threshold(packed_tree(measure.sum), (uint32_t)n, measure.least), block);
    }
}

static void packed_encode_sign(
    const struct packed_ops *ops, const float *value, size_t n, struct packed_block *block)
{
    struct packed_split split;

    packed_split_all(ops, value, n, UINT32_MAX >> 1, &split);
    block->scale[0] = blocks_mean(packed_tree(split.below), (unsigned)n);
    memcpy(block->plane[0], split.sign, sizeof(split.sign));
}

static void packed_encode_levels(
    const float *value, size_t n, enum quantisation type, struct packed_block *block)
{
    int8_t level[QUANTISE_BLOCK] = {0};
    uint8_t code[QUANTISE_BLOCK];

    block->scale[0] = quantise_block(value, n, packed_levels(type), level);
    for (size_t i = 0; i < QUANTISE_BLOCK; i++) {
        const int magnitude = level[i] < 0 ? -level[i] : level[i];
        code[i] = (uint8_t)(2 * magnitude + (level[i] < 0));
    }
    for (unsigned p = 0; p < packed_planes(type); p++) {
        packed_gather(code, QUANTISE_BLOCK, p, block->plane[p]);
    }
}

void packed_encode(const struct packed_ops *ops, const float *value, size_t n,
    enum quantisation type, struct packed_block *block)
{
    *block = (struct packed_block){.scale = {0}};
    switch (type) {
    case QUANTISE_TWO: packed_encode_two(ops, value, n, block); break;
    case QUANTISE_SIGN: packed_encode_sign(ops, value, n, block); break;
    default: packed_encode_levels(value, n, type, block);
    }
}

/* ------------------------------------------------------------------ decoding */

static void packed_magnitudes(
    const struct packed_block *block, enum quantisation type, uint32_t table[8])
{
    const float scale = convert_bf16(block->scale[0]);

    for (unsigned code = 0; code < 8; code++) {
        table[code] = type == QUANTISE_TWO    ? (uint32_t)block->scale[code % 2] << 16
                      : type == QUANTISE_SIGN ? convert_bits(scale)
                                              : convert_bits((float)code * scale);
    }
}

void packed_decode(const struct packed_ops *ops, const struct packed_block *block, size_t n,
    enum quantisation type, float *value)
{
    const size_t whole = n - n % PACKED_GROUP;
    const unsigned planes = packed_planes(type);
    uint32_t table[8];

    packed_magnitudes(block, type, table);
    ops->expand(block, planes, table, whole, value);
    if (n > whole) {
        struct packed_block rest;

        for (unsigned p = 0; p < planes; p++) {
            memcpy(rest.plane[p], block->plane[p] + whole / 8, (n - whole + 7) / 8);
        }
        packed_plain.expand(&rest, planes, table, n - whole, value + whole);
    }
}

/* ------------------------------------------------------------------ faults */

/* The bits of a plane, and those of the values that there are. */
struct packed_bits {
    uint64_t word[PACKED_PLANE_SIZE / 8];
};

static struct packed_bits packed_bits_of(const uint8_t plane[PACKED_PLANE_SIZE])
{
    struct packed_bits bits;

    memcpy(bits.word, plane, sizeof(bits.word));
    return bits;
}

static struct packed_bits packed_present(size_t n)
{
    uint8_t plane[PACKED_PLANE_SIZE] = {0};

    if (n == QUANTISE_BLOCK) {
        return (struct packed_bits){{UINT64_MAX, UINT64_MAX}};
    }
    memset(plane, 0xff, n / 8);
    if (n % 8 != 0) {
        plane[n / 8] = (uint8_t)((1u << n % 8) - 1);
    }
    return packed_bits_of(plane);
}

/* Whether `a` has bits that `b` does not have. */
static bool packed_exceeds(struct packed_bits a, struct packed_bits b)
{
    return ((a.word[0] & ~b.word[0]) | (a.word[1] & ~b.word[1])) != 0;
}

static bool packed_is_empty(struct packed_bits bits)
{
    return (bits.word[0] | bits.word[1]) == 0;
}

static const char *packed_fault_two(const struct packed_block *block, struct packed_bits present)
{
    const uint16_t low = block->scale[0], high = block->scale[1];
    const struct packed_bits over = packed_bits_of(block->plane[1]);

    if (packed_is_empty(over) != (high == 0)) {
        return high == 0 ? "no upper magnitude, but values that have it"
                         : "an upper magnitude that no value has";
    }
    if (high != 0 && high <= low) {
        return "an upper magnitude that is not above the lower one";
    }
    if (!packed_exceeds(present, over)) {
        return "no value of the lower magnitude";
    }
    return low == 0 && packed_exceeds(packed_bits_of(block->plane[0]), over) ? "a negative 0"
                                                                             : NULL;
}

static const char *packed_fault_levels(const struct packed_block *block, unsigned planes)
{
    struct packed_bits any = {.word = {0}}, all = packed_present(QUANTISE_BLOCK);

    for (unsigned p = 1; p < planes; p++) {
        const struct packed_bits bits = packed_bits_of(block->plane[p]);
        for (unsigned w = 0; w < 2; w++) {
            any.word[w] |= bits.word[w];
            all.word[w] &= bits.word[w];
        }
    }
    if (packed_exceeds(packed_bits_of(block->plane[0]), any)) {
        return "a negative 0";
    }
    if (block->scale[0] == 0) {
        return packed_is_empty(any) ? NULL : "levels without a step";
    }
    return packed_is_empty(all) ? "no value of the largest level" : NULL;
}

const char *packed_fault(const struct packed_block *block, size_t n, enum quantisation type)
{
    const struct packed_bits present = packed_present(n);
    const bool has_levels = type != QUANTISE_TWO && type != QUANTISE_SIGN;
    const uint16_t most =
        has_levels ? quantise_step_max(packed_levels(type)) : (uint16_t)PACKED_SCALE_MAX;

    for (unsigned s = 0; s < packed_scales(type); s++) {
        if (block->scale[s] > most) {
            return "a scale that is too large";
        }
    }
    for (unsigned p = 0; p < packed_planes(type); p++) {
        if (packed_exceeds(packed_bits_of(block->plane[p]), present)) {
            return "padding that is not zero";
        }
    }
    switch (type) {
    case QUANTISE_TWO: return packed_fault_two(block, present);
    case QUANTISE_SIGN:
        return block->scale[0] == 0 && !packed_is_empty(packed_bits_of(block->plane[0]))
                   ? "a negative 0"
                   : NULL;
    default: return packed_fault_levels(block, packed_planes(type));
    }
}
