#include "kernels/cpu/chunk.h"

#include <math.h>
#include <string.h>

unsigned chunk_filter(float filtered[CHUNK_WORD], const float *sum)
{
    unsigned left_out = 0;
    for (unsigned i = 0; i < CHUNK_WORD; i++) {
        const bool finite = fabsf(sum[i]) < KERNEL_FINITE_LIMIT; /* false for NaN */
        left_out += !finite;
        filtered[i] = finite ? sum[i] : -0.0f;
    }
    return left_out;
}

/* The last elements of a chunk, fewer than a word, by way of copies padded with
 * zeros, which add nothing and are no candidates. */
static void chunk_tail(const struct chunk_ops *ops, struct chunk *chunk, unsigned rest)
{
    float acc[CHUNK_WORD] = {0};
    float sum[CHUNK_WORD] = {0};
    float *const home = chunk->acc;
    memcpy(acc, chunk->acc, rest * sizeof *acc);
    if (chunk->sum != NULL) {
        memcpy(sum, chunk->sum, rest * sizeof *sum);
    } else {
        ops->gather(&chunk->gradients, chunk_next(chunk), rest, sum);
    }
    if (chunk->journal != NULL) {
        const unsigned first = chunk->word * CHUNK_WORD;
        memcpy(journal_word(chunk->journal, chunk->word), acc, rest * sizeof *acc);
        journal_save(chunk->journal, first + rest);
    }
    chunk->journal = NULL;
    chunk->acc = acc;
    chunk->sum = sum;
    ops->add(chunk, 1);
    memcpy(home, acc, rest * sizeof *acc);
}

void chunk_step(const struct chunk_ops *ops, struct chunk *chunk, unsigned length)
{
    ops->add(chunk, length / CHUNK_WORD);
    if (length % CHUNK_WORD != 0) {
        chunk_tail(ops, chunk, length % CHUNK_WORD);
    }
}

void chunk_skip(const struct chunk_ops *ops, struct chunk *chunk, unsigned length)
{
    const uint64_t signs = ledger_word_signs(chunk->number);
    for (unsigned i = 0; i < length; i += CHUNK_WORD) {
        float gathered[CHUNK_WORD];
        float sum[CHUNK_WORD];
        if (chunk->sum == NULL) {
            ops->gather(&chunk->gradients, chunk_next(chunk), CHUNK_WORD, gathered);
        }
        chunk->nonfinite += chunk_filter(sum, chunk->sum != NULL ? chunk->sum : gathered);
        ledger_add(sum, chunk->word, signs, &chunk->lanes);
        chunk_move(chunk, 1);
        (void)chunk_pattern(chunk->bound, &chunk->phase);
    }
}

void chunk_collect(const struct chunk_ops *ops, const float *x, uint64_t length,
    const struct chunk_bound *bound, uint32_t position, struct sparse *list)
{
    const unsigned rest = length % CHUNK_WORD;
    const uint64_t whole = length - rest;
    ops->collect(x, (unsigned)(whole / CHUNK_WORD), bound, position, list);
    if (rest != 0) {
        float tail[CHUNK_WORD] = {0};
        memcpy(tail, x + whole, rest * sizeof *tail);
        struct chunk_bound last = *bound;
        if (last.pattern != NULL) {
            last.phase = (uint32_t)((last.phase + whole) % last.period);
        }
        ops->collect(tail, 1, &last, position + (uint32_t)whole, list);
    }
}

/* Entries with ties that are selected in one go: all, or none. */
enum { SELECT_BLOCK = 1024 };

void chunk_select(const struct chunk_ops *ops, const struct sparse *list, struct select_cut *cut,
    struct sparse *out, size_t end)
{
    if (cut->ties == SELECT_ALL) {
        ops->filter(list, cut->key, out);
        return;
    }
    for (size_t i = 0; i < list->count; i += SELECT_BLOCK) {
        const size_t rest = list->count - i;
        const struct sparse block = {.position = list->position + i,
            .value = list->value + i,
            .count = rest < SELECT_BLOCK ? rest : SELECT_BLOCK};
        const size_t reached = ops->count(block.value, block.count, cut->key);
        const uint64_t equal = cut->key < INT32_MAX
                                   ? reached - ops->count(block.value, block.count, cut->key + 1)
                                   : reached;
        if (equal <= cut->ties) {
            ops->filter(&block, cut->key, out);
            cut->ties -= equal;
        } else {
            select_filter(&block, cut, out, end);
        }
    }
}

