/* The inner loops of packed.h in plain C, and which implementation is used. */
#include "kernels/base/packed_plain.h"

static bool packed_plain_supported(void)
{
    return true;
}

static void packed_plain_measure(const float *value, size_t n, struct packed_measure *measure)
{
    uint32_t least = measure->least, most = measure->most;

    for (size_t i = 0; i < n; i++) {
        const uint32_t m = packed_magnitude(value[i]);

        least = m < least ? m : least;
        most = m > most ? m : most;
        measure->sum[i % PACKED_LANES] += (double)convert_float(m);
    }
    measure->least = least;
    measure->most = most;
}

static void packed_plain_split(
    const float *value, size_t n, uint32_t threshold, struct packed_split *split)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t m = packed_magnitude(value[i]);
        const unsigned over = m > threshold, negative = convert_bits(value[i]) >> 31 & (m != 0);
        const double magnitude = (double)convert_float(m);

        split->below[i % PACKED_LANES] += over ? 0 : magnitude;
        split->above[i % PACKED_LANES] += over ? magnitude : 0;
        split->sign[i / 8] |= (uint8_t)(negative << i % 8);
        split->over[i / 8] |= (uint8_t)(over << i % 8);
    }
}

static bool packed_plain_mark(const float *value, size_t n, uint32_t threshold, uint32_t most,
    uint8_t sign[PACKED_PLANE_SIZE], uint8_t over[PACKED_PLANE_SIZE])
{
    uint32_t others = 0;

    for (size_t i = 0; i < n; i++) {
        const uint32_t m = packed_magnitude(value[i]);
        const unsigned above = m > threshold, negative = convert_bits(value[i]) >> 31 & (m != 0);

        others |= (m ^ threshold) & -(uint32_t)(m != most);
        sign[i / 8] |= (uint8_t)(negative << i % 8);
        over[i / 8] |= (uint8_t)(above << i % 8);
    }
    return others == 0;
}

static void packed_plain_expand(const struct packed_block *block, unsigned planes,
    const uint32_t table[8], size_t n, float *value)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t sign = (uint32_t)(block->plane[0][i / 8] >> i % 8 & 1u) << 31;
        unsigned code = 0;

        for (unsigned p = 1; p < planes; p++) {
            code |= (block->plane[p][i / 8] >> i % 8 & 1u) << (p - 1);
        }
        value[i] = convert_float(table[code] | sign);
    }
}

const struct packed_ops packed_plain = {.name = "plain",
    .supported = packed_plain_supported,
    .measure = packed_plain_measure,
    .split = packed_plain_split,
    .mark = packed_plain_mark,
    .expand = packed_plain_expand};

const struct packed_ops *const packed_table[] = {
    &packed_plain,
#ifdef __x86_64__
    &packed_avx2,
    &packed_avx512,
#endif
    NULL,
};

const struct packed_ops *packed_best(void)
{
    const struct packed_ops *best = &packed_plain;

    for (size_t i = 0; packed_table[i] != NULL; i++) {
        best = packed_table[i]->supported() ? packed_table[i] : best;
    }
    return best;
}
