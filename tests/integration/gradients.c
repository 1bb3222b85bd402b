#include "tests/integration/gradients.h"

#include <math.h>
#include <string.h>

/* The splitmix64 finaliser (Steele, Lea and Flood 2014). */
static uint64_t gradients_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

float gradients_value(const struct gradients_source *source, enum adtopk_dtype dtype,
    uint64_t tensor, uint64_t element)
{
    const uint64_t stream =
        source->seed + 1000003 * source->rank + 1000000007 * source->step + 10000000019 * tensor;
    const uint64_t z = gradients_mix(gradients_mix(stream) + element);

    switch (source->kind) {
    case GRADIENTS_INTEGER: return (float)((int)((z >> 33) % 17) - 8);
    case GRADIENTS_RANDOM:
        return dtype == ADTOPK_F32 ? (float)(z >> 40) * 0x1p-24f - 0.5f
                                   : (float)(z >> 57) * 0x1p-7f - 0.5f;
    case GRADIENTS_ZERO: break;
    }
    return 0.0f;
}

static uint16_t gradients_half(uint32_t bits)
{
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t exponent = bits >> 23 & 0xffu;
    const uint32_t fraction = bits >> 13 & 0x3ffu;

    if (exponent == 0) {
        return (uint16_t)sign;
    }
    if (exponent == 0xff) {
        return (uint16_t)(sign | 0x7c00u | fraction);
    }
    return (uint16_t)(sign | (exponent - 112) << 10 | fraction);
}

void gradients_store(void *array, enum adtopk_dtype dtype, uint64_t index, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    if (dtype == ADTOPK_F32) {
        ((float *)array)[index] = value;
    } else if (dtype == ADTOPK_F16) {
        ((uint16_t *)array)[index] = gradients_half(bits);
    } else {
        ((uint16_t *)array)[index] = (uint16_t)(bits >> 16);
    }
}

uint64_t gradients_size(enum adtopk_dtype dtype)
{
    return dtype == ADTOPK_F32 ? 4 : 2;
}
