#include <assert.h>
#include <string.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/kernels.h"

/*
 * Exact top-k on the integer magnitude key. The bits of a float without the sign order like its
 * magnitude, both zeros have key 0 and NaN ranks above infinity, so every input has one answer.
 *
 * First the *cut* is found, the key of the k-th entry and how many of its equals still belong to
 * the k; then one pass in view order emits the entries. Long spans find the cut by a radix
 * histogram in three levels (11 + 10 + 10 bits), short ones by bisection over the key's bits.
 */

enum { BINS = 2048 };
/* Up to this length bisection beats clearing and scanning a histogram. */
enum { SHORT_SPAN = 1024 };
/* Strided fibres up to this length are copied once instead of being walked four times; 256 KiB
 * stay in the second-level cache, and scratch stays small however long the tensor is. */
enum { GATHER_MAX = 65536 };

struct select_span {
    const float *x;
    uint64_t length;
    uint64_t stride;
};

/* Selected are: every key above `key`, and the first `ties` entries whose key equals it. */
struct select_cut {
    uint32_t key;
    uint64_t ties;
};

static uint32_t select_key(float value)
{
    return convert_bits(value) & 0x7fffffffu;
}

size_t select_scratch(uint64_t n)
{
    const size_t gathered = n < GATHER_MAX ? (size_t)n : GATHER_MAX;
    return BINS * sizeof(uint32_t) + gathered * sizeof(float);
}

/* Counts, among the keys that begin with `prefix`, the values of the `bits` bits above `shift`. */
static void select_count(const struct select_span *span, uint32_t prefix, unsigned shift,
    unsigned bits, uint32_t histogram[BINS])
{
    const uint32_t mask = (1u << bits) - 1;
    memset(histogram, 0, BINS * sizeof *histogram);
    for (uint64_t i = 0; i < span->length; i++) {
        const uint32_t key = select_key(span->x[i * span->stride]);
        if (key >> (shift + bits) == prefix) {
            histogram[(key >> shift) & mask]++;
        }
    }
}

/* The cut for 0 < k < span->length. */
static struct select_cut select_cut_histogram(
    const struct select_span *span, uint64_t k, uint32_t histogram[BINS])
{
    static const unsigned level_bits[] = {11, 10, 10};
    uint32_t prefix = 0;
    uint64_t rank = k; /* of the k-th entry among the keys that begin with prefix */
    unsigned shift = 31;
    for (unsigned level = 0; level < 3; level++) {
        const unsigned bits = level_bits[level];
        shift -= bits;
        select_count(span, prefix, shift, bits, histogram);
        uint32_t bin = (1u << bits) - 1;
        while (rank > histogram[bin]) {
            rank -= histogram[bin];
            bin--;
        }
        prefix = prefix << bits | bin;
        if (histogram[bin] == rank) {
            break; /* the whole bin is selected */
        }
    }
    return (struct select_cut){.key = prefix << shift, .ties = rank};
}

static uint32_t select_count_from(const float *x, uint32_t length, uint32_t least)
{
    /* Signed, as keys fit in 31 bits and SSE2 compares signed integers only. */
    const int32_t bound = (int32_t)least;
    uint32_t count = 0;
    for (uint32_t i = 0; i < length; i++) {
        count += (int32_t)select_key(x[i]) >= bound;
    }
    return count;
}

/* The cut for 0 < k < length <= SHORT_SPAN: the largest key that k entries reach. */
static struct select_cut select_cut_bisect(const float *x, uint32_t length, uint32_t k)
{
    uint32_t key = 0;
    uint32_t above = 0; /* entries known to lie above the cut */
    for (uint32_t bit = 1u << 30; bit != 0; bit >>= 1) {
        const uint32_t count = select_count_from(x, length, key | bit);
        if (count >= k) {
            key |= bit;
            if (count == k) {
                return (struct select_cut){.key = key, .ties = k};
            }
        } else {
            above = count;
        }
    }
    /* `above` counts the keys from key + 1 on: the last refused bound was the least such. */
    return (struct select_cut){.key = key, .ties = k - above};
}

static struct select_cut select_find_cut(
    const struct select_span *span, uint64_t k, uint32_t histogram[BINS])
{
    if (k == span->length) {
        return (struct select_cut){.key = 0, .ties = k};
    }
    if (span->stride == 1 && span->length <= SHORT_SPAN) {
        return select_cut_bisect(span->x, (uint32_t)span->length, (uint32_t)k);
    }
    return select_cut_histogram(span, k, histogram);
}

/* Appends the span's selected entries to out, which never grows beyond `end` entries; `first` is
 * the position of the span's first element. */
static void select_emit(const struct select_span *span, uint64_t first, struct select_cut *cut,
    struct sparse *out, size_t end)
{
    const uint32_t least = cut->key;
    size_t count = out->count;
    for (uint64_t i = 0; i < span->length && count < end; i++) {
        const float value = span->x[i * span->stride];
        const uint32_t key = select_key(value);
        if (key < least) {
            continue;
        }
        if (key == least) {
            if (cut->ties == 0) {
                continue;
            }
            cut->ties--;
        }
        out->position[count] = (uint32_t)(first + i);
        out->value[count] = value;
        count++;
    }
    out->count = count;
}

static struct select_span select_fibre(const float *x, const struct view *view, uint64_t fibre)
{
    return (struct select_span){
        .x = x + view_base(view, fibre), .length = view->length, .stride = view->stride};
}

void select_top(
    const float *x, const struct view *view, uint64_t k, struct sparse *out, void *scratch)
{
    const uint64_t n = view_size(view);
    const uint64_t wanted = k < n ? k : n;
    assert(n <= VIEW_MAX_ELEMENTS && wanted <= out->capacity);
    out->count = 0;
    if (wanted == 0) {
        return;
    }
    /* The cut does not depend on the order, so it is found in memory order. */
    const struct select_span whole = {.x = x, .length = n, .stride = 1};
    struct select_cut cut = select_find_cut(&whole, wanted, scratch);
    if (view->stride == 1) {
        select_emit(&whole, 0, &cut, out, wanted);
        return;
    }
    for (uint64_t f = 0; f < view->fibres && out->count < wanted; f++) {
        const struct select_span fibre = select_fibre(x, view, f);
        select_emit(&fibre, f * view->length, &cut, out, wanted);
    }
}

/* Copies a strided span to where it lies dense. */
static void select_gather(struct select_span *span, float *copy)
{
    for (uint64_t i = 0; i < span->length; i++) {
        copy[i] = span->x[i * span->stride];
    }
    span->x = copy;
    span->stride = 1;
}

void select_fibres(
    const float *x, const struct view *view, uint64_t k, struct sparse *out, void *scratch)
{
    const uint64_t n = view_size(view);
    const uint64_t wanted = k < view->length ? k : view->length;
    assert(n <= VIEW_MAX_ELEMENTS && view->fibres * wanted <= out->capacity);
    out->count = 0;
    if (n == 0 || wanted == 0) {
        return;
    }
    uint32_t *const histogram = scratch;
    float *const copy = (float *)(histogram + BINS);
    for (uint64_t f = 0; f < view->fibres; f++) {
        struct select_span fibre = select_fibre(x, view, f);
        if (fibre.stride != 1 && fibre.length <= GATHER_MAX) {
            select_gather(&fibre, copy);
        }
        struct select_cut cut = select_find_cut(&fibre, wanted, histogram);
        select_emit(&fibre, f * view->length, &cut, out, out->count + wanted);
    }
}
