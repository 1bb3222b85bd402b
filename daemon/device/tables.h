/*
 * The tables that kernels read, and the scratch memory that they need, for one order.
 *
 * The worker makes the tables in the page, behind the order, and copies them to its scratch memory.
 * Scratch memory has, one behind the other: the order's copies, the tables, the launch's spare
 * slots, hints if the order brings none, and what kernels keep between two launches. The feeder
 * asks for all of it (tables_scratch()), so both sides use the functions here.
 */
#ifndef ADTOPK_DEVICE_TABLES_H
#define ADTOPK_DEVICE_TABLES_H

#include "daemon/device/page.h"
#include "kernels/cuda/entries.h"

/* The tables of one order. Each array has an element per part of it. */
struct tables {
    struct add_tensor *tensor; /* the order's residual */
    struct add_tensor *filled; /* CONVERT: the one that it fills */
    struct add_tensor *joined; /* array. JOIN: the parts */
    struct add_take *take;
    struct add_clip *clip;
    double *nothing; /* two zeros */
    struct entries_order *entries;
    struct entries_rank *rank; /* array. LEAVE */
    struct whole_order *whole;
    struct whole_order *cleared; /* array. JOIN: the parts become zeros */
    const void **address;        /* array of gradients, or of the entries of residuals */
    uint64_t size;               /* bytes of all */
};

/** The tables in `memory` (zeros, aligned to 8), which may be NULL if only the size is wanted. */
struct tables tables_in(void *memory, unsigned parts);

/* Places in scratch memory. */
struct tables_scratch {
    uint64_t tables;
    uint64_t spare;          /* one word that counts, then one per block */
    uint64_t velocity_spare; /* the same of the pool of velocities */
    uint64_t squares;        /* clipping: one double per chunk */
    uint64_t hints;   /* of short fibres: bytes that are 1, which makes floats just above 0 */
    uint64_t kernels; /* what kernels keep */
    uint64_t hints_size, size;
};

/** `copies`: bytes of the order's own. `blocks`: of the largest launch. */
struct tables_scratch tables_scratch(
    const struct engine_order *order, uint64_t copies, unsigned blocks);

/** Whether the gradients' norm has a limit. */
bool tables_clips(const struct engine_order *order);

/** Fills in numel, and what an ADD selects: mode, view, k and the room for candidates. */
void tables_select(struct add_tensor *tensor, const struct engine_order *order);

#endif
