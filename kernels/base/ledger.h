/*
 * How the ledger's sums are computed (plain.h documents the functions).
 *
 * Signs. The ledger numbers elements in three levels: a chunk has words of 64 elements, a word has
 * four vectors, a vector has 16 lanes. The sign of an element is the product of three bits: a hash
 * bit of its word, a hash bit of its lane, and the parity of the bits of its vector's number. Hence
 * one addition per element serves both sums. A word's vectors of positive and of negative sign are
 * summed apart. The plain sum of the word is their sum, the signed one is their difference.
 *
 * Order of summation. It is part of the definition: the sums must not depend on the compiler, the
 * vector width or the number of workers. For a word's vectors x0..x3, lane by lane: even = x0 + x3,
 * odd = x1 + x2. `positive` grows by even and `negative` by odd, or the other way round where the
 * word's hash bit is set. After every 8 words, and at the end of the chunk, the chunk's plain lane
 * grows by positive + negative and its signed lane by positive - negative. Then both start at zero
 * again.
 *
 * So far the sums are in float, because conversions would cost more than all additions. The
 * rounding error of 17 additions is of the order of the residual's own rounding. The rest is in
 * double: the lanes of a chunk; at its end the 16 lanes, signed, added as a tree; then the chunks
 * one after the other. A pass adds the chunks of a group so, then the groups.
 */
#ifndef ADTOPK_KERNELS_LEDGER_H
#define ADTOPK_KERNELS_LEDGER_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/base/inline.h"

/* A gradient element of this magnitude or more, or NaN, counts as non-finite: the headroom up to
 * FLT_MAX keeps the residual finite over many turns. */
#define KERNEL_FINITE_LIMIT 0x1p120f

enum { LEDGER_LANES = 16, LEDGER_WORD = 64, LEDGER_WORDS = 64, LEDGER_RUN = 8 };
enum { LEDGER_GROUP = 64 }; /* chunks */

/* Groups of a tensor's chunks. */
BASE_INLINE uint64_t ledger_groups(uint64_t chunks)
{
    return (chunks + LEDGER_GROUP - 1) / LEDGER_GROUP;
}

/* Running sums of one chunk. */
struct ledger_lanes {
    float positive[LEDGER_LANES]; /* of the words since the last multiple of LEDGER_RUN */
    float negative[LEDGER_LANES];
    double plain[LEDGER_LANES];
    double hashed[LEDGER_LANES];
};

/* The splitmix64 finaliser (Steele, Lea and Flood 2014). */
BASE_INLINE uint64_t ledger_hash(uint64_t index)
{
    uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Bit w: the words of a chunk that are negative. */
BASE_INLINE uint64_t ledger_word_signs(uint64_t chunk)
{
    return ledger_hash(2 * chunk);
}

/* Bit l < 16: the lanes of a chunk that are negative. */
BASE_INLINE uint64_t ledger_lane_signs(uint64_t chunk)
{
    return ledger_hash(2 * chunk + 1);
}

/* Whether an element's sign is negative, 0 or 1, from the words and lanes that are in its chunk. */
BASE_INLINE uint64_t ledger_is_negative(uint64_t words, uint64_t lanes, uint64_t element)
{
    const uint64_t in_word = element % LEDGER_WORD;
    const uint64_t word = words >> (element / LEDGER_WORD % LEDGER_WORDS);
    const uint64_t lane = lanes >> (in_word % LEDGER_LANES);
    /* Bit j: the parity of j's bits. */
    const uint64_t vector = 0x6u >> (in_word / LEDGER_LANES);
    return (word ^ lane ^ vector) & 1u;
}

/* Ends a run of words. */
BASE_INLINE void ledger_flush(struct ledger_lanes *lanes)
{
    for (unsigned l = 0; l < LEDGER_LANES; l++) {
        const float sum = lanes->positive[l] + lanes->negative[l];
        const float difference = lanes->positive[l] - lanes->negative[l];
        lanes->plain[l] += (double)sum;
        lanes->hashed[l] += (double)difference;
        lanes->positive[l] = 0;
        lanes->negative[l] = 0;
    }
}

/* Adds the 64 elements of the chunk's word w. */
BASE_INLINE void ledger_add(const float *x, unsigned w, uint64_t signs, struct ledger_lanes *lanes)
{
    const bool swap = (signs >> w) & 1u;
    float *even = swap ? lanes->negative : lanes->positive;
    float *odd = swap ? lanes->positive : lanes->negative;
    for (unsigned l = 0; l < LEDGER_LANES; l++) {
        even[l] += x[l] + x[l + 48];
        odd[l] += x[l + 16] + x[l + 32];
    }
    if (w % LEDGER_RUN == LEDGER_RUN - 1) {
        ledger_flush(lanes);
    }
}

BASE_INLINE double ledger_tree(const double lane[LEDGER_LANES])
{
    double half[LEDGER_LANES / 2];
    for (unsigned l = 0; l < LEDGER_LANES / 2; l++) {
        half[l] = lane[l] + lane[l + LEDGER_LANES / 2];
    }
    return ((half[0] + half[4]) + (half[2] + half[6])) +
           ((half[1] + half[5]) + (half[3] + half[7]));
}

/* The two sums of a chunk, once all of its elements are in the lanes. */
BASE_INLINE void ledger_total(struct ledger_lanes *lanes, uint64_t chunk, double sums[2])
{
    const uint64_t signs = ledger_lane_signs(chunk);
    ledger_flush(lanes); /* after a whole run it adds zeros */
    for (unsigned l = 0; l < LEDGER_LANES; l++) {
        lanes->hashed[l] *= 1.0 - 2.0 * (double)(int)((signs >> l) & 1u);
    }
    sums[0] = ledger_tree(lanes->plain);
    sums[1] = ledger_tree(lanes->hashed);
}

/* The sum of the magnitudes of a chunk's elements. Each lane of a run is summed, then the runs are
 * added lane by lane, then the lanes as a tree. Compilers turn fabsf() into a mask. A comparison
 * becomes a branch, which is mispredicted every other time and takes ten times as long. */
BASE_INLINE double ledger_magnitude(const float *x, unsigned length)
{
    enum { LANES = 32, RUN = LEDGER_RUN * LEDGER_WORD };
    double lane[LANES] = {0};
    for (unsigned first = 0; first < length; first += RUN) {
        double run[LANES] = {0};
        for (unsigned i = first; i < length && i < first + RUN; i++) {
            run[i % LANES] += (double)fabsf(x[i]);
        }
        for (unsigned l = 0; l < LANES; l++) {
            lane[l] += run[l];
        }
    }
    for (unsigned distance = LANES / 2; distance > 0; distance /= 2) {
        for (unsigned l = 0; l < distance; l++) {
            lane[l] += lane[l + distance];
        }
    }
    return lane[0];
}

#endif
