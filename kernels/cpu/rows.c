#include "kernels/cpu/rows.h"

#include <string.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/select.h"

/* The guess for a row of another range: nothing is a candidate but some NaN, which is dropped. */
enum { ROWS_SKIP = INT32_MAX };

/* Entries in a cache line. */
enum { LINE = 16 };

/* A row's list that is longer is pruned before it grows. */
static uint64_t rows_limit(uint64_t length, uint64_t k)
{
    const uint64_t limit = 4 * k + 256;
    return limit < length ? limit : length;
}

static size_t rows_room(uint64_t length, uint64_t k)
{
    return rows_limit(length, k) + CHUNK + PICK_SLACK;
}

size_t rows_capacity(uint64_t length, uint64_t k)
{
    return 2 * rows_room(length, k);
}

void rows_begin(struct rows *rows, struct fused *pass, unsigned range)
{
    const struct sparse *all = &pass->candidate[range];
    const size_t room = all->capacity / 2;
    rows->pass = pass;
    rows->pick = pass->ops->pick;
    rows->list = (struct sparse){.position = all->position, .value = all->value, .capacity = room};
    rows->again = (struct sparse){
        .position = all->position + room, .value = all->value + room, .capacity = room};
    rows->histogram = pass->histogram + (size_t)range * SELECT_BINS;
    rows->last = 0;
    rows->guess = guess_first();
    rows->first = fused_first_chunk(pass, range) * CHUNK;
    rows->done = rows->first % pass->view.length;
    rows->pieces = 1;
    rows->piece[0] = (struct rows_piece){
        .row = rows->first / pass->view.length, .last = rows->done == 0, .least = ROWS_SKIP};
    rows->piece[0].row -= rows->done == 0; /* before the first piece */
}

/* A row whose first element comes next. */
static void rows_guess(const struct rows *rows, struct rows_piece *piece)
{
    const float *hints = rows->pass->hints;
    const float hint = hints != NULL ? hints[piece->row] : 0;
    piece->least = guess_least(&rows->guess, hint > 0 ? hint : rows->last);
}

/* Keeps the list of one row short enough for its next piece; returns what that has to reach. */
static uint32_t rows_prune(const struct rows *rows, struct sparse *list, uint32_t least)
{
    const struct fused *pass = rows->pass;
    if (list->count <= rows_limit(pass->view.length, pass->k)) {
        return least;
    }
    return chunk_prune(pass->ops, list, pass->k, rows->histogram);
}

static void rows_split(struct rows *rows, unsigned length)
{
    const uint64_t whole = rows->pass->view.length;
    struct rows_piece piece = rows->piece[rows->pieces - 1];
    if (!piece.last && piece.least != ROWS_SKIP) {
        piece.least = rows_prune(rows, &rows->list, piece.least);
    }
    for (rows->pieces = 0; length > 0; rows->pieces++) {
        const uint64_t rest = whole - rows->done;
        if (rows->done == 0) {
            piece.row++;
            rows_guess(rows, &piece);
        }
        piece.last = rest <= length;
        piece.length = piece.last ? (unsigned)rest : length;
        rows->done = piece.last ? 0 : rows->done + piece.length;
        rows->piece[rows->pieces] = piece;
        length -= piece.length;
    }
}

/* Fetches the chunk's part of the list, and the next chunk's hints: a store that waits for memory
 * would hold up all that follow. */
static void rows_prefetch(const struct rows *rows)
{
    const struct fused *pass = rows->pass;
    const uint64_t first = rows->piece[0].row;
    const uint64_t end = rows->piece[rows->pieces - 1].row + 1;
    for (uint64_t i = first * pass->k; i < end * pass->k; i += LINE) {
        __builtin_prefetch(pass->out->position + i, 1);
        __builtin_prefetch(pass->out->value + i, 1);
    }
    for (uint64_t row = end; pass->hints != NULL && row < end + rows->pieces; row += LINE) {
        __builtin_prefetch(pass->hints + row, 1);
    }
}

bool rows_open(struct rows *rows, unsigned length)
{
    rows_split(rows, length);
    rows_prefetch(rows);
    if (rows->pass->view.length % PICK_WORD != 0) {
        return false;
    }
    unsigned word = 0;
    for (unsigned p = 0; p < rows->pieces; p++) {
        for (unsigned i = 0; i < rows->piece[p].length; i += PICK_WORD) {
            rows->floors[word++] = rows->piece[p].least;
        }
    }
    return true;
}

/* Collects elements of one row. */
static void rows_collect(
    const struct rows *rows, uint64_t first, unsigned length, uint32_t least, struct sparse *list)
{
    uint64_t marks[PICK_WORDS];
    const float *x = rows->pass->residual + first;
    rows->pick->mark(x, length, least, marks);
    rows->pick->list(x, (length + PICK_WORD - 1) / PICK_WORD, marks, (uint32_t)first, list);
}

