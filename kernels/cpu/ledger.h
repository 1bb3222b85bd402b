/*
 * The inside of the ledger's sums (kernels.h documents them).
 *
 * Signs. An element is number l of a vector of 8, which is number j of a word of 64, which is
 * number w of a chunk. Its sign is a product: a hash bit of the chunk's word w, one of the chunk's
 * lane l, and the parity of j's bits. So one addition an element serves both sums: a word's vectors
 * of even and of odd parity are summed apart, their sum is the plain one, their difference the
 * signed one.
 *
 * Order of summation, part of the definition, so that the doubles depend neither on the compiler,
 * the vector width nor the number of workers. Lane by lane, of the word's vectors x0..x7:
 * even = ((x0 + x3) + x5) + x6 and odd = ((x1 + x2) + x4) + x7; the chunk's plain lane grows by
 * even + odd, its signed lane by +-(even - odd); at the chunk's end its 8 lanes, signed, are added
 * as a tree, and the chunks one after the other.
 */
#ifndef ADTOPK_KERNELS_LEDGER_H
#define ADTOPK_KERNELS_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

enum { LEDGER_LANES = 8, LEDGER_VECTORS = 8, LEDGER_WORD = 64, LEDGER_WORDS = 64 };

/* Running sums of one chunk. */
struct ledger_lanes {
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

/* Bit l < 8: the lanes of a chunk that are negative. */
static inline uint64_t ledger_lane_signs(uint64_t chunk)
{
    return ledger_hash(2 * chunk + 1);
}

/* Adds 64 elements to the lanes. */
static inline void ledger_add(const float *x, bool negative, struct ledger_lanes *lanes)
{
    for (unsigned l = 0; l < LEDGER_LANES; l++) {
        const float *v = x + l;
        const double even = (((double)v[0] + (double)v[24]) + (double)v[40]) + (double)v[48];
        const double odd = (((double)v[8] + (double)v[16]) + (double)v[32]) + (double)v[56];
        const double difference = even - odd;
        lanes->plain[l] += even + odd;
        lanes->hashed[l] += negative ? -difference : difference;
    }
}

static inline double ledger_tree(const double lane[LEDGER_LANES])
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* The two sums of a chunk whose elements are all in the lanes. */
static inline void ledger_total(struct ledger_lanes *lanes, uint64_t chunk, double sums[2])
{
    const uint64_t signs = ledger_lane_signs(chunk);
    for (unsigned l = 0; l < LEDGER_LANES; l++) {
        lanes->hashed[l] = (signs >> l) & 1u ? -lanes->hashed[l] : lanes->hashed[l];
    }
    sums[0] = ledger_tree(lanes->plain);
    sums[1] = ledger_tree(lanes->hashed);
}

#endif
