/*
 * The selection of contiguous fibres (rows) in a fused pass, each while it is in the cache.
 * Internal to kernels/cpu.
 *
 * A row's candidates are what reaches a guess: the row's threshold of the last turn, or that of the
 * row before it, less a margin (guess.h). If they are too few, the row is
 * looked at again with a lower guess, then with all that is not zero; the first zeros make up for
 * what is missing even then. A list that grows long keeps the best so far. A range selects the rows
 * that lie wholly in it; those on a border of two ranges wait for rows_finish(). Row f's entries
 * have their place in the list, k * f, whoever selects it.
 */
#ifndef ADTOPK_KERNELS_ROWS_H
#define ADTOPK_KERNELS_ROWS_H

#include "kernels/cpu/fused.h"
#include "kernels/cpu/guess.h"
#include "kernels/cpu/pick.h"

/* Shorter rows are selected by the plain selection. */
enum { ROWS_SHORTEST = 16 };

/* Pieces of rows in one chunk, at most. */
enum { ROWS_PIECES = CHUNK / ROWS_SHORTEST + 1 };

/* What a chunk has of one row. */
struct rows_piece {
    uint64_t row;
    unsigned length;
    bool last;      /* the row ends here */
    uint32_t least; /* key that its candidates reach; ROWS_SKIP: the row began in another range */
};

/* A range on its way through its rows, chunk by chunk. */
struct rows {
    struct fused *pass;
    const struct pick_ops *pick;
    struct sparse list;  /* candidates: of a row that has begun, then of the chunk at hand */
    struct sparse again; /* of a row that is looked at again */
    uint32_t *histogram;
    float last; /* threshold of the row before, 0 if unknown */
    struct guess guess;
    uint64_t first; /* element of the chunk at hand */
    uint64_t done;  /* elements of the next chunk's first row that were seen before it */
    unsigned pieces;
    struct rows_piece piece[ROWS_PIECES];
    uint32_t floors[PICK_WORDS]; /* keys that the chunk's words have to reach, where no word is of
                                  * two rows */
    uint32_t ends[PICK_WORDS];   /* candidates up to the end of each word */
};

/** Entries of a range's list of candidates. */
size_t rows_capacity(uint64_t length, uint64_t k);

/** Prepares for the elements from `first` on, in a range's scratch. */
void rows_begin(struct rows *rows, struct fused *pass, unsigned range);

/** Goes to the next chunk, of so many elements. True: rows->floors is set. */
bool rows_open(struct rows *rows, unsigned length);

/** The chunk is complete: selects the rows that end in it. listed: rows->list and rows->ends have
 * its candidates already. */
void rows_close(struct rows *rows, bool listed);

/** Selects the rows on the borders of ranges. */
void rows_finish(struct fused *pass);

#endif
