/*
 * ADD on a device: residual += gradients, the ledger's sums, and the exact selection, for all
 * tensors of a bucket at once. WITHDRAW, JOIN and TAKE are passes of the same kind that select
 * nothing. The bits of the residual, of the records, of the sums and of the list are those of
 * kernels/cpu/fused.h.
 *
 * A batch is a table of tensors whose chunks are numbered through. Their residuals are all in f32
 * or, of ADD and WITHDRAW, all in bf16. The kernels run in the order of kernels.h, each with the
 * batch as parameter, on any number of blocks. No launch depends on what a kernel found: the last
 * one, add_finish, has steps that it leaves out where nothing needs them.
 *
 * TOP, the k largest of a tensor. The pass over the elements collects those that reach a bound into
 * a slice per chunk, and counts them in bins. A wrong bound is found when the last block has
 * counted: then HISTOGRAM and COLLECT read the residual again, with a bound that is right. BORDER
 * finds the exact key of the k-th. EMIT writes the list: each part counts its own entries, and
 * those of the parts before it tell where they begin.
 *
 * FIBRES, the k largest of every fibre. Each fibre has a bound of its own. The pass deals the
 * elements that reach it to their fibres. PICK selects from them, a warp per fibre. SEARCH reads
 * the fibres again that have too few or too many.
 */
#ifndef ADTOPK_KERNELS_ADD_H
#define ADTOPK_KERNELS_ADD_H

#include <stdint.h>

#include "kernels/base/chunks.h"
#include "kernels/base/dtype.h"
#include "kernels/base/view.h"
#include "kernels/cuda/slots.h"

enum add_mode { ADD_NOTHING, ADD_TOP, ADD_FIBRES }; /* what is selected */

/* Bins of a histogram; one more counts what lies above them. */
enum { ADD_BITS = 11, ADD_BINS = 1 << ADD_BITS };

/* The ledger's sums without the pass, as its first attempt found them. Kept from pass to pass, as
 * the residual is; zeros at first. */
struct add_before {
    double sums[2];
    double lost[2]; /* of what decay took */
    uint64_t stamp; /* of the pass, and 2^32 */
};

/* The first element that a pass left out, and the gradient that has it. */
struct add_fault {
    uint64_t element;
    uint32_t part;
    uint32_t found; /* 0: gradients are finite, and their sum is not */
    float value;
};

struct add_result {
    double sums[2];         /* the ledger's, with the pass */
    double lost[2];         /* the same of what decay took; 0 without */
    uint64_t nonfinite;     /* elements left out */
    uint64_t count;         /* entries of the list */
    struct add_fault fault; /* if any are left out of gradients; else zeros */
};

/* TAKE: rests of some elements that come back (struct rest of kernels/cpu/rest.h). */
struct add_rest {
    const float *rounded; /* the rounded sums, from the first of the elements on; NULL: see `low` */
    const int16_t *low;   /* the sums' lower halves; or the bits of the rests, in the type in which
                           * the tensor was sent */
    const float *exact;   /* or, instead of both, what ranks see rounded to the type of gradients */
    uint64_t first, count; /* count 0: none come back */
    float unscale, shrink;
};

/* TAKE: how a dense tensor was sent, and which rests come back. */
struct add_take {
    uint32_t values;  /* enum quantisation: F32, BF16 or F16 */
    uint32_t nothing; /* not 0: nothing was sent, only rests are added */
    struct add_rest rest[2];
};

/* Clipping: the gradients' sum, scaled, gets this norm at most. clip_squares and clip_factor find
 * the factor before the pass. */
struct add_clip {
    double limit;
    double *chunk; /* scratch: one per chunk of the tensor */
    float after;   /* another factor, of what the limit leaves; 0 or 1: none */
    float factor;  /* found: of the gradients' sum, instead of the tensor's scale */
};

/* The tensor's ledger, without the pass or as an attempt at it has left it. */
struct add_ledger {
    const double *input;
    const double *lost; /* to decay; only read if there is decay */
};

/* Momentum correction. */
struct add_momentum {
    float mu;          /* in [0, 1) */
    uint32_t nesterov; /* not 0: Nesterov's */
    uint32_t home;     /* slot of the velocity's first chunk before the first pass */
};

