#include "kernels/cpu/merge.h"

#include <assert.h>
#include <string.h>

#include "kernels/cpu/stream.h"

#define WINDOW 8192u                         /* positions */
#define ENTRIES_PER_PART (UINT64_C(1) << 15) /* fewer are not worth a thread's attention */
#define ELEMENTS_PER_ENTRY 16u               /* are written in the time that an entry takes */
#define CROWDED 32u /* with one entry in so many positions most words of a window have some */

/* The position at which a part begins. */
static uint64_t part_begin(const struct merge *merge, unsigned part)
{
    const uint64_t windows = (merge->positions + WINDOW - 1) / WINDOW;
    const uint64_t begin = windows * part / merge->parts * WINDOW;

    return begin < merge->positions ? begin : merge->positions;
}

/* The list of a part ends at out[next]. */
static void end_part(const struct merge *merge, unsigned part, size_t next)
{
    assert(next <= merge->out->capacity && (merge->parts == 1 || next == merge->first[part + 1]));
    if (part + 1 == merge->parts) {
        merge->out->count = next;
    }
}

/* ------------------------------------------------------------------ up to two lists */

/* The entries of a list at positions from `begin` to `end`. */
static struct sparse slice(const struct merge *merge, unsigned l, uint64_t begin, uint64_t end)
{
    const struct sparse none = {0};
    const struct sparse *list = l < merge->lists ? &merge->list[l] : &none;
    const size_t first = sparse_find(list, begin);

    if (list->count == 0) {
        return none;
    }
    return (struct sparse){.position = list->position + first,
        .value = list->value + first,
        .count = sparse_find(list, end) - first};
}

/* A merge of two lists that is under way. */
struct pair {
    struct sparse a, b;
    size_t i, j; /* their next entries */
    uint32_t *position;
    float *value;
    size_t next; /* where the next sum goes */
};

/* Without `next`, which another thread may be counting. */
static struct pair pair_of(const struct merge *merge, unsigned part)
{
    const uint64_t begin = part_begin(merge, part), end = part_begin(merge, part + 1);

    return (struct pair){.a = slice(merge, 0, begin, end),
        .b = slice(merge, 1, begin, end),
        .position = merge->out->position,
        .value = merge->out->value};
}

/* So many steps pass the end of neither list. */
static size_t pair_steps(const struct pair *pair)
{
    const size_t a = pair->a.count - pair->i, b = pair->b.count - pair->j;

    return a < b ? a : b;
}

