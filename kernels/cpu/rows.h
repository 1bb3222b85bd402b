/*
 * The selection of contiguous fibres (rows) in a fused pass, each while it is in the cache.
 * Internal to kernels/cpu.
 *
 * A row's candidates are what reaches a guess: the row's threshold of the last turn, or that of the
 * row before it, less a margin (guess.h). If they are too few, the row is looked at again with a
 * lower guess, then the k-th largest is searched for in the row itself; the first zeros make up for
 * what is missing even then. A list that grows long keeps the best so far, and where they would
 * grow too long (ties, all of a row above its last threshold) the next rows are *crowded*: nothing
 * is listed and they are searched, until a guess fits again. A range selects the rows that lie
 * wholly in it; those on a border of two ranges wait for rows_finish(). Row f's entries have their
 * place in the list, k * f, whoever selects it.
 */
#ifndef ADTOPK_KERNELS_ROWS_H
#define ADTOPK_KERNELS_ROWS_H

#include "kernels/cpu/fused.h"
#include "kernels/cpu/guess.h"
#include "kernels/cpu/piece.h"

/* Shorter rows are selected by the plain selection. */
enum { ROWS_SHORTEST = 16 };

/* A range on its way through its rows, piece by piece: what a chunk has of one row. */
struct rows {
    struct fused *pass;
    struct sparse list;       /* candidates of the row at hand */
    struct chunk_bound bound; /* what they have to reach */
    uint32_t *histogram;
    float last; /* threshold of the row before, 0 if unknown */
    struct guess guess;
    uint64_t ahead;   /* rows of a chunk, and one more: what is fetched */
    uint64_t row;     /* at hand */
    uint32_t guessed; /* its guess */
    uint64_t pruned;  /* candidates of it that its list had no room for */
    unsigned crowd;   /* so many rows from here on are searched and not listed on the way */
    uint64_t done;    /* elements of it that were seen */
    bool skip;        /* it began in another range */
};

/** Entries of a range's list of candidates. */
size_t rows_capacity(uint64_t length, uint64_t k);

/** Prepares for a range, with its scratch. */
void rows_begin(struct rows *rows, struct fused *pass, unsigned range);

/** Goes to the next piece, of the next `length` elements; the caller lists its candidates. */
struct piece rows_open(struct rows *rows, unsigned length);

/** The piece of this length is complete and listed: selects from the row if it ends. */
void rows_close(struct rows *rows, unsigned length);

/** Selects the rows on the borders of ranges. */
void rows_finish(struct fused *pass);

#endif
