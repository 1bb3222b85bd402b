/*
 * What was sent and accepted leaves the residual.
 */
#ifndef ADTOPK_KERNELS_LEAVE_H
#define ADTOPK_KERNELS_LEAVE_H

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/sparse.h"
#include "kernels/cpu/view.h"

/* Entries that leave: positions of the view, ascending, and values as others decode them. */
struct leave {
    const struct view *view;
    const struct sparse *sent;
    const uint8_t *accepted; /* one bit an entry, lowest bit first; NULL means all */
};

/** sums += the ledger's two sums of the entries that leave, formed in parts that depend on the
 * number of entries sent only: the same bits by any number of threads. */
void leave_sums(const struct leave *leave, double sums[2], const struct parallel *parallel);

/** The elements become what they were, kept[i] for entry i, less what was sent of them: what
 * quantisation cut off stays, but nothing that is not finite. May be repeated. momentum (NULL:
 * none) becomes 0 there. */
void leave_residual(float *residual, float *momentum, const struct leave *leave, const float *kept,
    const struct parallel *parallel);

/** The same in bf16, of values that were sent exactly: the elements become 0. */
void leave_rounded(uint16_t *residual, const struct leave *leave, const struct parallel *parallel);

#endif
