/*
 * What exact selections share: keys, and the cut among them. Internal to kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_SELECT_H
#define ADTOPK_KERNELS_SELECT_H

#include "kernels/base/convert.h"
#include "kernels/cpu/plain.h"

/* Bits of a histogram level and bins of its histogram. */
enum { SELECT_BITS = 11, SELECT_BINS = 1 << SELECT_BITS };

/* Up to this length bisection beats clearing and scanning a histogram. */
enum { SELECT_SHORT = 1024 };

struct select_span {
    const float *x;
    uint64_t length;
    uint64_t stride;
};

/* A cut selects every key above `key`, and the first `ties` entries whose key equals it. SELECT_ALL
 * selects all entries that equal it. */
#define SELECT_ALL UINT64_MAX
struct select_cut {
    uint32_t key;
    uint64_t ties;
};

static inline uint32_t select_key(float value)
{
    return convert_bits(value) & 0x7fffffffu;
}

/** The cut whose lowest selected entry is the rank-th largest, rank > 0, of the spans' keys in base
 * + [0, 2^bits), bits <= 31. There are at least `rank` such keys. The elements may be in any order.
 */
struct select_cut select_cut_between(const struct select_span *spans, unsigned count, uint32_t base,
    unsigned bits, uint64_t rank, uint32_t histogram[SELECT_BINS]);

/** The cut for 0 < k <= n, whose key is the k-th largest; fast where x stays in a cache. */
struct select_cut select_cut_short(const float *x, size_t n, size_t k);

/** For tensors in which fewer than k elements are not zero: the k are those and the first zeros.
 * Appends all elements of x, `stride` apart, up to the zeros-th zero, zeros > 0, which exists; x[0]
 * has position `first`. Returns the position behind the last one. */
uint64_t select_prefix(
    const float *x, uint64_t stride, uint64_t zeros, uint64_t first, struct sparse *out);

/** Appends the entries of a list whose position is at least `from`. */
void select_rest(const struct sparse *list, uint64_t from, struct sparse *out);

/** Appends the list's selected entries to out, up to `end` entries in all; cut->ties shrinks. */
void select_filter(
    const struct sparse *list, struct select_cut *cut, struct sparse *out, size_t end);

/** The same where cut->ties is SELECT_ALL: all entries whose key is at least `least`. */
void select_filter_from(const struct sparse *list, uint32_t least, struct sparse *out);

#endif
