/*
 * Gradients to measure with, and the memory they lie in. The same seed gives the same numbers.
 */
#ifndef PERF_DATA_H
#define PERF_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/plain.h"

enum distribution {
    DATA_NORMAL,
    DATA_LAPLACE,
    DATA_LAYERED,     /* 16 stretches whose deviations differ by up to 1,000 */
    DATA_SORTED,      /* magnitudes rise from the first element to the last */
    DATA_CONSTANT,    /* all equal: nothing but ties */
    DATA_MOSTLY_ZERO, /* all but one element in 1,000 are zero */
    DATA_HOT_BLOCK,   /* 1/16 of the elements, in one place, are 1,000 times larger */
    DATA_QUANTISED,   /* normal, rounded to quarters: 20 different magnitudes */
    DATA_COUNT
};

extern const char *const data_names[];       /* of enum distribution; ends with NULL */
extern const char *const data_dtype_names[]; /* of enum dtype; ends with NULL */

/** Fills x with n elements. */
void data_fill(float *x, uint64_t n, enum distribution distribution, uint64_t seed);

/**
 * The gradient of turn number `turn`. data_fill() made `base` (elements of so many bytes). Every
 * sixteenth of it is rotated by a distance of this turn, so that an element gets another value of
 * the same distribution. Distributions without chance in them, and zeros that stay in place, are
 * copied unchanged.
 */
void data_turn(void *gradient, const void *base, size_t element, uint64_t n,
    enum distribution distribution, uint64_t turn);

/**
 * A residual as error feedback at `density` leaves it after a thousand turns of gradients like
 * `base`. It is a random walk that starts at 0 again when it reaches the threshold. `global`: one
 * threshold for the whole tensor; otherwise each sixteenth of it has its own. Zeros where
 * data_turn() changes nothing.
 */
void data_residual(float *x, const float *base, uint64_t n, enum distribution distribution,
    double density, bool global);

/** Stores n elements as `dtype`; values that f16 cannot hold as a normal number become 0. */
void data_store(void *out, enum dtype dtype, const float *x, uint64_t n);

/** `size` bytes of shared memory, as the daemon's arenas are: a memfd, mapped and touched. NULL on
 * failure. Free with data_unmap(). */
void *data_map(size_t size);

/** A list of `k` entries out of n elements, all equally likely, with normal values. If `length` < n
 * there are `k` in every fibre of `length` elements. Capacity is its count. Returns false without
 * memory; free with data_list_free() in any case. */
bool data_list(struct sparse *list, uint64_t n, uint64_t length, uint64_t k, uint64_t seed);

void data_list_free(struct sparse *list);

/** The number of elements that a density makes of n: rounded, at least 1. */
uint64_t data_share(uint64_t n, double density);

/** Reads `size` bytes as fast as a plain loop can. Returns a value that depends on them, so that
 * the loop is not optimised away. */
uint64_t data_read(const void *bytes, size_t size);

/** NULL is allowed. */
void data_unmap(void *memory, size_t size);

#endif
