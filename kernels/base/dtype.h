/*
 * Types of elements, and conversions between them.
 */
#ifndef ADTOPK_DTYPE_H
#define ADTOPK_DTYPE_H

#include <stddef.h>
#include <stdint.h>

enum dtype { DTYPE_F32 = 0, DTYPE_F16 = 1, DTYPE_BF16 = 2, DTYPE_COUNT };

/** Bytes of one element; 0 for an unknown type. */
size_t dtype_size(enum dtype dtype);

/** bfloat16 with round to nearest even; NaN stays NaN. The value is returned in the high format
 * of the wire (16 bits). */
uint16_t bf16_from_f32(float value);
float bf16_to_f32(uint16_t bits);
float f16_to_f32(uint16_t bits);

/** binary16 with round to nearest even; magnitudes above 65504, infinity included, become 65504;
 * NaN stays NaN. */
uint16_t f16_from_f32(float value);

#endif