/* Collects a row that is complete, with another guess. */
static void rows_again(struct rows *rows, struct rows_piece *piece, uint32_t least)
{
    const uint64_t length = rows->pass->view.length;
    rows->again.count = 0;
    piece->least = least;
    for (uint64_t at = 0; at < length; at += CHUNK) {
        const unsigned part = length - at < CHUNK ? (unsigned)(length - at) : CHUNK;
        piece->least = rows_prune(rows, &rows->again, piece->least);
        rows_collect(rows, piece->row * length + at, part, piece->least, &rows->again);
    }
}

/* After a guess with too few candidates: a lower one, then all that is not zero. */
static void rows_retry(struct rows *rows, struct rows_piece *piece)
{
    rows_again(rows, piece, guess_lower(&rows->guess, piece->least));
    if (piece->least > 1 && rows->again.count < rows->pass->k) {
        rows_again(rows, piece, 1);
    }
    guess_missed(&rows->guess);
}

/* All that is not zero are candidates, and not enough: the first zeros fill up. */
static void rows_fill(
    const struct rows *rows, uint64_t row, const struct sparse *list, struct sparse *out)
{
    const uint64_t first = row * rows->pass->view.length;
    const uint64_t end =
        select_prefix(rows->pass->residual + first, rows->pass->k - list->count, first, out);
    select_rest(list, end, out);
}

/* Selects the best of a row's candidates; returns the row's threshold. */
static uint32_t rows_best(const struct rows *rows, const struct rows_piece *piece,
    const struct sparse *list, struct sparse *out)
{
    const struct fused *pass = rows->pass;
    if (list->count > SELECT_SHORT) {
        struct select_cut cut = chunk_cut(pass->ops, list, pass->k, rows->histogram);
        chunk_select(pass->ops, list, &cut, out, pass->k);
        return cut.key;
    }
    /* A list that was pruned has entries just below what later ones had to reach. */
    return rows->pick->best(
        list, pass->k, piece->least - 1, guess_likely(&rows->guess, piece->least), out);
}

/* Selects a row whose candidates are in the list. */
static void rows_select(struct rows *rows, struct rows_piece *piece, const struct sparse *list)
{
    const struct fused *pass = rows->pass;
    struct sparse out = {.position = pass->out->position + piece->row * pass->k,
        .value = pass->out->value + piece->row * pass->k,
        .capacity = pass->k};
    if (list->count < pass->k && piece->least > 1) {
        rows_retry(rows, piece);
        list = &rows->again;
    }
    if (list->count >= pass->k) {
        rows->last = convert_float(rows_best(rows, piece, list, &out));
        guess_met(&rows->guess, piece->least, rows->last);
    } else {
        rows_fill(rows, piece->row, list, &out);
        rows->last = 0;
    }
    if (pass->hints != NULL) {
        pass->hints[piece->row] = rows->last;
    }
}

static void rows_keep(struct sparse *list, size_t from)
{
    list->count -= from;
    memmove(list->position, list->position + from, list->count * sizeof *list->position);
    memmove(list->value, list->value + from, list->count * sizeof *list->value);
}

void rows_close(struct rows *rows, bool listed)
{
    const struct sparse *all = &rows->list;
    const uint64_t start = rows->first;
    size_t from = 0; /* the candidates of the piece at hand */
    for (unsigned p = 0; p < rows->pieces; p++) {
        struct rows_piece *piece = &rows->piece[p];
        if (!listed) {
            rows_collect(rows, rows->first, piece->length, piece->least, &rows->list);
        }
        const uint64_t last = rows->first + piece->length - 1;
        const size_t end = listed ? rows->ends[(last - start) / PICK_WORD] : all->count;
        rows->first += piece->length;
        if (piece->last && piece->least != ROWS_SKIP) {
            const struct sparse list = {
                .position = all->position + from, .value = all->value + from, .count = end - from};
            rows_select(rows, piece, &list);
        }
        from = piece->last ? end : from;
    }
    rows_keep(&rows->list, from);
}

void rows_finish(struct fused *pass)
{
    const uint64_t length = pass->view.length;
    uint64_t next = 0; /* no row before this one is left */
    struct rows rows;
    rows_begin(&rows, pass, 0);
    for (unsigned r = 1; r < pass->ranges; r++) {
        const uint64_t border = fused_first_chunk(pass, r) * CHUNK;
        struct rows_piece piece = {.row = border / length};
        if (border % length != 0 && piece.row >= next) {
            rows_guess(&rows, &piece);
            rows_again(&rows, &piece, piece.least);
            rows_select(&rows, &piece, &rows.again);
            next = piece.row + 1;
        }
    }
    pass->out->count = pass->view.fibres * pass->k;
}
