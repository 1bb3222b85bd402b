/*
 * The selection of contiguous fibres (rows) in a fused pass, each while it is in the cache.
 * Internal to kernels/cpu.
 *
 * A row's candidates are the elements that reach a guess: the row's threshold of the last turn, or
 * the threshold of the row before it, less a margin (guess.h). If they are too few, the pass reads
 * the row again with a lower guess, then searches the row itself for the k-th largest. If even then
 * elements are missing, the first zeros fill up.
 *
 * A list that grows long keeps the best so far. Ties, or a row that lies wholly above its last
 * threshold, would make lists too long. Then the next rows are *crowded*: the pass lists nothing
 * and searches them, until a guess fits again. A range selects from the rows that lie wholly in it;
 * rows on a border of two ranges wait for rows_finish(). The entries of row f have their place in
 * the list, k * f, whichever range selects them.
 */
#ifndef ADTOPK_KERNELS_ROWS_H
#define ADTOPK_KERNELS_ROWS_H

#include "kernels/cpu/fused.h"
#include "kernels/cpu/guess.h"
#include "kernels/cpu/piece.h"

/* Shorter rows are selected by the plain selection. */
enum { ROWS_SHORTEST = 16 };

/* A range on its way through its rows, piece by piece. A piece is the part of one row that lies in
 * one chunk. */
struct rows {
    struct fused *pass;
    struct sparse list;       /* candidates of the row at hand */
    struct chunk_bound bound; /* the bound that candidates have to reach */
    uint32_t *histogram;
    float last; /* threshold of the row before, 0 if unknown */
    struct guess guess;
    uint64_t ahead;   /* rows of a chunk, plus one: how far ahead memory is fetched */
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
