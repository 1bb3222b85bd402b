#include "kernels/cpu/rows.h"

#include <string.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/select.h"

/* Entries in a cache line. */
enum { LINE = 16 };

/* The row lists so many elements before it examines the list. They are few, so that ties do not
 * make the list long. */
enum { PART = 256 };

/* Rows that are searched before a guess is tried again. */
enum { CROWD_ROWS = 8 };

/* A row's list that is longer is pruned before it grows. */
static uint64_t rows_limit(uint64_t length, uint64_t k)
{
    const uint64_t limit = 4 * k + 256;
    return limit < length ? limit : length;
}

size_t rows_capacity(uint64_t length, uint64_t k)
{
    return rows_limit(length, k) + CHUNK + CHUNK_SLACK;
}

void rows_begin(struct rows *rows, struct fused *pass, unsigned range)
{
    const uint64_t first = fused_first_chunk(pass, range) * CHUNK;
    *rows = (struct rows){.pass = pass,
        .list = pass->candidate[range],
        .histogram = pass->histogram + (size_t)range * SELECT_BINS,
        .guess = guess_first(pass->k),
        .ahead = CHUNK / pass->view.length + 1,
        .row = first / pass->view.length,
        .done = first % pass->view.length,
        .skip = first % pass->view.length != 0};
}

/* Fetches the memory that the selection of rows one chunk later writes and reads. A store that
 * waits for memory would hold up all stores after it. */
static void rows_prefetch(const struct rows *rows)
{
    const struct fused *pass = rows->pass;
    const uint64_t row = rows->row + rows->ahead;
    if (row >= pass->view.fibres) {
        return;
    }
    for (uint64_t i = row * pass->k; i < (row + 1) * pass->k; i += LINE) {
        __builtin_prefetch(pass->out->position + i, 1);
        __builtin_prefetch(pass->out->value + i, 1);
    }
    if (pass->hints != NULL) {
        __builtin_prefetch(pass->hints + row, 1);
    }
}

/* The elements of the row at hand, which is complete; not where they are in bf16. */
static const float *rows_elements(const struct rows *rows)
{
    return rows->pass->residual + rows->row * rows->pass->view.length;
}

/* Selects from the row at hand in bf16, without a guess; returns its threshold. */
static uint32_t rows_rounded(const struct rows *rows, struct sparse *out)
{
    const struct fused *pass = rows->pass;
    uint32_t least = UINT32_MAX;
    rounded_select(&pass->rounded, &pass->view, rows->row, 1, pass->k, out, rows->histogram);
    for (size_t i = 0; i < out->count; i++) {
        const uint32_t key = select_key(out->value[i]);
        least = key < least ? key : least;
    }
    return least;
}

/* Begins a row: sets the bound that its candidates have to reach. */
static void rows_first(struct rows *rows)
{
    const float *hints = rows->pass->hints;
    const float hint = hints != NULL ? hints[rows->row] : 0;
    rows_prefetch(rows);
    rows->skip = false;
    rows->list.count = 0;
    rows->pruned = 0;
    rows->bound.least = guess_least(&rows->guess, hint > 0 ? hint : rows->last);
    rows->guessed = rows->bound.least;
}

/* Keeps the list short enough for the row's next elements. */
static void rows_prune(struct rows *rows)
{
    const struct fused *pass = rows->pass;
    if (rows->list.count > rows_limit(pass->view.length, pass->k)) {
        rows->pruned += rows->list.count - pass->k;
        rows->bound.least = chunk_prune(pass->ops, &rows->list, pass->k, rows->histogram);
    }
}

struct piece rows_open(struct rows *rows, unsigned length)
{
    const uint64_t whole = rows->pass->view.length;
    const uint64_t rest = whole - rows->done;
    if (rows->done == 0) {
        rows_first(rows);
    } else if (!rows->skip) {
        rows_prune(rows);
    }
    return (struct piece){.length = rest < length ? (unsigned)rest : length,
        .position = (uint32_t)(rows->row * whole + rows->done),
        .bound = &rows->bound,
        .list = rows->skip || rows->crowd > 0 ? NULL : &rows->list};
}

/* Whether the k-th largest may be searched for in the row itself. */
static bool rows_searchable(const struct rows *rows)
{
    return rows->pass->view.length <= CHUNK_CACHED;
}

/* Whether the row has so many candidates that it had better be searched. */
static bool rows_is_crowded(const struct rows *rows)
{
    const uint64_t crowd = rows->pass->view.length / 4 + 2 * rows->pass->k;
    return rows_searchable(rows) && rows->list.count + rows->pruned > crowd;
}

/* Lists the elements of the complete row's next part that reach the bound; returns the part's
 * length. */
static uint64_t rows_collect(struct rows *rows, uint64_t at)
{
    const struct fused *pass = rows->pass;
    const uint64_t rest = pass->view.length - at;
    const uint64_t length = rest < PART ? rest : PART;
    const uint64_t first = rows->row * pass->view.length + at;
    float expanded[PART];
    chunk_collect(pass->ops, fused_elements(pass, first, (unsigned)length, expanded), length,
        &rows->bound, (uint32_t)first, &rows->list);
    return length;
}

/* Collects the row once more, complete as it is, with another guess; false if it is crowded. */
static bool rows_again(struct rows *rows, uint32_t least)
{
    rows->list.count = 0;
    rows->pruned = 0;
    rows->bound.least = least;
    for (uint64_t at = 0; at < rows->pass->view.length;) {
        at += rows_collect(rows, at);
        if (rows_is_crowded(rows)) {
            return false;
        }
        rows_prune(rows);
    }
    return true;
}

