/*
 * The vectorised inner loops of all passes, one table of operations per implementation. Internal to
 * kernels/cpu and its tests.
 *
 * An implementation works on whole *words* of 64 elements, the number of bits in a mask; the
 * functions below cut arrays of any length into words. All implementations give the same bits.
 */
#ifndef ADTOPK_KERNELS_CHUNK_H
#define ADTOPK_KERNELS_CHUNK_H

#include "kernels/base/ledger.h"
#include "kernels/base/parallel.h"
#include "kernels/cpu/deal.h"
#include "kernels/cpu/gather.h"
#include "kernels/cpu/journal.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/select.h"

enum { CHUNK_WORD = JOURNAL_WORD };
_Static_assert(CHUNK_WORD == (int)LEDGER_WORD, "one length of words");

/* Entries of room that a list of candidates needs behind its last entry. */
enum { CHUNK_SLACK = 16 };

/* Elements whose key is above the bound are candidates. The bound is never below 0, so zeros are no
 * candidates. Without a pattern the bound of all elements is least - 1. */
struct chunk_bound {
    uint32_t least;         /* above 0 and at most 2^31 - 1 */
    const int32_t *pattern; /* or NULL: element i's bound is pattern[(phase + i) % period]. period +
                             * CHUNK_WORD entries, the last ones the first ones again */
    uint32_t period;
    uint32_t phase; /* less than period */
    uint32_t step;  /* CHUNK_WORD % period */
};

/* The bounds of the next word, or NULL if all are the same. phase: moves on. */
static inline const int32_t *chunk_pattern(const struct chunk_bound *bound, uint32_t *phase)
{
    if (bound->pattern == NULL) {
        return NULL;
    }
    const int32_t *const pattern = bound->pattern + *phase;
    const uint32_t next = *phase + bound->step;
    *phase = next < bound->period ? next : next - bound->period;
    return pattern;
}

struct rounding;

/* A chunk on its way through chunk_step(). The first six fields are set by the caller, the next
 * four before each step, the others are zero at first. */
struct chunk {
    float *acc;                 /* the next element; NULL where they are in bf16: */
    struct rounding *rounding;  /* the residual in bf16 that the chunk is rounded to, or NULL */
    const float *sum;           /* the sum to add, before elements that are not finite are left out;
                                 * NULL: the sum of the gradients below */
    struct gradients gradients; /* of the whole tensor */
    uint64_t number;            /* of the chunk in the tensor */
    struct journal *journal;    /* open for the chunk, or NULL */
    struct sparse *candidate;   /* NULL, or the list that takes this step's candidates */
    const struct chunk_bound *bound;
    uint32_t phase;     /* in its pattern */
    uint32_t position;  /* of the step's first element in that list */
    unsigned word;      /* number of the next word in the chunk */
    unsigned nonfinite; /* elements left out */
    double lost[2];     /* sums of what decay takes */
    struct ledger_lanes lanes;
};

/* Implementations work on whole words. */
struct chunk_ops {
    const char *name;
    bool (*supported)(void);
    bool rounds; /* add() takes chunks in bf16 too, but for bounds with a pattern */

    /* sum[i] = the sum of all gradients' elements first + i, in the order of the array. A NaN is
     * one everywhere, its payload is not defined. */
    void (*gather)(const struct gradients *gradients, uint64_t first, unsigned length, float *sum);

    /* Adds the finite elements of `sum` to `acc` under the journal, adds them to the ledger's lanes
     * and lists the candidates. Moves the chunk's pointers, position and word behind the words that
     * were done. */
    void (*add)(struct chunk *chunk, unsigned words);

    /* The sums of all steps of the chunk. */
    void (*sums)(struct chunk *chunk, double sums[2]);

    /* Appends the candidates among the elements. */
    void (*collect)(const float *x, unsigned words, const struct chunk_bound *bound,
        uint32_t position, struct sparse *list);

    /* The cut for 0 < k <= n, where x stays in a cache. Its key is the k-th largest. */
    struct select_cut (*cut)(const float *x, size_t n, size_t k);

    /* Number of elements whose key is at least `least`. */
    size_t (*count)(const float *x, size_t n, uint32_t least);

    /* Copies the elements whose key is in low..high - 1, high < 2^31, and returns their number;
     * *above += the number of those whose key is larger. out: room for n. */
    size_t (*between)(
        const float *x, size_t n, uint32_t low, uint32_t high, float *out, size_t *above);

    /* Appends the entries of a list whose key is at least `least`. */
    void (*filter)(const struct sparse *list, uint32_t least, struct sparse *out);

