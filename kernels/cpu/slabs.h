/*
 * The selection of strided fibres in a fused pass, where they lie. Internal to kernels/cpu.
 *
 * A *slab* is the memory of the fibres between two multiples of the stride: `length` times `stride`
 * contiguous elements, of which element i belongs to fibre i % stride. (Axis 1 of a convolution [O,
 * I, kh, kw] has O slabs of I * kh * kw elements, axis 0 a single one.) The pass reads a slab once,
 * in the order of memory. Each fibre has a guess: its threshold of the last turn, or that of the
 * slab before, less a margin (guess.h). The guesses repeat along the slab as a pattern, and the
 * elements are compared with the pattern. The few elements that reach their guess are dealt to
 * their fibres. When the slab is complete, the best of each fibre are picked, while memory fetches
 * the next slab's elements.
 *
 * Fibres that have too few candidates are *open*. A few open fibres of a wide slab are read again
 * alone, with a lower guess. Otherwise all open fibres are searched together in two reads of the
 * slab, which is still in the cache. The first read finds the peaks of each fibre, the largest
 * elements of some subsets of it. At least k elements reach its k-th peak, and hardly any more. The
 * second read lists those. Ties may be many: then a fibre keeps the first k and raises its bound.
 * Where the k-th peak of every fibre is its largest, the search only needs the first k.
 *
 * Where there are too many candidates (rows.h) this slab and the next ones are a *crowd*: the pass
 * lists nothing and searches all fibres, for twice as many slabs every time.
 *
 * slabs_finish() reads a slab on a border of two ranges again. The entries of fibre f have their
 * place in the list, k * f, whichever range selects them.
 */
#ifndef ADTOPK_KERNELS_SLABS_H
#define ADTOPK_KERNELS_SLABS_H

#include "kernels/cpu/deal.h"
#include "kernels/cpu/fused.h"
#include "kernels/cpu/guess.h"
#include "kernels/cpu/piece.h"

/* Fibres of other lengths and strides are selected from plainly. */
enum { SLABS_SHORTEST = 16, SLABS_WIDEST = 1 << 16 };

/* A range on its way through its slabs, piece by piece. */
struct slabs {
    struct fused *pass;
    struct sparse list;  /* candidates of the piece at hand; positions count in the slab */
    struct sparse dealt; /* entries of the slab by fibre, `room` for each; positions of the view */
    uint32_t room;
    uint32_t *count;          /* of each fibre */
    int32_t *below;           /* the bound that each fibre's candidates exceed, as a pattern */
    uint32_t *open;           /* fibres that are not selected from yet */
    uint64_t opens;           /* their number */
    struct chunk_bound bound; /* of the next piece */
    float *last;              /* the thresholds of the slab before, 0 if unknown */
    uint32_t *histogram;      /* scratch */
    uint64_t reciprocal;      /* of the stride */
    uint64_t slab;            /* at hand */
    uint64_t done;            /* elements of it that were seen */
    bool begun;               /* candidates of it are dealt */
    bool skip;                /* it began in another range */
    uint64_t met;             /* candidates in it */
    bool tied;                /* the last slab that was searched had many equals */
    float guessed;            /* the sum of its fibres' guesses */
    unsigned crowd;           /* so many slabs from here on are searched and not listed */
    unsigned patience;        /* and so many the next time */
    struct guess guess;       /* of the slab at hand */
    struct guess next;        /* of the next one */
};

/** Entries of a range's list of candidates, which the slabs' other arrays are parts of. */
size_t slabs_capacity(const struct view *view, uint64_t k);

void slabs_begin(struct slabs *slabs, struct fused *pass, unsigned range);

/** Goes to the next piece, of the next `length` elements, at most CHUNK; the caller lists its
 * candidates. */
struct piece slabs_open(struct slabs *slabs, unsigned length);

/** The piece of this length is complete and listed: selects from the slab if it ends. */
void slabs_close(struct slabs *slabs, unsigned length);

/** Selects the slabs on the borders of ranges. */
void slabs_finish(struct fused *pass);

/* What slabs.c and slabs_search.c share. */

/** Selects from the slab's open fibres by reading it twice, whatever their guesses were. */
void slabs_search(struct slabs *slabs);

/** Elements of a slab. */
static inline uint64_t slabs_size(const struct slabs *slabs)
{
    return slabs->pass->view.length * slabs->pass->view.stride;
}

/** Repeats the begin of the pattern `below` behind its end. */
void slabs_repeat(const struct slabs *slabs);

/** Deals the listed elements one by one; a fibre without room is pruned. */
void slabs_deal_singly(struct slabs *slabs);

/** The same if they are too many to be dealt together. */
void slabs_wait(struct slabs *slabs);

/** Keeps the k best of a fibre's dealt entries, at least k, and raises its bound to the last. */
void slabs_prune(struct slabs *slabs, uint64_t fibre);

/** Selects from the open fibres by the listed and dealt elements; fibres with too few stay open. */
void slabs_close_fibres(struct slabs *slabs);

#endif
