/*
 * Whether a tensor's ledger is in balance: input equals applied plus lost plus residual, for the
 * plain and for the sign-hashed sums, to rounding.
 *
 * The ledger is kept in double precision, so the rounding errors are those of the float residual.
 * An addition or subtraction is off by at most 2^-24 of the value, to either side. So over n
 * elements and s steps errors grow like sqrt(n * s). With m, the residual's sum of absolute values,
 * a value is about m / n, and the error of a sum about 2^-24 * m * sqrt(s / n).
 *
 * If next to nothing is left in the residual now, m does not tell how large the rounded values
 * were. So m is the largest that any verification of the tensor has found; and the sums grow with
 * the gradients, at least like sqrt(n * s), and a residual holds some hundred gradients at most. So
 *
 *     tolerance = 2^-24 * (16 * m * (1 + sqrt(s / n)) + 1024 * the largest |input|, |applied| or
 * |lost|)
 *
 * A loss or double count shows if it is more than 6e-5 of the larger sum. That is one step's
 * gradients among 16,000 if they all lean to one side, among millions if they do not.
 */
#ifndef ADTOPK_JOB_VERDICT_H
#define ADTOPK_JOB_VERDICT_H

#include <stdbool.h>

#include "daemon/job/info.h"

/** How far the two sums may be off, and by how much they are off. */
struct verdict {
    double tolerance;
    double off[2]; /* input - applied - lost - residual */
    bool balanced;
};

/** verified: of a tensor of so many elements that was verified. */
struct verdict verdict_of(const struct verified *verified, uint64_t elements);

#endif