    /* Writes the k best of a list of at least k > 0 entries to out, which has room for exactly k.
     * Of equal entries the first ones win. out may be the list itself. All keys are at least
     * `least`, and the k-th is expected below `likely`; any value of `likely` gives the same
     * result. Returns a key that the k entries reach and no other entry exceeds. */
    uint32_t (*best)(
        const struct sparse *list, size_t k, uint32_t least, uint32_t likely, struct sparse *out);

    /* Selects from the fibres that a list has at least k entries of: *settled has bit f set if from
     * fibre f. Deals the other entries to the parts of their fibres, which are empty. False where
     * the entries had better be dealt one by one: then nothing is changed. NULL: always. */
    bool (*deal)(const struct sparse *list, const struct deal *deal, uint32_t *settled);

    /* peak[i % period] = the largest of itself and the keys of all x[i], i < n. */
    void (*peaks)(const float *x, size_t n, int32_t *peak, size_t period);

    /* The k largest numbers of every column of x, best first. x has `rows` >= k rows of `stride`
     * numbers that are not negative. best: k rows, and one more of scratch. */
    void (*columns)(const int32_t *x, size_t rows, size_t stride, size_t k, int32_t *best);
};

/** All implementations of this build, the best last, NULL-terminated. */
extern const struct chunk_ops *const chunk_table[];

/** The best one that this processor supports. */
const struct chunk_ops *chunk_best(void);

/** Adds the chunk's next `length` elements, a multiple of CHUNK_WORD but for the chunk's last step.
 */
void chunk_step(const struct chunk_ops *ops, struct chunk *chunk, unsigned length);

/** The same for elements, a multiple of CHUNK_WORD, that are complete already: takes them into the
 * sums only. */
void chunk_skip(const struct chunk_ops *ops, struct chunk *chunk, unsigned length);

/** Appends the candidates among `length` elements; the first has `position`. list: room for
 * `length` + CHUNK_SLACK more. */
void chunk_collect(const struct chunk_ops *ops, const float *x, uint64_t length,
    const struct chunk_bound *bound, uint32_t position, struct sparse *list);

/* Elements that stay in the second-level cache. */
enum { CHUNK_CACHED = 1 << 16 };

/** The cut for the k-th entry of a list of at least k. */
struct select_cut chunk_cut(const struct chunk_ops *ops, const struct sparse *list, size_t k,
    uint32_t histogram[SELECT_BINS]);

/* Spans and lists that the following functions take at most. */
enum { CHUNK_SPANS = 64 };

/** The cut for the k-th of all elements of the spans, at least k and each contiguous. spare: room
 * for some of them; more room makes it faster. */
struct select_cut chunk_cut_spans(const struct chunk_ops *ops, const struct select_span *spans,
    unsigned count, uint64_t k, float *spare, uint64_t room, uint32_t histogram[SELECT_BINS],
    const struct parallel *parallel);

/** Selects the k best of `length` contiguous elements, which stay in a cache, into the empty list
 * `out`. The first element has `position`. list: overwritten, with room for 2 * k + CHUNK_WORD +
 * CHUNK_SLACK. Returns the key of the k-th. */
uint32_t chunk_top(const struct chunk_ops *ops, const float *x, uint64_t length, uint64_t k,
    uint32_t position, struct sparse *list, struct sparse *out);

/** Drops all but the k best entries of a list of at least k. Returns the key that a later element
 * has to reach to have a place among them. */
uint32_t chunk_prune(
    const struct chunk_ops *ops, struct sparse *list, size_t k, uint32_t histogram[SELECT_BINS]);

/** Appends the selected entries of a list, as select_filter(); out may be the list, emptied. */
void chunk_select(const struct chunk_ops *ops, const struct sparse *list, struct select_cut *cut,
    struct sparse *out, size_t end);

/** Appends the selected entries of lists in ascending order of positions, up to `end` in all. */
void chunk_select_lists(const struct chunk_ops *ops, const struct sparse *lists, unsigned count,
    const struct select_cut *cut, struct sparse *out, size_t end, const struct parallel *parallel);

/** Copies a word with -0.0, which adds nothing, for non-finite elements; returns their number. */
unsigned chunk_filter(float filtered[CHUNK_WORD], const float *sum);

/** Moves the chunk's pointers, position and word behind the words that were done. */
static inline void chunk_move(struct chunk *chunk, unsigned words)
{
    chunk->acc = chunk->acc != NULL ? chunk->acc + words * CHUNK_WORD : NULL;
    chunk->sum = chunk->sum != NULL ? chunk->sum + words * CHUNK_WORD : NULL;
    chunk->position += words * CHUNK_WORD;
    chunk->word += words;
}

/** The index in the tensor of the next element of a chunk. */
static inline uint64_t chunk_next(const struct chunk *chunk)
{
    return chunk->number * CHUNK + chunk->word * CHUNK_WORD;
}

#endif
