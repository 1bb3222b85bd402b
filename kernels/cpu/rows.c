#include "kernels/cpu/rows.h"

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/select.h"

/* With more candidates than this the guess is worth nothing. */
static uint64_t rows_limit(uint64_t length, uint64_t k)
{
    const uint64_t limit = 8 * k + 256;
    return limit < length ? limit : length;
}

size_t rows_capacity(uint64_t length, uint64_t k)
{
    return rows_limit(length, k) + CHUNK + CHUNK_PACK_SLACK;
}

struct rows rows_begin(struct fused *pass, unsigned range)
{
    struct rows rows = {.pass = pass, .range = range};
    if (pass->mode == FUSED_ROWS) {
        const uint64_t first = fused_first_chunk(pass, range) * CHUNK;
        rows.next = first / pass->view.length + (first % pass->view.length != 0);
    }
    return rows;
}

/* A little below what the threshold was: the mass of a residual sits just under it. */
static float rows_guess(const struct rows *rows, uint64_t row)
{
    const float *hints = rows->pass->hints;
    return hints != NULL && hints[row] > 0 ? hints[row] * 0.97f : rows->last * 0.9f;
}

/* Collects what reaches the guess; false unless that is at least k and not too much. */
static bool rows_collect(const struct fused *pass, const float *x, float guess, struct sparse *list)
{
    const uint64_t length = pass->view.length;
    const uint64_t limit = rows_limit(length, pass->k);
    const uint32_t least = select_key(guess);
    list->count = 0;
    for (uint64_t first = 0; first < length && list->count <= limit; first += CHUNK) {
        const uint64_t rest = length - first;
        list->count += chunk_collect(pass->ops, x + first, rest < CHUNK ? (unsigned)rest : CHUNK,
            least, (uint32_t)first, list->position + list->count, list->value + list->count);
    }
    return list->count >= pass->k && list->count <= limit;
}

/* The smallest magnitude of the k entries. */
static float rows_least(const float *value, uint64_t k)
{
    uint32_t least = select_key(value[0]);
    for (uint64_t i = 1; i < k; i++) {
        const uint32_t key = select_key(value[i]);
        least = key < least ? key : least;
    }
    return convert_float(least);
}

static struct select_cut rows_cut(
    const struct fused *pass, const struct sparse *list, uint32_t histogram[SELECT_BINS])
{
    if (list->count <= SELECT_SHORT) {
        return select_cut_bisect(list->value, list->count, pass->k, pass->ops->count);
    }
    const struct select_span span = {.x = list->value, .length = list->count, .stride = 1};
    return select_cut_between(&span, 1, 0, 31, pass->k, histogram);
}

static void rows_select(struct rows *rows, uint64_t row)
{
    struct fused *pass = rows->pass;
    struct sparse *list = &pass->candidate[rows->range];
    const uint64_t length = pass->view.length;
    const float *x = pass->residual + row * length;
    const float guess = rows_guess(rows, row);
    uint32_t *const histogram = pass->histogram + rows->range * SELECT_BINS;
    struct sparse out = {.position = pass->out->position + row * pass->k,
        .value = pass->out->value + row * pass->k,
        .capacity = pass->k};
    if (guess > 0 && (rows_collect(pass, x, guess, list) ||
                         (list->count < pass->k && rows_collect(pass, x, guess * 0.5f, list)))) {
        struct select_cut cut = rows_cut(pass, list, histogram);
        select_filter(list, &cut, &out, pass->k);
    } else {
        const struct view whole = {.fibres = 1, .length = length, .stride = 1};
        select_top(x, &whole, pass->k, &out, histogram);
    }
    rows->last = rows_least(out.value, pass->k);
    if (pass->hints != NULL) {
        pass->hints[row] = rows->last;
    }
    for (uint64_t i = 0; i < pass->k; i++) {
        out.position[i] += (uint32_t)(row * length);
    }
}

void rows_select_until(struct rows *rows, uint64_t end)
{
    for (; (rows->next + 1) * rows->pass->view.length <= end; rows->next++) {
        rows_select(rows, rows->next);
    }
}

void rows_finish(struct fused *pass)
{
    struct rows rows = {.pass = pass};
    for (unsigned r = 1; r < pass->ranges; r++) {
        const uint64_t border = fused_first_chunk(pass, r) * CHUNK;
        const uint64_t row = border / pass->view.length;
        if (border % pass->view.length != 0 && row >= rows.next) {
            rows_select(&rows, row);
            rows.next = row + 1;
        }
    }
    pass->out->count = pass->view.fibres * pass->k;
}
