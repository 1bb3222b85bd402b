/*
 * What the implementations of packed.h share. Internal to kernels/base.
 */
#ifndef ADTOPK_KERNELS_PACKED_PLAIN_H
#define ADTOPK_KERNELS_PACKED_PLAIN_H

#include "kernels/base/convert.h"
#include "kernels/base/packed.h"

#define PACKED_MOST ((uint32_t)PACKED_SCALE_MAX << 16) /* the largest magnitude, as bits of f32 */
#define PACKED_INFINITY 0x7f800000u

/* The bits of |v|, at most PACKED_MOST; NaN gives 0. They order like magnitudes. */
static inline uint32_t packed_magnitude(float v)
{
    const uint32_t bits = convert_bits(v) & 0x7fffffffu;
    const uint32_t capped = bits < PACKED_MOST ? bits : PACKED_MOST;
    return bits > PACKED_INFINITY ? 0 : capped;
}

/* Writes bit `bit` of each of n codes as a plane. n is a multiple of 8. */
static inline void packed_gather(const uint8_t *code, size_t n, unsigned bit, uint8_t *plane)
{
    for (size_t i = 0; i < n; i += 8) {
        unsigned byte = 0;

        for (unsigned j = 0; j < 8; j++) {
            byte |= (code[i + j] >> bit & 1u) << j;
        }
        plane[i / 8] = (uint8_t)byte;
    }
}

#endif
