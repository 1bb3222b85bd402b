/*
 * Records of a pass over a residual: how far the pass has come, and what it added, chunk by chunk.
 *
 * A pass works chunk by chunk. The residual keeps a *record* for every chunk: what the chunk's
 * gradients added to the ledger, and the *stamp* of the last pass that added any. A chunk with the
 * stamp of a pass is complete for that pass, and the repeated pass only reads it. All bytes zero is
 * the initial state. The ledger's sums are the sums of the chunks, added in order, so they do not
 * depend on the number of threads.
 */
#ifndef ADTOPK_RECORD_H
#define ADTOPK_RECORD_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/chunks.h"

/* The sums of a chunk's gradients, valid for the pass whose stamp the record carries. */
struct chunk_record {
    double sums[2];     /* plain and sign-hashed */
    double lost[2];     /* of what decay took from the chunk */
    uint64_t nonfinite; /* elements left out */
    _Atomic uint64_t stamp;
    _Atomic uint64_t resumed; /* CHUNK * the stamp of a pass that was stopped in the chunk
                               * + elements that it had completed */
};

/* Of one residual. */
struct progress {
    double before[2];      /* the ledger's sums when the pass with this stamp began */
    double before_lost[2]; /* those of what decay had taken by then */
    _Atomic uint64_t stamp;
    uint64_t reserved;
    struct chunk_record chunk[];
};

/** Bytes of the progress of a residual of n elements: 0.34% of the residual's. Aligned to 8. */
static inline size_t progress_size(uint64_t n)
{
    return sizeof(struct progress) + chunk_count(n) * sizeof(struct chunk_record);
}

#endif
