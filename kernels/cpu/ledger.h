/*
 * The inside of the ledger's sums (kernels.h documents them).
 *
 * Signs. An element is number l of a vector of 16, which is number j of a word of 64, which is
 * number w of a chunk. Its sign is a product: a hash bit of the chunk's word w, one of the chunk's
 * lane l, and the parity of j's bits. So one addition an element serves both sums: a word's
 * vectors of positive and of negative sign are summed apart, their sum is the plain one, their
 * difference the signed one.
 *
 * Order of summation, part of the definition, so that the sums depend neither on the compiler, the
 * vector width nor the number of workers. Lane by lane, of a word's vectors x0..x3: even = x0 + x3,
 * odd = x1 + x2; `positive` grows by even and `negative` by odd, or the other way round where the
 * word's hash bit is set. After every 8 words, and at the chunk's end, the chunk's plain lane grows
 * by positive + negative, its signed lane by positive - negative, and both start at zero again. So
 * far in float: conversions would cost more than all additions, and what 17 additions round is of
 * the order of what the residual rounds itself. The rest is in double: a chunk's lanes; its 16
 * lanes, signed, added as a tree at the end; the chunks one after the other.
 */
#ifndef ADTOPK_KERNELS_LEDGER_H
#define ADTOPK_KERNELS_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

enum { LEDGER_LANES = 16, LEDGER_WORD = 64, LEDGER_WORDS = 64, LEDGER_RUN = 8 };

/* Running sums of one chunk. */
struct ledger_lanes {
    float positive[LEDGER_LANES]; /* of the words since the last multiple of LEDGER_RUN */
    float negative[LEDGER_LANES];
    double plain[LEDGER_LANES];
    double hashed[LEDGER_LANES];
};

/* The splitmix64 finaliser (Steele, Lea and Flood 2014). */
static inline uint64_t ledger_hash(uint64_t index)
{
    uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Bit w: the words of a chunk that are negative. */
static inline uint64_t ledger_word_signs(uint64_t chunk)
{
    return ledger_hash(2 * chunk);
}

/* Bit l < 16: the lanes of a chunk that are negative. */
static inline uint64_t ledger_lane_signs(uint64_t chunk)
{
    return ledger_hash(2 * chunk + 1);
}

/* An element's sign, from the words and lanes that are negative in its chunk. */
static inline double ledger_element_sign(uint64_t words, uint64_t lanes, uint64_t element)
{
    const uint64_t in_word = element % LEDGER_WORD;
    const uint64_t word = words >> (element / LEDGER_WORD % LEDGER_WORDS);
    const uint64_t lane = lanes >> (in_word % LEDGER_LANES);
    /* Bit j: the parity of j's bits. */
    const uint64_t vector = 0x6u >> (in_word / LEDGER_LANES);
    /* Computed, as a branch would be mispredicted every other time. */
    return 1.0 - 2.0 * (double)(int)((word ^ lane ^ vector) & 1u);
}

/* Ends a run of words. */
static inline void ledger_flush(struct ledger_lanes *lanes)
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
static inline void ledger_add(
    const float *x, unsigned w, uint64_t signs, struct ledger_lanes *lanes)
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

static inline double ledger_tree(const double lane[LEDGER_LANES])
{
    double half[LEDGER_LANES / 2];
    for (unsigned l = 0; l < LEDGER_LANES / 2; l++) {
        half[l] = lane[l] + lane[l + LEDGER_LANES / 2];
    }
    return ((half[0] + half[4]) + (half[2] + half[6])) +
           ((half[1] + half[5]) + (half[3] + half[7]));
}

/* The two sums of a chunk whose elements are all in the lanes. */
static inline void ledger_total(struct ledger_lanes *lanes, uint64_t chunk, double sums[2])
{
    const uint64_t signs = ledger_lane_signs(chunk);
    ledger_flush(lanes); /* after a whole run it adds zeros */
    for (unsigned l = 0; l < LEDGER_LANES; l++) {
        lanes->hashed[l] *= 1.0 - 2.0 * (double)(int)((signs >> l) & 1u);
    }
    sums[0] = ledger_tree(lanes->plain);
    sums[1] = ledger_tree(lanes->hashed);
}

#endif
