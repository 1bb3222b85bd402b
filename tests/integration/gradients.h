/*
 * Gradients that follow from a seed, so that a test can compute them again: reference.py has the
 * same formula. All values are exact in the tensor's type.
 */
#ifndef ADTOPK_TEST_GRADIENTS_H
#define ADTOPK_TEST_GRADIENTS_H

#include <stdint.h>

#include <adtopk/adtopk.h>

enum gradients_kind {
    GRADIENTS_INTEGER, /* -8 to 8: every sum of a short run is exact in f32 */
    GRADIENTS_RANDOM,  /* -0.5 to 0.5, in steps of 2^-24 (f32) or 2^-7 */
    GRADIENTS_ZERO
};

struct gradients_source {
    enum gradients_kind kind;
    uint64_t seed;
    uint64_t rank;
    uint64_t step;
};

/** The value of element `element` of tensor number `tensor`. */
float gradients_value(const struct gradients_source *source, enum adtopk_dtype dtype,
    uint64_t tensor, uint64_t element);

/** Stores a value at an index of an array of this type. f16 takes normal numbers, zero, NaN and
 * infinity. */
void gradients_store(void *array, enum adtopk_dtype dtype, uint64_t index, float value);

/** Bytes of an element. */
uint64_t gradients_size(enum adtopk_dtype dtype);

#endif
