#include "kernels/cpu/chunk.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/rounded.h"

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

/* The chunk's last elements, fewer than a word: journalled, copied to acc, added to there by way of
 * padding with zeros, which add nothing. */
static void chunk_add_rest(
    const struct chunk_ops *ops, struct chunk *chunk, unsigned rest, float acc[CHUNK_WORD])
{
    float sum[CHUNK_WORD] = {0};
    if (chunk->sum != NULL) {
        memcpy(sum, chunk->sum, rest * sizeof *sum);
    } else {
        ops->gather(&chunk->gradients, chunk_next(chunk), rest, sum);
    }
    if (chunk->journal != NULL) {
        memcpy(journal_word(chunk->journal, chunk->word), acc, rest * sizeof *acc);
        journal_save(chunk->journal, chunk->word * CHUNK_WORD + rest);
    }
    chunk->journal = NULL;
    chunk->acc = acc;
    chunk->sum = sum;
    ops->add(chunk, 1);
}

/* Takes them home; zeros behind them are no candidates. */
static void chunk_tail(const struct chunk_ops *ops, struct chunk *chunk, unsigned rest)
{
    float acc[CHUNK_WORD] = {0};
    float *const home = chunk->acc;
    memcpy(acc, home, rest * sizeof *acc);
    chunk_add_rest(ops, chunk, rest, acc);
    memcpy(home, acc, rest * sizeof *acc);
}

/* The same for a residual in bf16: the candidates are chosen among the rounded values. */
static void chunk_round_tail(const struct chunk_ops *ops, struct chunk *chunk, unsigned rest)
{
    float acc[CHUNK_WORD] = {0};
    struct rounding *const rounding = chunk->rounding;
    struct sparse *const list = chunk->candidate;
    const uint32_t position = chunk->position;
    const unsigned first = chunk->word * CHUNK_WORD;
    rounded_save(rounding, first, rest);
    rounding->ops->expand(rounding->element + first, rest, acc);
    chunk->rounding = NULL;
    chunk->candidate = NULL;
    chunk_add_rest(ops, chunk, rest, acc);
    rounded_rest(rounding, acc, first, rest);
    if (list != NULL) {
        chunk_collect(ops, acc, rest, chunk->bound, position, list);
    }
}

/* Words in bf16 that are expanded at a time. */
enum { CHUNK_EXPANDED = 8 };

/* Words in bf16 where add() does not see to it, at most so many. */
static void chunk_round(const struct chunk_ops *ops, struct chunk *chunk, unsigned words)
{
    struct rounding *const rounding = chunk->rounding;
    struct sparse *const list = chunk->candidate;
    const uint32_t position = chunk->position;
    const unsigned first = chunk->word;
    float x[CHUNK_EXPANDED * CHUNK_WORD];
    rounded_save(rounding, first * CHUNK_WORD, words * CHUNK_WORD);
    rounding->ops->expand(rounding->element + first * CHUNK_WORD, words * CHUNK_WORD, x);
    chunk->rounding = NULL;
    chunk->candidate = NULL;
    chunk->acc = x;
    ops->add(chunk, words);
    chunk->rounding = rounding;
    chunk->candidate = list;
    chunk->acc = NULL;
    rounding->ops->round(rounding, x, first, words);
    if (list != NULL) {
        ops->collect(x, words, chunk->bound, position, list);
    }
}

