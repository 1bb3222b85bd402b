#include "kernels/cpu/rows.h"

#include <string.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/select.h"

/* Entries in a cache line. */
enum { LINE = 16 };

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
        .row = first / pass->view.length,
        .done = first % pass->view.length,
        .skip = first % pass->view.length != 0};
}

/* Fetches what the selection of the rows a chunk later writes and reads: a store that waits for
 * memory would hold up all that follow. */
static void rows_prefetch(const struct rows *rows)
{
    const struct fused *pass = rows->pass;
    const uint64_t row = rows->row + CHUNK / pass->view.length + 1;
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

/* Begins a row: what its candidates have to reach. */
static void rows_first(struct rows *rows)
{
    const float *hints = rows->pass->hints;
    const float hint = hints != NULL ? hints[rows->row] : 0;
    rows_prefetch(rows);
    rows->skip = false;
    rows->list.count = 0;
    rows->bound.least = guess_least(&rows->guess, hint > 0 ? hint : rows->last);
}

/* Keeps the list short enough for the row's next elements. */
static void rows_prune(struct rows *rows)
{
    const struct fused *pass = rows->pass;
    if (rows->list.count > rows_limit(pass->view.length, pass->k)) {
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
        .list = rows->skip ? NULL : &rows->list};
}

/* Collects the row once more, complete as it is, with another guess. */
static void rows_again(struct rows *rows, uint32_t least)
{
    const struct fused *pass = rows->pass;
    const uint64_t length = pass->view.length;
    rows->list.count = 0;
    rows->bound.least = least;
    for (uint64_t at = 0; at < length; at += CHUNK) {
        const uint64_t first = rows->row * length + at;
        const unsigned count = length - at < CHUNK ? (unsigned)(length - at) : CHUNK;
        float expanded[CHUNK];
        rows_prune(rows);
        chunk_collect(pass->ops, fused_elements(pass, first, count, expanded), count, &rows->bound,
            (uint32_t)first, &rows->list);
    }
}

/* After a guess with too few candidates: a lower one, then all that is not zero. */
static void rows_retry(struct rows *rows)
{
    rows_again(rows, guess_lower(&rows->guess, rows->bound.least));
    if (rows->bound.least > 1 && rows->list.count < rows->pass->k) {
        rows_again(rows, 1);
    }
    guess_missed(&rows->guess);
}

/* All that is not zero are candidates, and not enough: the first zeros fill up. */
static void rows_fill(const struct rows *rows, struct sparse *out)
{
    const struct sparse *list = &rows->list;
    const struct fused *pass = rows->pass;
    const uint64_t first = rows->row * pass->view.length;
    if (fused_is_rounded(pass)) {
        rounded_select(&pass->rounded, &pass->view, rows->row, 1, pass->k, out, rows->histogram);
        return;
    }
    const uint64_t end = select_prefix(pass->residual + first, pass->k - list->count, first, out);
    select_rest(list, end, out);
}

/* Selects the best of the candidates; returns the row's threshold. */
static uint32_t rows_best(const struct rows *rows, struct sparse *out)
{
    const struct fused *pass = rows->pass;
    const struct sparse *list = &rows->list;
    if (list->count > SELECT_SHORT) {
        struct select_cut cut = chunk_cut(pass->ops, list, pass->k, rows->histogram);
        chunk_select(pass->ops, list, &cut, out, pass->k);
        return cut.key;
    }
    /* A list that was pruned has entries just below what later ones had to reach. */
    return pass->ops->best(
        list, pass->k, rows->bound.least - 1, guess_likely(&rows->guess, rows->bound.least), out);
}

/* Selects from the row, whose candidates are listed. */
static void rows_select(struct rows *rows)
{
    const struct fused *pass = rows->pass;
    struct sparse out = {.position = pass->out->position + rows->row * pass->k,
        .value = pass->out->value + rows->row * pass->k,
        .capacity = pass->k};
    if (rows->list.count < pass->k && rows->bound.least > 1) {
        rows_retry(rows);
    }
    if (rows->list.count >= pass->k) {
        rows->last = convert_float(rows_best(rows, &out));
        guess_met(&rows->guess, rows->bound.least, rows->last);
    } else {
        rows_fill(rows, &out);
        rows->last = 0;
    }
    if (pass->hints != NULL) {
        pass->hints[rows->row] = rows->last;
    }
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
            rows_again(&rows, rows.bound.least);
            rows_select(&rows);
            next = rows.row + 1;
        }
    }
    pass->out->count = pass->view.fibres * pass->k;
}
