/*
 * The selection of contiguous fibres (rows) in a fused pass, each while it is in the cache.
 * Internal to kernels/cpu.
 *
 * A row's candidates are what reaches a guess: the row's threshold of the last turn, or that of the
 * row before it, less a margin that adapts itself from row to row. If they are too few, the row is
 * looked at again with a lower guess, then with all that is not zero; the first zeros make up for
 * what is missing even then. A list that grows long keeps the best so far. A range selects the rows
 * that lie wholly in it; those on a border of two ranges wait for rows_finish(). Row f's entries
 * have their place in the list, k * f, whoever selects it.
 */
#ifndef ADTOPK_KERNELS_ROWS_H
#define ADTOPK_KERNELS_ROWS_H

#include "kernels/cpu/fused.h"
#include "kernels/cpu/pick.h"

/* Shorter rows are selected by the plain selection. */
enum { ROWS_SHORTEST = 16 };

/* A range on its way through its rows, piece by piece. */
struct rows {
    struct fused *pass;
    const struct pick_ops *pick;
    struct sparse *candidate;
    uint32_t *histogram;
    uint64_t length; /* of a row */
    uint64_t row;    /* at hand */
    uint64_t done;   /* elements of it that were seen */
    uint32_t least;  /* key that candidates reach; 0: the row began in another range */
    float last;      /* threshold of the row before, 0 if unknown */
    float expected;  /* threshold of the row at hand, 0 if unknown */
    float margin;    /* how far below that the guess is, relative */
};

/** Entries of a range's list of candidates. */
size_t rows_capacity(uint64_t length, uint64_t k);

struct rows rows_begin(struct fused *pass, unsigned range);

/** Goes on with the range's next elements, which are complete; at most CHUNK. */
void rows_look(struct rows *rows, const float *x, unsigned length);

/** Selects the rows on the borders of ranges. */
void rows_finish(struct fused *pass);

#endif
