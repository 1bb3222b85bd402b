/*
 * The selection of contiguous fibres (rows) in a fused pass, each while it is in the cache.
 * Internal to kernels/cpu.
 *
 * A range selects the rows that lie wholly in it; those on a border of two ranges wait for
 * rows_finish(). Row f's entries have their place in the list, k * f, whoever selects it.
 */
#ifndef ADTOPK_KERNELS_ROWS_H
#define ADTOPK_KERNELS_ROWS_H

#include "kernels/cpu/fused.h"

/* Shorter rows are selected by the plain selection. */
enum { ROWS_SHORTEST = 128 };

/* A range on its way through its rows. */
struct rows {
    struct fused *pass;
    unsigned range;
    uint64_t next; /* the first row that is not selected yet */
    float last;    /* threshold of the row before, 0 if unknown */
};

/** Entries of a range's list of candidates. */
size_t rows_capacity(uint64_t length, uint64_t k);

struct rows rows_begin(struct fused *pass, unsigned range);

/** Selects the rows that end at or before element `end`, up to which the residual is complete. */
void rows_select_until(struct rows *rows, uint64_t end);

/** Selects the rows on the borders of ranges. */
void rows_finish(struct fused *pass);

#endif
