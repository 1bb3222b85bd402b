/*
 * Types of elements. convert.h converts between them.
 */
#ifndef ADTOPK_DTYPE_H
#define ADTOPK_DTYPE_H

#include <stddef.h>

enum dtype { DTYPE_F32 = 0, DTYPE_F16 = 1, DTYPE_BF16 = 2, DTYPE_COUNT };

/** Bytes of one element; 0 for an unknown type. */
size_t dtype_size(enum dtype dtype);

#endif