struct select_cut chunk_cut(const struct chunk_ops *ops, const struct sparse *list, size_t k,
    uint32_t histogram[SELECT_BINS])
{
    if (list->count <= CHUNK_CACHED) {
        return ops->cut(list->value, list->count, k);
    }
    const struct select_span span = {.x = list->value, .length = list->count, .stride = 1};
    return select_cut_between(&span, 1, 0, 31, k, histogram);
}

/* Elements of all spans at equal distances; `step` must be large enough for SELECT_SHORT. */
static size_t chunk_pick(
    const struct select_span *spans, unsigned count, uint64_t step, float picked[SELECT_SHORT])
{
    size_t found = 0;
    uint64_t at = step / 2;
    for (unsigned s = 0; s < count; s++) {
        for (; at < spans[s].length; at += step) {
            picked[found++] = spans[s].x[at];
        }
        at -= spans[s].length;
    }
    return found;
}

/* Guesses keys low..high - 1 around the k-th of n elements from a few of them. */
static void chunk_guess(const struct chunk_ops *ops, const struct select_span *spans,
    unsigned count, uint64_t n, uint64_t k, uint32_t *low, uint32_t *high)
{
    float picked[SELECT_SHORT];
    const size_t found = chunk_pick(spans, count, n / SELECT_SHORT + 1, picked);
    const double rank = (double)k * (double)found / (double)n;
    const double margin = 3 * sqrt(rank * (1 - rank / (double)found)) + 2;
    *low = 0;
    *high = INT32_MAX;
    if (rank + margin < (double)found) {
        *low = ops->cut(picked, found, (size_t)(rank + margin)).key;
    }
    if (rank - margin >= 1) {
        const uint32_t last = ops->cut(picked, found, (size_t)(rank - margin)).key;
        *high = last < INT32_MAX ? last + 1 : last;
    }
}

static uint64_t chunk_count_spans(
    const struct chunk_ops *ops, const struct select_span *spans, unsigned count, uint32_t least)
{
    uint64_t reached = 0;
    for (unsigned s = 0; s < count; s++) {
        reached += ops->count(spans[s].x, spans[s].length, least);
    }
    return reached;
}

/* A search for the k-th among `n` elements of the spans. */
struct chunk_search {
    const struct select_span *spans;
    unsigned count;
    uint64_t n;
    uint64_t k;
    float *spare; /* room for what is copied next */
    uint64_t room;
    struct select_span copy;
};

/* Copies what is in low..high - 1; returns the number, or UINT64_MAX where there is no room. In
 * parts, so that there need not be room for all elements. */
static uint64_t chunk_between(const struct chunk_ops *ops, const struct chunk_search *search,
    uint32_t low, uint32_t high, size_t *above)
{
    uint64_t found = 0;
    for (unsigned s = 0; s < search->count; s++) {
        const struct select_span *span = &search->spans[s];
        uint64_t length;
        for (uint64_t i = 0; i < span->length; i += length) {
            const uint64_t rest = span->length - i;
            const uint64_t room = search->room - found;
            length = rest < room ? rest : room;
            if (length < rest && length < CHUNK_WORD) {
                return UINT64_MAX;
            }
            found += ops->between(span->x + i, length, low, high, search->spare + found, above);
        }
    }
    return found;
}

/* Goes on with what lies around the k-th element; false where that does not help. */
static bool chunk_narrow(
    const struct chunk_ops *ops, struct chunk_search *search, uint32_t low, uint32_t high)
{
    size_t above = 0;
    const uint64_t between = chunk_between(ops, search, low, high, &above);
    if (between > search->n / 2 || above >= search->k || search->k > above + between) {
        return false;
    }
    search->copy = (struct select_span){.x = search->spare, .length = between, .stride = 1};
    search->spans = &search->copy;
    search->count = 1;
    search->n = between;
    search->k -= above;
    search->spare += between;
    search->room -= between;
    return true;
}

/* Whether the k-th has this key: then sets the cut. */
static bool chunk_is_tie(const struct chunk_ops *ops, const struct chunk_search *search,
    uint32_t key, struct select_cut *cut)
{
    const uint64_t above = chunk_count_spans(ops, search->spans, search->count, key + 1);
    const uint64_t equal = chunk_count_spans(ops, search->spans, search->count, key) - above;
    const uint64_t ties = search->k - above;
    *cut = (struct select_cut){.key = key, .ties = ties == equal ? SELECT_ALL : ties};
    return above < search->k && ties <= equal;
}

