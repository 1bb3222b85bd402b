/*
 * What was sent and accepted leaves the residual.
 */
#ifndef ADTOPK_KERNELS_LEAVE_H
#define ADTOPK_KERNELS_LEAVE_H

#include "kernels/base/parallel.h"
#include "kernels/base/sparse.h"
#include "kernels/base/view.h"

/* Entries that leave: positions of the view, ascending, and values as others decode them. */
struct leave {
    const struct view *view;
    const struct sparse *sent;
    const uint8_t *accepted; /* one bit per entry, lowest bit first; NULL means all */
};

/** Adds to `sums` the ledger's two sums of the entries that leave. The parts of the sums depend
 * only on the number of entries, so any number of threads gives the same bits. */
void leave_sums(const struct leave *leave, double sums[2], const struct parallel *parallel);

/** Element of entry i becomes its value at the selection, before[i], less the value that was sent.
 * What quantisation cut off stays, but nothing that is not finite. May be repeated. momentum (NULL:
 * none) becomes 0 at these elements. */
void leave_residual(float *residual, float *momentum, const struct leave *leave,
    const float *before, const struct parallel *parallel);

/** The same in bf16, of values that were sent exactly: the elements become 0. */
void leave_rounded(uint16_t *residual, const struct leave *leave, const struct parallel *parallel);

#endif
