#include "kernels/base/quantise.h"

#include "kernels/base/blocks.h"
#include "kernels/base/ledger.h"
#include "kernels/base/packed.h"
#include "kernels/base/wide.h"

enum { FRACTION_BITS = 16 }; /* of u: level + u is exact in f32 */

uint16_t quantise_step_max(unsigned levels)
{
    return blocks_step_max(levels);
}

static uint16_t levels_of(
    const float *value, size_t n, unsigned levels, const float *u, int8_t *level)
{
    const int32_t cap = (int32_t)blocks_largest(levels);
    int32_t m[QUANTISE_BLOCK];
    int32_t largest = 0;
    size_t first = 0;
    uint16_t bits;
    float step;

    for (size_t i = 0; i < n; i++) {
        m[i] = blocks_magnitude(value[i], cap);
    }
    for (size_t i = 0; i < n; i++) {
        largest = m[i] > largest ? m[i] : largest;
    }
    while (first + 1 < n && m[first] != largest) {
        first++;
    }
    bits = blocks_step(convert_float((uint32_t)largest), (float)levels);
    step = bits > 0 ? convert_bf16(bits) : 1; /* all are 0 */
    for (size_t i = 0; i < n; i++) {
        m[i] = (int32_t)(convert_float((uint32_t)m[i]) / step + u[i]);
    }
    m[first] = largest > 0 ? (int32_t)levels : 0;
    for (size_t i = 0; i < n; i++) {
        const int32_t negative = (int32_t)convert_bits(value[i]) >> 31; /* -1 or 0 */
        level[i] = (int8_t)((m[i] ^ negative) - negative);
    }
    return bits;
}

uint16_t quantise_block(const float *value, size_t n, unsigned levels, int8_t *level)
{
    float u[QUANTISE_BLOCK];

    for (size_t i = 0; i < n; i++) {
        u[i] = 0.5f;
    }
    return levels_of(value, n, levels, u, level);
}

void quantise_decode(uint16_t step, const int8_t *level, size_t n, float *value)
{
    const float size = convert_bf16(step);

    for (size_t i = 0; i < n; i++) {
        value[i] = (float)level[i] * size;
    }
}

/* Four numbers come from each hash of a counter. */
static void uniform(uint64_t base, size_t block, float *u)
{
    enum { EACH = 64 / FRACTION_BITS, HASHES = QUANTISE_BLOCK / EACH };

    for (size_t i = 0; i < HASHES; i++) {
        const uint64_t word = ledger_hash(base + block * HASHES + i);
        for (unsigned j = 0; j < EACH; j++) {
            const uint16_t fraction = (uint16_t)(word >> FRACTION_BITS * j);
            u[i * EACH + j] = (float)fraction * 0x1p-16f;
        }
    }
}

static void quantise_int8(float *value, size_t n, uint64_t seed)
{
    const uint64_t base = ledger_hash(seed); /* so that the streams of two seeds lie far apart */
    float u[QUANTISE_BLOCK];
    int8_t level[QUANTISE_BLOCK];

    for (size_t i = 0; i < n; i += QUANTISE_BLOCK) {
        const size_t block = n - i < QUANTISE_BLOCK ? n - i : QUANTISE_BLOCK;
        uint16_t step;

        uniform(base, i / QUANTISE_BLOCK, u);
        step = levels_of(value + i, block, QUANTISE_LEVELS, u, level);
        quantise_decode(step, level, block, value + i);
    }
}

static void quantise_packed(float *value, size_t n, enum quantisation type)
{
    const struct packed_ops *ops = packed_best();
    struct packed_block packed;

    for (size_t i = 0; i < n; i += QUANTISE_BLOCK) {
        const size_t block = n - i < QUANTISE_BLOCK ? n - i : QUANTISE_BLOCK;

        packed_encode(ops, value + i, block, type, &packed);
        packed_decode(ops, &packed, block, type, value + i);
    }
}

WIDE_BODY void halves_body(float *value, size_t n, bool bf16)
{
    for (size_t i = 0; bf16 && i < n; i++) {
        value[i] = convert_bf16(convert_to_bf16(value[i]));
    }
    for (size_t i = 0; !bf16 && i < n; i++) {
        value[i] = convert_f16(convert_to_f16(value[i]));
    }
}

WIDE static void halves_wide(float *value, size_t n, bool bf16)
{
    halves_body(value, n, bf16);
}

static void halves_plain(float *value, size_t n, bool bf16)
{
    halves_body(value, n, bf16);
}

void quantise_values(float *value, size_t n, enum quantisation type, uint64_t seed)
{
    switch (type) {
    case QUANTISE_F32: break;
    case QUANTISE_BF16:
    case QUANTISE_F16:
        (wide_is_there() ? halves_wide : halves_plain)(value, n, type == QUANTISE_BF16);
        break;
    case QUANTISE_INT8: quantise_int8(value, n, seed); break;
    default: quantise_packed(value, n, type);
    }
}
