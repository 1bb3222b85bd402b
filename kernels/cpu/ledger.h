/*
 * The inside of the ledger's sums (kernels.h documents them). The order of summation is part of
 * their definition, so that the doubles depend neither on the compiler, the vector width nor the
 * number of workers: element i goes to lane i % 8 of chunk i / CHUNK, a chunk's lanes are added as
 * a tree, the chunks one after the other.
 */
#ifndef ADTOPK_KERNELS_LEDGER_H
#define ADTOPK_KERNELS_LEDGER_H

#include <stdint.h>

#include "kernels/cpu/convert.h"

/* Sign bits of the elements 64 * index and following: the splitmix64 finaliser (Steele, Lea and
 * Flood 2014), one hash for 64 elements. */
static inline uint64_t ledger_word(uint64_t index)
{
    uint64_t z = (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Adds the 64 elements of word number `word` to the lanes of both sums. */
static inline void ledger_add(
    const float *x, uint64_t word, double plain[restrict 8], double hashed[restrict 8])
{
    const uint64_t bits = ledger_word(word);
    for (unsigned i = 0; i < 64; i += 8) {
        const uint32_t signs = (uint32_t)(bits >> i) & 0xffu;
        for (unsigned j = 0; j < 8; j++) {
            const uint32_t flip = ((signs >> j) & 1u) << 31;
            plain[j] += (double)x[i + j];
            hashed[j] += (double)convert_float(convert_bits(x[i + j]) ^ flip);
        }
    }
}

static inline double ledger_tree(const double lane[8])
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

#endif