/* Again and again what lies around the k-th element is copied together; a histogram, where that
 * does not get on. */
struct select_cut chunk_cut_spans(const struct chunk_ops *ops, const struct select_span *spans,
    unsigned count, uint64_t k, float *spare, uint64_t room, uint32_t histogram[SELECT_BINS])
{
    struct chunk_search search = {
        .spans = spans, .count = count, .k = k, .spare = spare, .room = room};
    struct select_cut cut;
    bool helps = true;
    for (unsigned s = 0; s < count; s++) {
        search.n += spans[s].length;
    }
    while (search.n > SELECT_SHORT && helps) {
        uint32_t low;
        uint32_t high;
        chunk_guess(ops, search.spans, search.count, search.n, search.k, &low, &high);
        if (high - low == 1 && chunk_is_tie(ops, &search, low, &cut)) {
            return cut;
        }
        helps = high - low > 1 && chunk_narrow(ops, &search, low, high);
    }
    if (search.count == 1 && search.n <= SELECT_SHORT) {
        return ops->cut(search.spans[0].x, search.n, search.k);
    }
    return select_cut_between(search.spans, search.count, 0, 31, search.k, histogram);
}

/* Lists what reaches the cut, whose key is above 0: of what equals it, once there are k, no more.
 */
static void chunk_list(const struct chunk_ops *ops, const float *x, uint64_t length,
    const struct select_cut *cut, uint64_t k, uint32_t position, struct sparse *list)
{
    const uint64_t part = cut->ties == SELECT_ALL ? length : CHUNK_WORD;
    struct chunk_bound bound = {.least = cut->key};
    uint64_t at = 0;
    for (; at < length && list->count < k; at += part) {
        const uint64_t rest = length - at;
        chunk_collect(
            ops, x + at, rest < part ? rest : part, &bound, position + (uint32_t)at, list);
    }
    if (at < length && cut->key < INT32_MAX) {
        bound.least = cut->key + 1;
        chunk_collect(ops, x + at, length - at, &bound, position + (uint32_t)at, list);
    }
}

uint32_t chunk_top(const struct chunk_ops *ops, const float *x, uint64_t length, uint64_t k,
    uint32_t position, struct sparse *list, struct sparse *out)
{
    struct select_cut cut = ops->cut(x, length, k);
    list->count = 0;
    if (cut.key == 0) {
        const struct chunk_bound all = {.least = 1};
        chunk_collect(ops, x, length, &all, position, list);
        select_rest(list, select_prefix(x, 1, k - list->count, position, out), out);
        return 0;
    }
    chunk_list(ops, x, length, &cut, k, position, list);
    if (list->count == k) {
        memcpy(out->position, list->position, k * sizeof *out->position);
        memcpy(out->value, list->value, k * sizeof *out->value);
        out->count = k;
        return cut.key;
    }
    return ops->best(list, k, cut.key, cut.key < INT32_MAX ? cut.key + 1 : cut.key, out);
}

uint32_t chunk_prune(
    const struct chunk_ops *ops, struct sparse *list, size_t k, uint32_t histogram[SELECT_BINS])
{
    struct select_cut cut = chunk_cut(ops, list, k, histogram);
    struct sparse kept = {
        .position = list->position, .value = list->value, .capacity = list->count};
    chunk_select(ops, list, &cut, &kept, k);
    list->count = kept.count;
    /* Elements that equal the last one come later than it: they lose the tie. */
    return cut.key < INT32_MAX ? cut.key + 1 : INT32_MAX;
}

extern const struct chunk_ops chunk_plain;
#ifdef __x86_64__
extern const struct chunk_ops chunk_avx2;
extern const struct chunk_ops chunk_avx512;
#endif

const struct chunk_ops *const chunk_table[] = {
    &chunk_plain,
#ifdef __x86_64__
    &chunk_avx2,
    &chunk_avx512,
#endif
    NULL,
};

const struct chunk_ops *chunk_best(void)
{
    const struct chunk_ops *best = &chunk_plain;
    for (size_t i = 0; chunk_table[i] != NULL; i++) {
        best = chunk_table[i]->supported() ? chunk_table[i] : best;
    }
    return best;
}
