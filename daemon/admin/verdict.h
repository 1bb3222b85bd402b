/*
 * Whether a tensor's ledger is in balance: what came in is what was applied plus what is left in
 * the residual, for the plain and for the sign-hashed sums, to rounding.
 *
 * The ledger is kept in double precision, so rounding is that of the float residual: an addition
 * or subtraction leaves an error of at most 2^-24 of the value, and errors of both signs, so that
 * over n elements and s steps they grow like sqrt(n * s). With m, the residual's sum of absolute
 * values, a value is about m / n, and the error of a sum about 2^-24 * m * sqrt(s / n). Where a
 * turn leaves next to nothing in the residual, m does not tell how large the values were that were
 * rounded, but the sums do: they grow with the gradients, at least like sqrt(n * s). So
 *
 *     tolerance = 64 * 2^-24 * (m * (1 + sqrt(s / n)) + the largest of |input|, |applied|)
 *
 * A step whose gradient is lost or counted twice is off by the s-th part of that, or of its
 * square, so it shows up to millions of steps.
 */
#ifndef ADTOPK_VERDICT_H
#define ADTOPK_VERDICT_H

#include <stdbool.h>

#include "daemon/core/inspect.h"

/** How far the two sums may be off, and by how much they are off. */
struct verdict {
    double tolerance;
    double off[2]; /* input - applied - residual */
    bool balanced;
};

/** info: of a tensor that was verified. */
struct verdict verdict_of(const struct tensor_info *info);

#endif