/* Whether the candidates suffice, or are all elements that are not zero. It may take a lower guess,
 * or none where the row is too long to be searched. */
static bool rows_listed(struct rows *rows)
{
    const uint64_t k = rows->pass->k;
    if (rows->crowd > 0) {
        return false;
    }
    if (rows->list.count >= k || rows->bound.least == 1) {
        return true;
    }
    guess_missed(&rows->guess);
    if (!rows_again(rows, guess_lower(&rows->guess, rows->bound.least))) {
        return false;
    }
    return rows->list.count >= k || rows->bound.least == 1 ||
           (!rows_searchable(rows) && rows_again(rows, 1));
}

/* Selects the best of the candidates; returns the row's threshold. Where they are too few they are
 * all that is not zero: the first zeros fill up. */
static uint32_t rows_best(const struct rows *rows, struct sparse *out)
{
    const struct fused *pass = rows->pass;
    const struct sparse *list = &rows->list;
    if (list->count < pass->k && fused_is_rounded(pass)) {
        return rows_rounded(rows, out);
    }
    if (list->count < pass->k) {
        const uint64_t first = rows->row * pass->view.length;
        const uint64_t zeros = pass->k - list->count;
        select_rest(list, select_prefix(rows_elements(rows), 1, zeros, first, out), out);
        return 0;
    }
    if (list->count > SELECT_SHORT) {
        struct select_cut cut = chunk_cut(pass->ops, list, pass->k, rows->histogram);
        chunk_select(pass->ops, list, &cut, out, pass->k);
        return cut.key;
    }
    /* A pruned list has entries just below the bound that later ones had to reach. */
    return pass->ops->best(
        list, pass->k, rows->bound.least - 1, guess_likely(&rows->guess, rows->bound.least), out);
}

/* How many of the row's elements reach its guess. */
static uint64_t rows_reached(const struct rows *rows)
{
    const struct fused *pass = rows->pass;
    const uint64_t length = pass->view.length;
    uint64_t count = 0;
    if (!fused_is_rounded(pass)) {
        return pass->ops->count(rows_elements(rows), length, rows->guessed);
    }
    for (uint64_t at = 0; at < length; at += PART) {
        const unsigned part = length - at < PART ? (unsigned)(length - at) : PART;
        float expanded[PART];
        rounded_read(&pass->rounded, rows->row * length + at, part, expanded);
        count += pass->ops->count(expanded, part, rows->guessed);
    }
    return count;
}

/* Whether the row's guess would have been good enough for a list. */
static bool rows_fits(const struct rows *rows, uint32_t key)
{
    /* If too many candidates tend to turn up, fewer than k would mean to search again. */
    return rows->guessed <= key &&
           rows_reached(rows) <= rows->pass->view.length / 8 + rows->pass->k;
}

/* Learns from the row's threshold. Only the last row of a crowd tells whether the next ones are
 * crowded. */
static void rows_learn(struct rows *rows, bool listed, uint32_t key)
{
    rows->last = convert_float(key);
    if (rows->pass->hints != NULL) {
        rows->pass->hints[rows->row] = rows->last;
    }
    if (key == 0) {
        rows->crowd = 0;
    } else if (listed && !rows_is_crowded(rows)) {
        guess_met(&rows->guess, rows->bound.least, rows->last);
    } else {
        if (rows->guessed > 1) {
            guess_far(&rows->guess, &rows->guess, rows->guessed, rows->last);
        }
        rows->crowd = rows->crowd > 1                            ? rows->crowd - 1
                      : rows->crowd == 1 && rows_fits(rows, key) ? 0
                                                                 : CROWD_ROWS;
    }
}

/* Searches the row; returns its threshold. */
static uint32_t rows_search(struct rows *rows, struct sparse *out)
{
    const struct fused *pass = rows->pass;
    const uint64_t length = pass->view.length;
    return fused_is_rounded(pass) ? rows_rounded(rows, out)
                                  : chunk_top(pass->ops, rows_elements(rows), length, pass->k,
                                        (uint32_t)(rows->row * length), &rows->list, out);
}

/* Selects from the row, whose candidates are listed if it is not in a crowd. */
static void rows_select(struct rows *rows)
{
    const struct fused *pass = rows->pass;
    struct sparse out = {.position = pass->out->position + rows->row * pass->k,
        .value = pass->out->value + rows->row * pass->k,
        .capacity = pass->k};
    const bool listed = rows_listed(rows);
    rows_learn(rows, listed, listed ? rows_best(rows, &out) : rows_search(rows, &out));
}

void rows_close(struct rows *rows, unsigned length)
{
    rows->done += length;
    if (rows->done < rows->pass->view.length) {
        return;
    }
    if (!rows->skip) {
        rows_select(rows);
    }
    rows->done = 0;
    rows->row++;
}

void rows_finish(struct fused *pass)
{
    const uint64_t length = pass->view.length;
    uint64_t next = 0; /* no row before this one is left */
    struct rows rows;
    rows_begin(&rows, pass, 0);
    for (unsigned r = 1; r < pass->ranges; r++) {
        const uint64_t border = fused_first_chunk(pass, r) * CHUNK;
        rows.row = border / length;
        if (border % length != 0 && rows.row >= next) {
            rows_first(&rows);
            rows.crowd = rows_again(&rows, rows.bound.least) ? 0 : 1;
            rows_select(&rows);
            next = rows.row + 1;
        }
    }
    pass->out->count = pass->view.fibres * pass->k;
}
