/* Checks look-ahead element by element, against the residual and a reference in double precision.
 */
#ifndef ADTOPK_TEST_AHEAD_H
#define ADTOPK_TEST_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include <adtopk/adtopk.h>

/** The optimiser: without a second moment, with one, or with one that has overflown. */
enum ahead_kind { AHEAD_SGD, AHEAD_ADAM, AHEAD_OVERFLOW };

/** Checks a tensor of `numel` elements between two steps, with this rate. Prints the answer. "ok
 * none": the daemon shows no residual. Else "ok DTYPE SHARE RATIO HASH". DTYPE is the residual's
 * type, SHARE that of the look-ahead. RATIO is the norm of the shift divided by that of the
 * parameters. HASH has the bits of the residual, of what is shown of it, and of the shift. */
bool ahead_check(
    adtopk_context *context, uint32_t tensor, uint64_t numel, float rate, enum ahead_kind kind);

#endif
