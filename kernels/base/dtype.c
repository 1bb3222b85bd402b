#include "kernels/base/convert.h"
#include "kernels/base/dtype.h"

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
    return convert_to_bf16(value);
}

float bf16_to_f32(uint16_t bits)
{
    return convert_bf16(bits);
}

float f16_to_f32(uint16_t bits)
{
    return convert_f16(bits);
}

uint16_t f16_from_f32(float value)
{
    return convert_to_f16(value);
}
