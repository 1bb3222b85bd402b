#include <assert.h>
#include <string.h>

#include "kernels/cpu/bisect.h"
#include "kernels/cpu/select.h"

/*
 * Exact top-k on the integer magnitude key. The bits of a float without the sign order like its
 * magnitude, both zeros have key 0, and NaN ranks above infinity. So every input has exactly one
 * answer.
 *
 * The selection first finds the *cut*: the key of the k-th entry, and how many of its equals still
 * belong to the k. Then one pass in view order emits the entries. Long spans find the cut by a
 * radix histogram in three levels of at most 11 bits, short ones by bisection over the keys.
 */

/* Strided fibres up to this length are copied once instead of being read four times. 256 KiB stay
 * in the second-level cache, and scratch stays small however long the tensor is. */
enum { GATHER_MAX = 65536 };

size_t select_scratch(uint64_t n)
{
    const size_t gathered = n < GATHER_MAX ? (size_t)n : GATHER_MAX;
    return SELECT_BINS * sizeof(uint32_t) + gathered * sizeof(float);
}

/* Counts the keys in base + [0, 2^bits) by the bits of their offset above `shift`. */
static void select_count(const struct select_span *span, uint32_t base, unsigned bits,
    unsigned shift, uint32_t histogram[SELECT_BINS])
{
    for (uint64_t i = 0; i < span->length; i++) {
        const uint32_t offset = select_key(span->x[i * span->stride]) - base;
        if (offset >> bits == 0) {
            histogram[offset >> shift]++;
        }
    }
}

struct select_cut select_cut_between(const struct select_span *spans, unsigned count, uint32_t base,
    unsigned bits, uint64_t rank, uint32_t histogram[SELECT_BINS])
{
    while (bits > 0) {
        const unsigned shift = bits > SELECT_BITS ? bits - SELECT_BITS : 0;
        memset(histogram, 0, SELECT_BINS * sizeof *histogram);
        for (unsigned s = 0; s < count; s++) {
            select_count(&spans[s], base, bits, shift, histogram);
        }
        uint32_t bin = (1u << (bits - shift)) - 1;
        while (rank > histogram[bin]) {
            rank -= histogram[bin];
            bin--;
        }
        base += bin << shift;
        bits = shift;
        if (histogram[bin] == rank) {
            rank = SELECT_ALL; /* the whole bin is selected */
            break;
        }
    }
    return (struct select_cut){.key = base, .ties = rank};
}

struct select_cut select_cut_short(const float *x, size_t n, size_t k)
{
    return select_bisect(x, n, k, select_divide);
}

void select_filter(
    const struct sparse *list, struct select_cut *cut, struct sparse *out, size_t end)
{
    const uint32_t least = cut->key;
    uint64_t ties = cut->ties;
    size_t count = out->count;
    /* Every entry is written and some are counted: a branch would be mispredicted too often. */
    for (size_t i = 0; i < list->count && count < end; i++) {
        const float value = list->value[i];
        const uint32_t key = select_key(value);
        const unsigned tie = (unsigned)(key == least) & (unsigned)(ties > 0);
        out->position[count] = list->position[i];
        out->value[count] = value;
        ties -= tie;
        count += (unsigned)(key > least) | tie;
    }
    out->count = count;
    cut->ties = ties;
}

void select_filter_from(const struct sparse *list, uint32_t least, struct sparse *out)
{
    size_t count = out->count;
    for (size_t i = 0; i < list->count; i++) {
        if (select_key(list->value[i]) >= least) {
            out->position[count] = list->position[i];
            out->value[count] = list->value[i];
            count++;
        }
    }
    out->count = count;
}

uint64_t select_prefix(
    const float *x, uint64_t stride, uint64_t zeros, uint64_t first, struct sparse *out)
{
    uint64_t i = 0;
    size_t count = out->count;
    for (; zeros > 0; i++) {
        out->position[count] = (uint32_t)(first + i);
        out->value[count++] = x[i * stride];
        zeros -= select_key(x[i * stride]) == 0;
    }
    out->count = count;
    return first + i;
}

void select_rest(const struct sparse *list, uint64_t from, struct sparse *out)
{
    for (size_t i = 0; i < list->count; i++) {
        if (list->position[i] >= from) {
            out->position[out->count] = list->position[i];
            out->value[out->count++] = list->value[i];
        }
    }
}

static struct select_cut select_find_cut(
    const struct select_span *span, uint64_t k, uint32_t histogram[SELECT_BINS])
{
    if (k == span->length) {
        return (struct select_cut){.key = 0, .ties = SELECT_ALL};
    }
    if (span->stride == 1 && span->length <= SELECT_SHORT) {
        return select_cut_short(span->x, span->length, k);
    }
    return select_cut_between(span, 1, 0, 31, k, histogram);
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
    float *const copy = (float *)(histogram + SELECT_BINS);
    for (uint64_t f = 0; f < view->fibres; f++) {
        struct select_span fibre = select_fibre(x, view, f);
        if (fibre.stride != 1 && fibre.length <= GATHER_MAX) {
            select_gather(&fibre, copy);
        }
        struct select_cut cut = select_find_cut(&fibre, wanted, histogram);
        select_emit(&fibre, f * view->length, &cut, out, out->count + wanted);
    }
}
