/*
 * The selection of fibres, piece by piece while they are in the cache: elements that reach a
 * threshold are listed, then the k best of the short list are picked. One table of operations an
 * implementation, all with the same result. Internal to kernels/cpu and its tests.
 */
#ifndef ADTOPK_KERNELS_PICK_H
#define ADTOPK_KERNELS_PICK_H

#include "kernels/cpu/select.h"

/* Elements looked at together, the bits of a mask. */
enum { PICK_WORD = 64 };

/* Entries that may be written behind a list's last one. */
enum { PICK_SLACK = 16 };

/* Words that are looked at together. */
enum { PICK_WORDS = 64 };

/* Which elements are listed: element i if its key is above below[(phase + i) % period]. */
struct pick_pattern {
    const int32_t *below; /* at least 0: zeros are never listed. period + PICK_WORD entries, the
                           * last ones the first ones again */
    uint32_t period;
    uint32_t phase; /* less than period */
};

/* Lists need room for PICK_SLACK more entries than there are marks. At most
 * PICK_WORDS words at once. */
struct pick_ops {
    /* Bit i of marks[w]: the key of element 64 w + i is at least `least`, above 0. Bits behind the
     * last element are 0. */
    void (*mark)(const float *x, size_t length, uint32_t least, uint64_t *marks);

    /* The same with the thresholds of a pattern. */
    void (*sieve)(
        const float *x, size_t length, const struct pick_pattern *pattern, uint64_t *marks);

    /* Appends the marked elements of so many words of x, the first of which has `position`. */
    void (*list)(const float *x, unsigned words, const uint64_t *marks, uint32_t position,
        struct sparse *list);

    /* Writes the k best of a list of at least k > 0 entries to out, which has room for no more;
     * of equals the first ones. All keys are at least `least`, and the k-th is expected below
     * `likely` (any value gives the same result). Returns a key that the k reach and no other
     * entry exceeds. */
    uint32_t (*best)(
        const struct sparse *list, size_t k, uint32_t least, uint32_t likely, struct sparse *out);
};

extern const struct pick_ops pick_plain;
#ifdef __x86_64__
extern const struct pick_ops pick_avx2;
extern const struct pick_ops pick_avx512; /* needs F, BW, DQ, VL, VBMI2, BMI, BMI2, POPCNT */
#endif

#endif
