/*
 * The tables that kernels read, and the scratch memory that they need, for the orders of a run.
 *
 * The worker makes the tables in the page, behind the order, and copies them to its scratch memory.
 * Scratch memory has, one behind the other: the orders' copies, the tables, the launch's spare
 * slots, and for each order what kernels keep between two launches.
 * The feeder asks for all of it (tables_scratch()), so both sides use the functions here.
 */
#ifndef ADTOPK_DEVICE_TABLES_H
#define ADTOPK_DEVICE_TABLES_H

#include "daemon/device/page.h"
#include "kernels/cuda/entries.h"
#include "kernels/cuda/survey.h"
#include "kernels/cuda/update.h"

/* The tables of a run. Most have an element per order, some an element per part of all orders. */
struct tables {
    struct add_tensor *tensor; /* the orders' residuals */
    struct add_tensor *filled; /* CONVERT, CARRY: the ones that they fill */
    struct add_tensor *joined; /* per part. JOIN, CARRY */
    struct add_take *take;
    struct add_clip *clip;
    double *nothing; /* two zeros, and one for a hint that nobody keeps */
    struct entries_order *entries;
    struct entries_rank *rank; /* per part. LEAVE */
    struct whole_order *whole;
    struct whole_order *cleared; /* per part. JOIN: the parts become zeros */
    struct survey_order *survey; /* two per order: all elements, and those that reach a bound */
    struct survey_rank *ranked;
    struct update_order *update; /* per part. SHOW */
    struct update_sum *summed;
    const void **address; /* per part: gradients, entries of residuals, or what ranks see */
    const void **counted; /* per part. SUMMED: words in front of lists */
    const void **from;    /* CONVERT: the entries that are read */
    uint64_t size;        /* bytes of all */
};

/** The tables in `memory` (zeros, aligned to 8), which may be NULL if only the size is wanted. */
struct tables tables_in(void *memory, unsigned orders, unsigned parts);

/* Places in scratch memory, of a run. */
struct tables_scratch {
    uint64_t tables;
    uint64_t steps;          /* of ADD */
    uint64_t spare;          /* one word that counts, then one per block */
    uint64_t velocity_spare; /* the same of the pool of velocities */
    uint64_t size;           /* grows with every order */
};

/* The same of one of its orders. */
struct tables_own {
    uint64_t squares; /* clipping: one double per chunk */
    uint64_t kernels; /* what kernels keep */
};

/** `copies`: bytes of the orders' own. `blocks`: of the largest launch. */
struct tables_scratch tables_scratch(
    uint64_t copies, unsigned orders, unsigned parts, unsigned blocks);

/** Places for the next order of the run. */
struct tables_own tables_own(
    struct tables_scratch *scratch, const struct engine_order *order, const struct page_ask *ask);

/** Bytes of a survey's order in what kernels keep. */
uint64_t tables_survey(uint64_t numel);

/** Whether the gradients' norm has a limit. */
bool tables_clips(const struct engine_order *order);

/** Whether the fibres have hints: short ones have none, nor have those of a residual in bf16 that
 * are less than twice as long. */
bool tables_hints(const struct engine_order *order, const struct view *view);

/** Fills in numel, and what an ADD selects: mode, view, k and the room for candidates. */
void tables_select(
    struct add_tensor *tensor, const struct engine_order *order, const struct page_ask *ask);

#endif
