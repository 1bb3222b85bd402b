#include "kernels/cpu/rows.h"

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/select.h"

/* A list longer than this is pruned. */
static uint64_t rows_limit(uint64_t length, uint64_t k)
{
    const uint64_t limit = 4 * k + 256;
    return limit < length ? limit : length;
}

size_t rows_capacity(uint64_t length, uint64_t k)
{
    return rows_limit(length, k) + CHUNK + PICK_SLACK;
}

/* The margin at first, within which bounds it adapts, and how: about one row in a hundred is looked
 * at twice. That costs ten times what a third more candidates do. */
static const float margin_first = 0.03f;
static const float margin_least = 0.001f;
static const float margin_most = 0.5f;
static const float margin_hit = 0.997f;
static const float margin_miss = 1.25f;

struct rows rows_begin(struct fused *pass, unsigned range)
{
    const uint64_t length = pass->view.length;
    const uint64_t first = fused_first_chunk(pass, range) * CHUNK;
    return (struct rows){.pass = pass,
        .pick = pass->ops->pick,
        .margin = margin_first,
        .length = length,
        .row = length > 0 ? first / length : 0,
        .done = length > 0 ? first % length : 0,
        .candidate = &pass->candidate[range],
        .histogram = pass->histogram + (size_t)range * SELECT_BINS};
}

/* Zeros are never candidates. Without a guess everything else is. */
static uint32_t rows_key(float guess)
{
    const uint32_t key = select_key(guess);
    return guess > 0 && key > 0 ? key : 1;
}

static void rows_open(struct rows *rows)
{
    const float *hints = rows->pass->hints;
    const float hint = hints != NULL ? hints[rows->row] : 0;
    rows->expected = hint > 0 ? hint : rows->last;
    rows->least = rows_key(rows->expected * (1.0f - rows->margin));
    rows->candidate->count = 0;
}

/* Collects the next elements of the row at hand. */
static void rows_collect(struct rows *rows, const float *x, uint64_t length)
{
    const struct fused *pass = rows->pass;
    struct sparse *list = rows->candidate;
    if (list->count > rows_limit(rows->length, pass->k)) {
        rows->least = chunk_prune(pass->ops, list, pass->k, rows->histogram);
    }
    rows->pick->collect(x, length, rows->least, (uint32_t)(x - pass->residual), list);
}

/* Collects the row at hand, which is complete, with another guess. */
static void rows_again(struct rows *rows, uint32_t least)
{
    const float *x = rows->pass->residual + rows->row * rows->length;
    rows->candidate->count = 0;
    rows->least = least;
    for (uint64_t at = 0; at < rows->length; at += CHUNK) {
        const uint64_t rest = rows->length - at;
        rows_collect(rows, x + at, rest < CHUNK ? rest : CHUNK);
    }
}

/* After a guess with too few candidates: a lower one, then all that is not zero. */
static void rows_retry(struct rows *rows)
{
    if (rows->least > 1) {
        rows_again(rows, rows_key(rows->expected * (1.0f - 4.0f * rows->margin)));
        rows->margin =
            rows->margin * margin_miss < margin_most ? rows->margin * margin_miss : margin_most;
    }
    if (rows->least > 1 && rows->candidate->count < rows->pass->k) {
        rows_again(rows, 1);
    }
}

/* All that is not zero are candidates, and not enough: the first zeros fill up. */
static uint32_t rows_fill(const struct rows *rows, struct sparse *out)
{
    const uint64_t first = rows->row * rows->length;
    const uint64_t zeros = rows->pass->k - rows->candidate->count;
    const uint64_t end = select_prefix(rows->pass->residual + first, zeros, first, out);
    select_rest(rows->candidate, end, out);
    return 0;
}

/* The best of the candidates; returns the row's threshold. */
static uint32_t rows_best(const struct rows *rows, struct sparse *out)
{
    const struct fused *pass = rows->pass;
    const struct sparse *list = rows->candidate;
    if (list->count > SELECT_SHORT) {
        struct select_cut cut = chunk_cut(pass->ops, list, pass->k, rows->histogram);
        chunk_select(pass->ops, list, &cut, out, pass->k);
        return cut.key;
    }
    return rows->pick->best(
        list, pass->k, rows->least, rows_key(rows->expected * (1.0f + rows->margin)), out);
}

/* Selects the row at hand, whose candidates are collected. */
static void rows_select(struct rows *rows)
{
    const struct fused *pass = rows->pass;
    struct sparse out = {.position = pass->out->position + rows->row * pass->k,
        .value = pass->out->value + rows->row * pass->k,
        .capacity = pass->k};
    if (rows->candidate->count < pass->k) {
        rows_retry(rows);
    } else if (rows->margin > margin_least) {
        rows->margin *= margin_hit;
    }
    rows->last = convert_float(
        rows->candidate->count >= pass->k ? rows_best(rows, &out) : rows_fill(rows, &out));
    if (pass->hints != NULL) {
        pass->hints[rows->row] = rows->last;
    }
}

void rows_look(struct rows *rows, const float *x, unsigned length)
{
    while (length > 0) {
        const uint64_t rest = rows->length - rows->done;
        const unsigned piece = rest < length ? (unsigned)rest : length;
        if (rows->done == 0) {
            rows_open(rows);
        }
        if (rows->least > 0) {
            rows_collect(rows, x, piece);
        }
        rows->done += piece;
        x += piece;
        length -= piece;
        if (rows->done == rows->length) {
            if (rows->least > 0) {
                rows_select(rows);
            }
            rows->done = 0;
            rows->row++;
        }
    }
}

void rows_finish(struct fused *pass)
{
    const uint64_t length = pass->view.length;
    struct rows rows = rows_begin(pass, 0);
    uint64_t next = 0; /* no row before this one is left */
    for (unsigned r = 1; r < pass->ranges; r++) {
        const uint64_t border = fused_first_chunk(pass, r) * CHUNK;
        rows.row = border / length;
        if (border % length != 0 && rows.row >= next) {
            rows_open(&rows);
            rows_again(&rows, rows.least);
            rows_select(&rows);
            next = rows.row + 1;
        }
    }
    pass->out->count = pass->view.fibres * pass->k;
}
