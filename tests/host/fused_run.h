/* A whole pass of kernels/cpu/fused.h on this thread. */
#ifndef ADTOPK_TESTS_HOST_FUSED_RUN_H
#define ADTOPK_TESTS_HOST_FUSED_RUN_H

#include "kernels/cpu/fused.h"

static inline uint64_t fused_run(struct fused *pass, struct journal *journal, double sums[2])
{
    fused_start(pass, sums);
    for (unsigned r = 0; r < pass->ranges; r++) {
        fused_range(pass, r, journal);
    }
    return fused_finish(pass, sums);
}

#endif
