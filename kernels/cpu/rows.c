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
    return rows_limit(length, k) + CHUNK + CHUNK_SLACK;
}

/* The margin at first, and within which bounds it adapts. */
static const float margin_first = 0.01f;
static const float margin_least = 0.002f;
static const float margin_most = 0.5f;

struct rows rows_begin(struct fused *pass, unsigned range)
{
    return (struct rows){.pass = pass,
        .margin = margin_first,
        .candidate = &pass->candidate[range],
        .histogram = pass->histogram + (size_t)range * SELECT_BINS};
}

/* Zeros are never candidates. Without a guess everything else is. */
static uint32_t rows_key(float guess)
{
    const uint32_t key = select_key(guess);
    return guess > 0 && key > 0 ? key : 1;
}

static float rows_expected(const struct rows *rows, uint64_t row)
{
    const float *hints = rows->pass->hints;
    return hints != NULL && hints[row] > 0 ? hints[row] : rows->last;
}

/* Keeps the list short enough for the next piece. */
static void rows_prune(struct rows *rows)
{
    const struct fused *pass = rows->pass;
    if (rows->candidate->count > rows_limit(pass->view.length, pass->k)) {
        rows->least = chunk_prune(pass->ops, rows->candidate, pass->k, rows->histogram);
    }
}

unsigned rows_open(struct rows *rows, uint64_t element, unsigned most)
{
    const uint64_t length = rows->pass->view.length;
    const uint64_t offset = element % length;
    const unsigned piece = length - offset < most ? (unsigned)(length - offset) : most;
    if (offset == 0) {
        rows->expected = rows_expected(rows, element / length);
        rows->least = rows_key(rows->expected * (1.0f - rows->margin));
        rows->list = rows->candidate;
        rows->list->count = 0;
    }
    rows_prune(rows);
    rows->end = element + piece;
    rows->position = (uint32_t)element;
    return piece;
}

/* Collects a row that is complete. */
static void rows_collect(struct rows *rows, uint64_t row, uint32_t least)
{
    const uint64_t length = rows->pass->view.length;
    const uint64_t end = (row + 1) * length;
    rows->candidate->count = 0;
    rows->least = least;
    for (uint64_t at = row * length; at < end; at += CHUNK) {
        rows_prune(rows);
        chunk_collect(rows->pass->ops, rows->pass->residual + at,
            end - at < CHUNK ? end - at : CHUNK, rows->least, (uint32_t)at, rows->candidate);
    }
}

/* The smallest magnitude of the entries. */
static float rows_threshold(const struct sparse *list)
{
    int32_t least = INT32_MAX;
    for (size_t i = 0; i < list->count; i++) {
        const int32_t key = (int32_t)select_key(list->value[i]);
        least = key < least ? key : least;
    }
    return convert_float((uint32_t)least);
}

/* After a guess with too few candidates: a lower one, then all that is not zero. */
static void rows_retry(struct rows *rows, uint64_t row)
{
    if (rows->least > 1) {
        rows_collect(rows, row, rows_key(rows->expected * (1.0f - 4.0f * rows->margin)));
        if (rows->candidate->count >= rows->pass->k) {
            rows->margin = rows->margin < margin_most / 2 ? rows->margin * 2 : margin_most;
            return;
        }
    }
    if (rows->least > 1) {
        rows_collect(rows, row, 1);
    }
}

/* Selects a row; rows->candidate holds what reaches the guess. */
static void rows_select(struct rows *rows, uint64_t row)
{
    struct fused *pass = rows->pass;
    const struct sparse *list = rows->candidate;
    const uint64_t first = row * pass->view.length;
    struct sparse out = {.position = pass->out->position + row * pass->k,
        .value = pass->out->value + row * pass->k,
        .capacity = pass->k};
    if (list->count < pass->k) {
        rows_retry(rows, row);
    } else if (list->count > pass->k + pass->k / 2 && rows->margin > margin_least) {
        rows->margin *= 0.97f; /* a miss costs a second look, every candidate a little */
    }
    if (list->count >= pass->k) {
        struct select_cut cut = chunk_cut(pass->ops, list, pass->k, rows->histogram);
        chunk_select(pass->ops, list, &cut, &out, pass->k);
    } else {
        const uint64_t zeros = pass->k - list->count;
        select_rest(list, select_prefix(pass->residual + first, zeros, first, &out), &out);
    }
    rows->last = rows_threshold(&out);
    if (pass->hints != NULL) {
        pass->hints[row] = rows->last;
    }
}

void rows_close(struct rows *rows)
{
    const uint64_t length = rows->pass->view.length;
    if (rows->list != NULL && rows->end % length == 0) {
        rows_select(rows, rows->end / length - 1);
    }
}

void rows_finish(struct fused *pass)
{
    const uint64_t length = pass->view.length;
    struct rows rows = rows_begin(pass, 0);
    uint64_t next = 0; /* no row before this one is left */
    for (unsigned r = 1; r < pass->ranges; r++) {
        const uint64_t border = fused_first_chunk(pass, r) * CHUNK;
        const uint64_t row = border / length;
        if (border % length != 0 && row >= next) {
            rows.expected = rows_expected(&rows, row);
            rows_collect(&rows, row, rows_key(rows.expected * (1.0f - rows.margin)));
            rows_select(&rows, row);
            next = row + 1;
        }
    }
    pass->out->count = pass->view.fibres * pass->k;
}
