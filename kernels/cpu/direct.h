/*
 * The pass over a tensor that is sent whole and whose residual is empty and stays so. It neither
 * reads nor writes the residual. It reads the gradients once, for the ledger and to count elements
 * that are not finite. On request it also writes their sum, which is what accumulate() would make
 * of zeros.
 *
 * Happy path: direct_start(), direct_chunks() for all chunks on any threads, direct_sums(). All of
 * it may be repeated with the same gradients, for example after a kill.
 */
#ifndef ADTOPK_KERNELS_DIRECT_H
#define ADTOPK_KERNELS_DIRECT_H

#include "kernels/base/ahead.h"
#include "kernels/cpu/journal.h"
#include "kernels/cpu/plain.h"

struct chunk_ops;

struct direct {
    const void *const *gradients; /* as accumulate() takes them */
    unsigned count;
    enum dtype dtype;
    uint64_t n; /* elements */
    float *sum; /* n elements: 0 + the gradients' sum, elements that are not finite left out, times
                 * `scale`; NULL: not wanted. Overlaps no gradient. */
    float scale;
    uint64_t stamp;              /* like the stamp of a fused pass: each pass has its own */
    struct progress *progress;   /* progress_size(n) bytes */
    struct ahead *ahead;         /* what passes have learned of this machine, or NULL */
    const struct chunk_ops *ops; /* NULL: the best for this processor */
};

/** Begins the pass. sums: the ledger's two sums without it. */
void direct_start(struct direct *pass, const double sums[2]);

/** Works on chunks first..end-1. Different ones may run at the same time. */
void direct_chunks(const struct direct *pass, uint64_t first, uint64_t end);

/** Call it after all chunks, also in another process. Fills the ledger's two sums after the pass
 * with this stamp, and in `before` the sums before it (NULL: not wanted). Returns the number of
 * elements that were left out. */
uint64_t direct_sums(const struct progress *progress, uint64_t n, double sums[2], double before[2]);

#endif