void chunk_step(const struct chunk_ops *ops, struct chunk *chunk, unsigned length)
{
    const unsigned words = length / CHUNK_WORD;
    const unsigned rest = length % CHUNK_WORD;
    if (chunk->rounding == NULL || ops->rounds) {
        ops->add(chunk, words);
    } else {
        for (unsigned w = 0; w < words; w += CHUNK_EXPANDED) {
            chunk_round(ops, chunk, words - w < CHUNK_EXPANDED ? words - w : CHUNK_EXPANDED);
        }
    }
    if (rest != 0) {
        (chunk->rounding != NULL ? chunk_round_tail : chunk_tail)(ops, chunk, rest);
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

/* Fewer candidates are not worth a second thread's attention. */
enum { CHUNK_EACH = 1 << 15 };

static bool chunk_is_long(const struct parallel *parallel, uint64_t n)
{
    return parallel_parts(parallel, n, CHUNK_EACH, 2) > 1;
}

/* The index at which the share of the elements that follow the first `before` of n begins. */
static uint64_t chunk_share(uint64_t room, uint64_t before, uint64_t n)
{
    return n > 0 ? (uint64_t)((double)room * ((double)before / (double)n)) : 0;
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

/* Lists that are selected from side by side: each list has its place in `out`. */
struct chunk_choice {
    const struct chunk_ops *ops;
    const struct sparse *lists;
    uint32_t key;
    struct sparse *out;
    uint64_t taken[CHUNK_SPANS];
    uint64_t ties[CHUNK_SPANS];
    size_t first[CHUNK_SPANS];
};

/* Counts what is above the cut, and what is on it. */
static void chunk_choose(void *arg, unsigned l, unsigned thread)
{
    struct chunk_choice *choice = arg;
    const struct sparse *list = &choice->lists[l];
    const size_t reached = choice->ops->count(list->value, list->count, choice->key);
    (void)thread;
    choice->taken[l] =
        choice->key < INT32_MAX ? choice->ops->count(list->value, list->count, choice->key + 1) : 0;
    choice->ties[l] = reached - choice->taken[l];
}

static void chunk_take(void *arg, unsigned l, unsigned thread)
{
    const struct chunk_choice *choice = arg;
    const size_t first = choice->first[l];
    struct select_cut cut = {.key = choice->key, .ties = choice->ties[l]};
    struct sparse out = {.position = choice->out->position + first,
        .value = choice->out->value + first,
        .capacity = choice->taken[l]};
    (void)thread;
    chunk_select(choice->ops, &choice->lists[l], &cut, &out, out.capacity);
}

void chunk_select_lists(const struct chunk_ops *ops, const struct sparse *lists, unsigned count,
    const struct select_cut *cut, struct sparse *out, size_t end, const struct parallel *parallel)
{
    struct chunk_choice choice = {.ops = ops, .lists = lists, .key = cut->key, .out = out};
    struct select_cut left = *cut;
    assert(count <= CHUNK_SPANS);
    if (count == 1 || !chunk_is_long(parallel, end)) {
        for (unsigned l = 0; l < count; l++) {
            chunk_select(ops, &lists[l], &left, out, end);
        }
        return;
    }
    parallel_for(parallel, chunk_choose, &choice, count);
    for (unsigned l = 0; l < count; l++) {
        const uint64_t ties = choice.ties[l] < left.ties ? choice.ties[l] : left.ties;
        left.ties -= left.ties != SELECT_ALL ? ties : 0;
        choice.first[l] = out->count;
        choice.taken[l] += ties;
        choice.ties[l] = left.ties == SELECT_ALL || ties == choice.ties[l] ? SELECT_ALL : ties;
        out->count += choice.taken[l];
    }
    parallel_for(parallel, chunk_take, &choice, count);
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
    const struct chunk_ops *ops;
    const struct parallel *parallel;
    const struct select_span *spans;
    unsigned count;
    uint64_t n;
    uint64_t k;
    float *spare; /* room for what is copied next */
    uint64_t room;
    struct select_span copy;
};

/* What each span has of keys low..high - 1: copied to its part of the room. */
struct chunk_around {
    const struct chunk_search *search;
    uint32_t low;
    uint32_t high;
    float *to[CHUNK_SPANS];
    uint64_t room[CHUNK_SPANS];
    uint64_t found[CHUNK_SPANS]; /* UINT64_MAX: there is not enough */
    size_t above[CHUNK_SPANS];
};

/* In parts, so that there need not be room for all elements. */
static void chunk_between(void *arg, unsigned s, unsigned thread)
{
    struct chunk_around *around = arg;
    const struct chunk_ops *ops = around->search->ops;
    const struct select_span *span = &around->search->spans[s];
    uint64_t found = 0;
    uint64_t length;
    (void)thread;
    around->above[s] = 0;
    around->found[s] = UINT64_MAX;
    for (uint64_t i = 0; i < span->length; i += length) {
        const uint64_t rest = span->length - i;
        const uint64_t room = around->room[s] - found;
        length = rest < room ? rest : room;
        if (length < rest && length < CHUNK_WORD) {
            return;
        }
        found += ops->between(span->x + i, length, around->low, around->high, around->to[s] + found,
            &around->above[s]);
    }
    around->found[s] = found;
}

/* Shares the room, copies what is between and joins it; returns the number, or UINT64_MAX. */
static uint64_t chunk_gather(struct chunk_around *around, size_t *above)
{
    const struct chunk_search *search = around->search;
    uint64_t before = 0;
    uint64_t found = 0;
    for (unsigned s = 0; s < search->count; s++) {
        const uint64_t first = chunk_share(search->room, before, search->n);
        before += search->spans[s].length;
        around->to[s] = search->spare + first;
        around->room[s] = chunk_share(search->room, before, search->n) - first;
    }
    if (chunk_is_long(search->parallel, search->n)) {
        parallel_for(search->parallel, chunk_between, around, search->count);
    } else {
        parallel_for(&(const struct parallel){0}, chunk_between, around, search->count);
    }
    for (unsigned s = 0; s < search->count; s++) {
        if (around->found[s] == UINT64_MAX) {
            return UINT64_MAX;
        }
        memmove(search->spare + found, around->to[s], around->found[s] * sizeof *search->spare);
        found += around->found[s];
        *above += around->above[s];
    }
    return found;
}

/* Goes on with what lies around the k-th element; false where that does not help. */
static bool chunk_narrow(struct chunk_search *search, uint32_t low, uint32_t high)
{
    struct chunk_around around = {.search = search, .low = low, .high = high};
    size_t above = 0;
    const uint64_t between = chunk_gather(&around, &above);
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

/* Copies the elements around the k-th again and again, each time fewer. Uses a histogram where that
 * makes no progress. */
struct select_cut chunk_cut_spans(const struct chunk_ops *ops, const struct select_span *spans,
    unsigned count, uint64_t k, float *spare, uint64_t room, uint32_t histogram[SELECT_BINS],
    const struct parallel *parallel)
{
    struct chunk_search search = {.ops = ops,
        .parallel = parallel,
        .spans = spans,
        .count = count,
        .k = k,
        .spare = spare,
        .room = room};
    struct select_cut cut;
    bool helps = true;
    assert(count <= CHUNK_SPANS);
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
        helps = high - low > 1 && chunk_narrow(&search, low, high);
    }
    if (search.count == 1 && search.n <= SELECT_SHORT) {
        return ops->cut(search.spans[0].x, search.n, search.k);
    }
    return select_cut_between(search.spans, search.count, 0, 31, search.k, histogram);
}

/* Lists the elements that reach the cut, whose key is above 0. Of the elements that equal the cut
 * it lists no more once there are k. */
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
