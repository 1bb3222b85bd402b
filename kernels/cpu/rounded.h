/*
 * A residual in bf16: half the memory, and a pass that moves 8 bytes per element. The pass feeds
 * rounding errors back, so that nothing is lost.
 *
 * A pass expands words to f32, adds to them as to any others, and rounds them again. Everything
 * later, selection first of all, sees the rounded values. bf16 and f32 values are sent exactly as
 * they are, and an element that was sent leaves nothing behind.
 *
 * Definition of the rounding. The elements of a chunk are in words of 64; a word is four vectors of
 * 16 lanes. Word by word each element x becomes one of the two bf16 next to x + e, at random, so
 * that it is x + e on average. Then e becomes the rounding error. There is one e for every
 * combination of lane, half of the word and sign in the ledger (ledger.h). The error of an element
 * goes to the element of the next word with the same combination. This keeps the ledger's signed
 * sum as it is, too. At the end of the chunk the e of both halves are added. This *carry* of 32
 * floats per chunk is what the first half begins with in the next pass. Where the result is not
 * finite, e becomes 0.
 *
 * So elements and carry have the sums that f32 elements would have, to f32 rounding: error
 * diffusion after Floyd and Steinberg (1976), in one dimension. No element grows at the cost of
 * another, as would happen if every pass rounded small gradients of one sign to nearest. Each
 * element is right on average (Gupta et al. 2015). One pass is off by at most two units in the last
 * place of the largest element of the chain. Values that bf16 can hold do not change.
 *
 * Random numbers: one hash per word, of the pass's stamp, the residual's salt, chunk and word, so a
 * repeated pass rounds as before. The elements of the word add multiples of the golden ratio to it.
 * Each number is even over all hashes, so every element is right on average. The numbers of one
 * word depend on each other, but no two elements of one word exchange errors: an element receives
 * errors that were made under another word's hash.
 *
 * Journal: it keeps the chunk's old carry, and the old elements of every word before they change.
 * After a kill before the chunk's record is published, rounded_recover() puts all of them back,
 * because the error that a word receives depends on all words before it.
 */
#ifndef ADTOPK_KERNELS_ROUNDED_H
#define ADTOPK_KERNELS_ROUNDED_H

#include "kernels/base/rounded.h"
#include "kernels/base/sparse.h"
#include "kernels/base/view.h"
#include "kernels/cpu/journal.h"

/* In the caller's memory; element NULL: there is none. */
struct rounded {
    uint16_t *element;
    struct carry *carry; /* of every chunk */
    uint64_t salt;       /* of its random numbers. Residuals that are summed, as those of several
                          * nodes, have different salts, so that their errors differ. */
};

/* A chunk on its way through rounding. */
struct rounding {
    const struct rounded_ops *ops;
    uint16_t *element;           /* the chunk's */
    struct journal *journal;     /* takes them before they change; or NULL */
    struct carry *carry;         /* where the error at the end of the chunk goes */
    uint64_t signs;              /* in the ledger, of its words */
    uint32_t hash[LEDGER_WORDS]; /* of its words */
    float e[2][2][LEDGER_LANES]; /* by sign, half of the word and lane */
};

struct rounded_ops {
    const char *name;
    bool (*supported)(void);
    void (*expand)(const uint16_t *from, unsigned length, float *to);

    /* The hashes of a chunk's words, of its seed. */
    void (*hash)(uint64_t seed, uint32_t hash[LEDGER_WORDS]);

    /* Rounds so many whole words of a chunk, from its word number `first` on, in place and to the
     * bf16 residual. The words before `first` have been rounded already. */
    void (*round)(struct rounding *rounding, float *x, unsigned first, unsigned words);
};

/** All implementations, the best last, NULL-terminated; they give the same bits. */
extern const struct rounded_ops *const rounded_table[];

/** The best one that this processor supports. */
const struct rounded_ops *rounded_best(void);

/** Bytes of a residual of n elements with its carries: 2.03 per element. */
size_t rounded_size(uint64_t n);

/** The residual in that memory, aligned to 64; zeros are its initial state. Its salt is 0. */
struct rounded rounded_at(void *memory, uint64_t n);

/** Elements from `first` on, as they are. */
void rounded_read(const struct rounded *rounded, uint64_t first, unsigned length, float *out);

/** Prepares to round a chunk, with the carry it has. journal: open for the chunk, or NULL. */
void rounded_begin(struct rounding *rounding, const struct rounded_ops *ops,
    const struct rounded *rounded, uint64_t chunk, uint64_t stamp, struct journal *journal);

/** Journals the chunk's `length` elements from `first` on, which may change from now on. The
 * elements before `first` have been journalled. */
void rounded_save(const struct rounding *rounding, unsigned first, unsigned length);

/** Rounds the chunk's last elements, `length` < LEDGER_WORD of its word that begins at `first`, in
 * place and to where they go. */
void rounded_rest(struct rounding *rounding, float *x, unsigned first, unsigned length);

/** Call it when all elements are rounded: sets the chunk's carry to the error that they leave. Then
 * its record may be published and the journal closed. */
void rounded_end(const struct rounding *rounding);

/** All of that to a chunk's elements x, in place and without a journal. */
void rounded_put(const struct rounded_ops *ops, const struct rounded *rounded, uint64_t chunk,
    uint64_t stamp, float *x, unsigned length);

/** Rounds a chunk of a residual whose carries are zeros. Its elements and its carry come out here;
 * the salt is 0. */
void rounded_alone(const struct rounded_ops *ops, uint64_t chunk, float *x, unsigned length,
    uint16_t *element, struct carry *carry);

/** As journal_recover(): puts a chunk back that was not finished. */
bool rounded_recover(
    struct journal *journal, const struct rounded *rounded, uint64_t n, struct progress *progress);

/** sums += the ledger's two sums of elements and carries. */
void rounded_sums(const struct rounded *rounded, uint64_t n, double sums[2]);

/** From f32 and back: the sums stay, to rounding. Elements that leave bf16 get the carries. */
void rounded_from(const struct rounded *rounded, const float *x, uint64_t n);
void rounded_to(const struct rounded *rounded, uint64_t n, float *x);

/** The same of `count` elements from `first` on, a multiple of CHUNK. */
void rounded_to_part(const struct rounded *rounded, uint64_t first, uint64_t count, float *x);

/** The k largest magnitudes, exact, ties to the lower position, in each of `fibres` fibres of the
 * view from number `fibre` on. Selects as select_fibres(), or as select_top() where the view is a
 * single fibre. Appends to out. 0 < k <= length. histogram: SELECT_BINS (select.h) numbers of
 * scratch. */
void rounded_select(const struct rounded *rounded, const struct view *view, uint64_t fibre,
    uint64_t fibres, uint64_t k, struct sparse *out, uint32_t *histogram);

#endif
