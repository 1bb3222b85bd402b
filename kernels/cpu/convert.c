#include "kernels/cpu/convert.h"
#include "kernels/cpu/kernels.h"

size_t dtype_size(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32: return 4;
    case DTYPE_F16: return 2;
    case DTYPE_BF16: return 2;
    default: return 0;
    }
}

uint16_t bf16_from_f32(float value)
{
    const uint32_t bits = convert_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        /* Truncation could clear a NaN's whole fraction: set the quiet bit. */
        return (uint16_t)((bits >> 16) | 0x40u);
    }
    /* Adding just under half, plus the last kept bit, rounds ties to even. */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float bf16_to_f32(uint16_t bits)
{
    return convert_bf16(bits);
}

float f16_to_f32(uint16_t bits)
{
    return convert_f16(bits);
}
