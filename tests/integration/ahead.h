/* Looking ahead, checked element by element against the residual and a reference in doubles. */
#ifndef ADTOPK_TEST_AHEAD_H
#define ADTOPK_TEST_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include <adtopk/adtopk.h>

/** Checks a tensor of `numel` elements between two steps, with this rate and, if `adam`, a second
 * moment. Prints the answer: "ok none" where the daemon shows no residual, else "ok DTYPE SHARE
 * RATIO", which are the type of the residual, the share that is looked ahead, and the norm of the
 * shift over that of the parameters. */
bool ahead_check(adtopk_context *context, uint32_t tensor, uint64_t numel, float rate, bool adam);

#endif
