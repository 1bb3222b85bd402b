/*
 * The plain CPU kernels: pure compute on arrays. No I/O, no locks, no allocation, no policy.
 *
 * Lengths count elements. Arrays do not overlap unless a function says so. All functions are
 * reentrant; two threads may work on disjoint arrays.
 */
#ifndef ADTOPK_KERNELS_PLAIN_H
#define ADTOPK_KERNELS_PLAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/dtype.h"
#include "kernels/base/ledger.h"
#include "kernels/base/sparse.h"
#include "kernels/base/view.h"

/**
 * acc[i] += gradients[0][i] + gradients[1][i] + ..., summed in f32 in the order of the array
 * first, then added once. The sum of none is -0.0, which changes nothing. Elements whose sum is
 * non-finite are left out of acc and counted.
 *
 * gradients: `count` arrays of `n` elements of `dtype`, aligned to it; a NULL entry counts as
 * zeros.
 * sums: on return sums[0] has grown by the plain sum and sums[1] by the sign-hashed sum (see
 * ledger_sign) of what was added, in double.
 * Returns the number of non-finite elements.
 */
uint64_t accumulate(float *acc, const void *const *gradients, unsigned count, enum dtype dtype,
    uint64_t n, double sums[2]);

/**
 * The inverse of accumulate(): subtracts the same sums from the same elements (bit-exact where the
 * arithmetic is, to rounding elsewhere) and lets `sums` shrink. Takes the same bytes.
 */
void withdraw(float *acc, const void *const *gradients, unsigned count, enum dtype dtype,
    uint64_t n, double sums[2]);

/** The ledger's sign of an element: +1 or -1, the same on every machine, a hash (ledger.h has its
 * definition). Catches a value that moved to another index, which the plain sum cannot see. */
double ledger_sign(uint64_t element);

/** sums[0] += sum of x, sums[1] += sum of x * ledger_sign, elements numbered from 0. The order of
 * summation is the same here, in accumulate() and in the fused pass (ledger.h). The same values
 * give the same bits on every machine. */
void ledger_sums(const float *x, uint64_t n, double sums[2]);

/** The same of chunk number `chunk`, which has `length` elements. */
void ledger_chunk(const float *x, unsigned length, uint64_t chunk, double sums[2]);

/**
 * The k entries of largest magnitude over the whole tensor, exact; ties go to the lower position.
 *
 * x: tensor memory, view_size(view) elements, at most VIEW_MAX_ELEMENTS. Zeros are selected too
 * where k asks for them; both zeros are equal, NaN ranks above infinity.
 * out: capacity at least k; on return exactly min(k, n) entries, positions ascending in the view.
 * scratch: select_scratch(n) bytes, aligned to 8.
 */
void select_top(
    const float *x, const struct view *view, uint64_t k, struct sparse *out, void *scratch);

/**
 * The k entries of largest magnitude in every fibre (all-dimension top-k), exact; ties go to the
 * lower position. out: capacity at least fibres * min(k, length); on return exactly that many.
 */
void select_fibres(
    const float *x, const struct view *view, uint64_t k, struct sparse *out, void *scratch);

/** Bytes of scratch that the select functions need for a tensor of n elements: less than 300 KiB
 * for any n. */
size_t select_scratch(uint64_t n);

/** acc[i] += x[i]. */
void dense_add(float *acc, const float *x, uint64_t n);

/** x[i] *= factor. */
void dense_scale(float *x, uint64_t n, float factor);

#endif