/* A tensor of the batch. All pointers are device memory. */
struct add_tensor {
    uint64_t *entry;               /* one per chunk (slots.h) */
    const void *const *gradient;   /* NULL: this rank has none */
    const uint64_t *const *joined; /* not NULL: instead of gradients, so many residuals are added.
                                    * These are their entries */
    const struct add_take *take;   /* take_stream instead of add_stream: there are no gradients */
    uint32_t gradients;
    uint32_t dtype; /* enum dtype */
    uint64_t numel;
    uint32_t stamp;
    uint32_t home;     /* slot of its first chunk before the first pass */
    uint32_t first;    /* number of its first chunk in the batch */
    uint32_t mode;     /* enum add_mode */
    uint32_t withdraw; /* not 0: gradients are subtracted; mode NOTHING */
    float scale;       /* of the gradients' sum; 0 or 1: none */
    float decay;       /* share of the residual that it loses before gradients are added, in [0, 1];
                        * withdrawn gradients give it back. Not with momentum correction, residuals
                        * in bf16, or other passes */
    uint32_t plain;    /* not 0: add_plain does it, else add_stream. add_is_plain() must hold */
    struct add_momentum momentum;
    uint64_t *velocity;    /* entries of the velocity's chunks; NULL: no momentum correction */
    struct add_clip *clip; /* NULL: no clipping. Then the scale is above 0 */
    uint64_t rounding;     /* a residual in bf16: rounded_pass() of the pass's stamp and its salt */
    uint32_t room;    /* TOP: entries of a chunk's slice. FIBRES: candidates of a fibre, >= k */
    struct view view; /* FIBRES: the fibres */
    uint64_t k;       /* of the tensor, or of every fibre; 0 < k <= its elements */
    float *hints;     /* one per fibre, or one: zeros at first, kept from turn to turn. Any values
                       * give the right list. NULL, of short fibres only: none */
    void *scratch; /* aligned to 16; its size is in scratch.h. Of this attempt: an earlier one that
                    * was given up may still write to its own */
    struct add_ledger ledger;
    struct add_before *before; /* the residual's */
    uint32_t *position;        /* the list; k entries, or k per fibre, one fibre after the other */
    float *value;
    struct add_result *result;
};

/* What follows the pass over the elements, in this order. */
enum add_step {
    ADD_HISTOGRAM, /* TOP: after a wrong bound, the residual is read again */
    ADD_COLLECT,   /* TOP: and its candidates are found */
    ADD_BORDER,    /* TOP: the key of the k-th */
    ADD_PICK,      /* FIBRES: those with candidates enough */
    ADD_LEDGER,    /* sums, and what was left out */
    ADD_EMIT,      /* TOP: the list */
    ADD_SEARCH,    /* FIBRES: the others, which are read again */
    ADD_STEPS
};

/* How far these are. Cleared at first. */
struct add_steps {
    uint32_t again;           /* not 0: a tensor's bound was wrong */
    uint32_t taken;           /* shares of steps that blocks have taken */
    uint32_t done[ADD_STEPS]; /* shares */
};

/** Whether add_plain may do a tensor whose only gradient, in f32 or in 16 bits, is at this address:
 * not NULL, as a rank may have none. Its residual must be in f32. */
BASE_INLINE bool add_is_plain(const struct add_tensor *tensor, const void *gradient)
{
    const uintptr_t aligned = tensor->dtype == DTYPE_F32 ? 16 : 8;
    return tensor->gradients == 1 && gradient != NULL && (uintptr_t)gradient % aligned == 0 &&
           tensor->joined == NULL && tensor->take == NULL && tensor->velocity == NULL &&
           tensor->withdraw == 0 && !(tensor->decay > 0);
}

/* The parameter of all kernels of ADD. */
struct add_batch {
    const struct add_tensor *tensor;
    uint32_t tensors;
    uint32_t chunks; /* of all tensors */
    uint32_t top;    /* not 0: some tensor is of mode TOP */
    uint32_t fibres; /* the same of FIBRES */
    struct add_steps *steps;
    struct slots slots;
    struct slots velocities; /* the pool of all velocities, with spare slots of its own. It may be
                              * the residuals' pool, with other spare slots. No tensor has a
                              * velocity: its `found` is NULL */
};

#endif