static size_t pair_least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The value, or +0. It has no branch, while compilers make one of a choice between two floats. */
static float value_if(bool wanted, float value)
{
    uint32_t bits;

    (void)memcpy(&bits, &value, sizeof(bits));
    bits &= 0u - (uint32_t)wanted;
    (void)memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Passes a position of one list or both. Returns whether both have it. */
static inline bool pair_pass(struct pair *pair)
{
    const uint32_t p = pair->a.position[pair->i], q = pair->b.position[pair->j];

    pair->i += p <= q;
    pair->j += q <= p;
    return p == q;
}

/* Writes the sum at that position, too. */
static inline void pair_write(struct pair *pair, float scale)
{
    const uint32_t p = pair->a.position[pair->i], q = pair->b.position[pair->j];
    const float x = value_if(p <= q, pair->a.value[pair->i]);
    const float y = value_if(q <= p, pair->b.value[pair->j]);

    pair->position[pair->next] = p <= q ? p : q;
    pair->value[pair->next++] = (0.0f + x + y) * scale;
    (void)pair_pass(pair);
}

static size_t pair_count(struct pair pair, size_t both)
{
    for (size_t steps; (steps = pair_steps(&pair)) > 0;) {
        for (; steps > 0; steps--) {
            both += pair_pass(&pair);
        }
    }
    return pair.a.count + pair.b.count - both;
}

static size_t pair_finish(struct pair pair, float scale)
{
    for (size_t steps; (steps = pair_steps(&pair)) > 0;) {
        for (; steps > 0; steps--) {
            pair_write(&pair, scale);
        }
    }
    for (; pair.i < pair.a.count; pair.i++, pair.next++) {
        pair.position[pair.next] = pair.a.position[pair.i];
        pair.value[pair.next] = (0.0f + pair.a.value[pair.i]) * scale;
    }
    for (; pair.j < pair.b.count; pair.j++, pair.next++) {
        pair.position[pair.next] = pair.b.position[pair.j];
        pair.value[pair.next] = (0.0f + pair.b.value[pair.j]) * scale;
    }
    return pair.next;
}

/* Each step of a merge waits for the one before it. So two parts are merged side by side. */
static void count_pairs(void *arg, unsigned half, unsigned thread)
{
    struct merge *merge = arg;
    const unsigned part = 2 * half;
    struct pair one = pair_of(merge, part), other = pair_of(merge, part + 1);
    size_t both = 0, other_both = 0;

    (void)thread;
    for (size_t steps; (steps = pair_least(pair_steps(&one), pair_steps(&other))) > 0;) {
        for (; steps > 0; steps--) {
            both += pair_pass(&one);
            other_both += pair_pass(&other);
        }
    }
    merge->first[part + 1] = pair_count(one, both);
    merge->first[part + 2] = pair_count(other, other_both);
}

static void write_pairs(void *arg, unsigned half, unsigned thread)
{
    struct merge *merge = arg;
    const unsigned part = 2 * half;
    struct pair one = pair_of(merge, part), other = pair_of(merge, part + 1);
    const float scale = merge->scale;

    (void)thread;
    one.next = merge->first[part];
    other.next = part + 1 < merge->parts ? merge->first[part + 1] : 0;
    for (size_t steps; (steps = pair_least(pair_steps(&one), pair_steps(&other))) > 0;) {
        for (; steps > 0; steps--) {
            pair_write(&one, scale);
            pair_write(&other, scale);
        }
    }
    end_part(merge, part, pair_finish(one, scale));
    if (part + 1 < merge->parts) {
        end_part(merge, part + 1, pair_finish(other, scale));
    }
}

/* ------------------------------------------------------------------ windows */

/* What a window keeps beside the sums. */
enum keeps {
    KEEPS_COUNT, /* `fresh`: no list is wanted */
    KEEPS_BITS,  /* `present`: most words have entries */
    KEEPS_WORDS  /* `words`, too, so that sparse windows are quickly read */
};

/* Sums under way. Between windows every sum and every bit is 0. */
struct window {
    float sum[WINDOW];
    uint64_t present[WINDOW / 64];
    uint64_t words[WINDOW / 4096]; /* bit w: present[w] has bits */
    size_t fresh;                  /* entries that came to a sum of 0 */
};

/* Whether the windows keep no `words`: every entry would wait for the last one's. */
static bool is_crowded(const struct merge *merge)
{
    uint64_t entries = 0;

    for (unsigned l = 0; l < merge->lists; l++) {
        entries += merge->list[l].count;
    }
    return entries >= merge->positions / CROWDED;
}

/* Empties as much of a window as a part needs: a small tensor's part has only a few positions. */
static void window_clear(struct window *window, uint64_t positions)
{
    const size_t count = positions < WINDOW ? (size_t)positions : WINDOW;

    (void)memset(window->sum, 0, count * sizeof(*window->sum));
    (void)memset(window->present, 0, (count + 63) / 64 * sizeof(*window->present));
    (void)memset(window->words, 0, sizeof(window->words));
    window->fresh = 0;
}

/* Adds a list's entries to the window that begins at `base`; returns the first one behind it. */
__attribute__((always_inline)) static inline size_t window_add(
    struct window *window, uint64_t base, const struct sparse *list, size_t entry, enum keeps keeps)
{
    const uint32_t *position = list->position;
    const float *value = list->value;

    while (entry < list->count && position[entry] < base + WINDOW) {
        const uint64_t at = position[entry] - base;

        window->fresh += keeps == KEEPS_COUNT && window->sum[at] == 0;
        window->sum[at] += value[entry++];
        if (keeps != KEEPS_COUNT) {
            window->present[at / 64] |= UINT64_C(1) << at % 64;
        }
        if (keeps == KEEPS_WORDS) {
            window->words[at / 4096] |= UINT64_C(1) << at / 64 % 64;
        }
    }
    return entry;
}

/* Sets the bits only; *count grows by those that were not set. */
static size_t window_mark(
    struct window *window, uint64_t base, const struct sparse *list, size_t entry, size_t *count)
{
    size_t fresh = 0;

    while (entry < list->count && list->position[entry] < base + WINDOW) {
        const uint64_t at = list->position[entry++] - base;
        uint64_t *word = &window->present[at / 64];

        fresh += ~*word >> at % 64 & 1;
        *word |= UINT64_C(1) << at % 64;
    }
    *count += fresh;
    return entry;
}

/* Writes the sums of 64 positions to out[next] and on, and empties them. Returns the end. */
static inline size_t word_write(
    struct window *window, unsigned w, uint64_t base, const struct merge *merge, size_t next)
{
    uint32_t *position = merge->out->position;
    float *value = merge->out->value;
    float *sum = window->sum + w * 64;

    for (uint64_t bits = window->present[w]; bits != 0; bits &= bits - 1) {
        const unsigned at = (unsigned)__builtin_ctzll(bits);

        position[next] = (uint32_t)(base + w * 64 + at);
        value[next++] = sum[at] * merge->scale;
        sum[at] = 0;
    }
    window->present[w] = 0;
    return next;
}

/* The positions of the window at `base`. */
static unsigned window_length(const struct merge *merge, uint64_t base)
{
    const uint64_t rest = merge->positions - base;

    return rest < WINDOW ? (unsigned)rest : WINDOW;
}

/* Looks at every word, because most have entries. */
static size_t window_write_all(
    struct window *window, uint64_t base, const struct merge *merge, size_t next)
{
    const unsigned words = (window_length(merge, base) + 63) / 64;

    for (unsigned w = 0; w < words; w++) {
        next = word_write(window, w, base, merge, next);
    }
    return next;
}

static size_t window_write(
    struct window *window, uint64_t base, const struct merge *merge, size_t next)
{
    for (unsigned i = 0; i < WINDOW / 4096; i++) {
        for (uint64_t words = window->words[i]; words != 0; words &= words - 1) {
            const unsigned w = i * 64 + (unsigned)__builtin_ctzll(words);

            next = word_write(window, w, base, merge, next);
        }
        window->words[i] = 0;
    }
    return next;
}

/* Writes the window's part of the dense array; taken: and empties the sums. */
static void window_store(
    struct window *window, uint64_t base, const struct merge *merge, bool taken)
{
    const unsigned count = window_length(merge, base);
    const uint64_t whole = merge->written > merge->positions ? merge->written : merge->positions;

    if (taken) {
        stream_taken(merge->dense + base, window->sum, count, merge->scale, whole);
    } else {
        stream_scaled(merge->dense + base, window->sum, count, merge->scale, whole);
    }
}

/* ------------------------------------------------------------------ parts */

/* The lists' entries at which a part begins. */
static size_t *part_cursors(const struct merge *merge, unsigned part)
{
    size_t *cursor = merge->cursor + (size_t)part * merge->lists;

    for (unsigned l = 0; l < merge->lists; l++) {
        cursor[l] = sparse_find(&merge->list[l], part_begin(merge, part));
    }
    return cursor;
}

static size_t count_windows(const struct merge *merge, unsigned part)
{
    const uint64_t end = part_begin(merge, part + 1);
    size_t *cursor = part_cursors(merge, part);
    struct window window;
    size_t count = 0;

    for (uint64_t base = part_begin(merge, part); base < end; base += WINDOW) {
        (void)memset(window.present, 0, sizeof(window.present));
        for (unsigned l = 0; l < merge->lists; l++) {
            cursor[l] = window_mark(&window, base, &merge->list[l], cursor[l], &count);
        }
    }
    return count;
}

static size_t write_windows(const struct merge *merge, unsigned part, size_t next)
{
    const uint64_t end = part_begin(merge, part + 1);
    const bool crowded = is_crowded(merge);
    size_t *cursor = part_cursors(merge, part);
    struct window window;

    window_clear(&window, end - part_begin(merge, part));
    for (uint64_t base = part_begin(merge, part); base < end; base += WINDOW) {
        for (unsigned l = 0; l < merge->lists; l++) {
            const struct sparse *list = &merge->list[l];

            cursor[l] = crowded ? window_add(&window, base, list, cursor[l], KEEPS_BITS)
                                : window_add(&window, base, list, cursor[l], KEEPS_WORDS);
        }
        if (merge->dense != NULL) {
            window_store(&window, base, merge, false);
        }
        next = crowded ? window_write_all(&window, base, merge, next)
                       : window_write(&window, base, merge, next);
    }
    return next;
}

static void store_part(void *arg, unsigned part, unsigned thread)
{
    struct merge *merge = arg;
    const uint64_t end = part_begin(merge, part + 1);
    size_t *cursor = part_cursors(merge, part);
    struct window window;

    (void)thread;
    window_clear(&window, end - part_begin(merge, part));
    for (uint64_t base = part_begin(merge, part); base < end; base += WINDOW) {
        for (unsigned l = 0; l < merge->lists; l++) {
            cursor[l] = window_add(&window, base, &merge->list[l], cursor[l], KEEPS_COUNT);
        }
        window_store(&window, base, merge, true);
    }
    merge->first[part + 1] = window.fresh;
}

static void count_part(void *arg, unsigned part, unsigned thread)
{
    struct merge *merge = arg;

    (void)thread;
    merge->first[part + 1] = count_windows(merge, part);
}

static void write_part(void *arg, unsigned part, unsigned thread)
{
    struct merge *merge = arg;
    const size_t next = write_windows(merge, part, merge->first[part]);

    (void)thread;
    end_part(merge, part, next);
}

unsigned merge_parts(
    uint64_t positions, uint64_t entries, bool dense, const struct parallel *parallel)
{
    const uint64_t windows = (positions + WINDOW - 1) / WINDOW;
    const uint64_t written = dense ? positions / ELEMENTS_PER_ENTRY : 0;

    return parallel_parts(parallel, entries + written, ENTRIES_PER_PART,
        windows < MERGE_PARTS ? (unsigned)windows : MERGE_PARTS);
}

/* Two lists with few entries are merged as they are. */
static bool without_windows(const struct merge *merge)
{
    return merge->lists <= 2 && merge->dense == NULL && !is_crowded(merge);
}

/* To write a list, parts must know where they begin. A single one does. */
static void merge_list(struct merge *merge, const struct parallel *parallel)
{
    const bool pairs = without_windows(merge);
    const unsigned tasks = pairs ? (merge->parts + 1) / 2 : merge->parts;

    merge->first[0] = 0;
    if (merge->parts > 1) {
        parallel_for(parallel, pairs ? count_pairs : count_part, merge, tasks);
        for (unsigned p = 0; p < merge->parts; p++) {
            merge->first[p + 1] += merge->first[p];
        }
    }
    parallel_for(parallel, pairs ? write_pairs : write_part, merge, tasks);
}

void merge_run(struct merge *merge, const struct parallel *parallel)
{
    if (merge->out != NULL) {
        merge_list(merge, parallel);
        return;
    }
    parallel_for(parallel, store_part, merge, merge->parts);
    merge->count = 0;
    for (unsigned p = 0; p < merge->parts; p++) {
        merge->count += merge->first[p + 1];
    }
}
