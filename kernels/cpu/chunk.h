/*
 * The vectorised inside of all passes, one table of operations an implementation. Internal to
 * kernels/cpu and its tests.
 *
 * An implementation works on whole *words* of 64 elements, the number of bits in a mask; the
 * functions below cut arrays of any length into them. All implementations give the same bits.
 */
#ifndef ADTOPK_KERNELS_CHUNK_H
#define ADTOPK_KERNELS_CHUNK_H

#include "kernels/cpu/journal.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/ledger.h"

enum { CHUNK_WORD = LEDGER_WORD, CHUNK_WORDS = CHUNK / CHUNK_WORD };

/* Slack that pack() needs behind the last entry it returns. */
enum { CHUNK_PACK_SLACK = 2 };

/* One chunk, or its tail, on its way through add(). */
struct chunk {
    float *acc;
    const float *sum;        /* what is added, not filtered yet */
    uint64_t number;         /* of the chunk in the tensor */
    unsigned word;           /* the first word of acc in the chunk: 0, or the tail's */
    struct journal *journal; /* or NULL */
    uint64_t saved;          /* elements of the chunk that are in the journal */
    uint64_t *mask; /* bit i % 64 of mask[i / 64]: the key of acc[i] is at least `least`. Or NULL */
    uint32_t least; /* below 2^31 */
    unsigned nonfinite; /* grows by the elements left out */
};

struct chunk_ops {
    const char *name;
    bool (*supported)(void);

    /* sum[i] = the sum of all gradients' elements first + i, in the order of the array. */
    void (*gather)(float *sum, const void *const *gradients, unsigned count, enum dtype dtype,
        uint64_t first, unsigned length);

    /* acc += finite elements of sum, journalled, with the ledger's lanes and the mask. */
    void (*add)(struct chunk *chunk, unsigned words, struct ledger_lanes *lanes);

    /* The mask alone. */
    void (*mark)(const float *x, unsigned words, uint32_t least, uint64_t *mask);

    /* Appends the marked elements; position counts from `first`. Returns their number. May write
     * CHUNK_PACK_SLACK entries more. */
    size_t (*pack)(const float *x, const uint64_t *mask, unsigned words, uint32_t first,
        uint32_t *position, float *value);

    /* The number of elements whose key is at least `least`. */
    size_t (*count)(const float *x, size_t n, uint32_t least);
};

/** All implementations of this build, the best last, NULL-terminated. */
extern const struct chunk_ops *const chunk_table[];

/** The best one that this processor supports. */
const struct chunk_ops *chunk_best(void);

/** Adds chunk->sum to the chunk's `length` <= CHUNK elements; sums: on return the chunk's two sums.
 */
void chunk_add(const struct chunk_ops *ops, struct chunk *chunk, unsigned length, double sums[2]);

/** mark() and pack() for `length` <= CHUNK elements. */
size_t chunk_collect(const struct chunk_ops *ops, const float *x, unsigned length, uint32_t least,
    uint32_t first, uint32_t *position, float *value);

/** pack() for `length` <= CHUNK marked elements. */
size_t chunk_pack(const struct chunk_ops *ops, const float *x, const uint64_t *mask,
    unsigned length, uint32_t first, uint32_t *position, float *value);

/** Copies a word with -0.0, which adds nothing, for non-finite elements; returns their number. */
unsigned chunk_filter(float filtered[CHUNK_WORD], const float *sum);

#endif
