#include "kernels/cpu/fused.h"

#include <assert.h>

#include "kernels/cpu/bracket.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/select.h"

/* Up to this size the tensor is still in the cache when the plain selection reads it. */
enum { SMALL_TENSOR = 16384 };
/* A selection denser than one in this many has no small set of candidates. */
enum { DENSE_SELECTION = 8 };

enum { ALIGNMENT = 64 };

static size_t fused_align(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static enum fused_mode fused_mode(const struct view *view, uint64_t k, bool per_fibre)
{
    const uint64_t n = view_size(view);
    const uint64_t span = per_fibre ? view->length : n;
    if (n == 0 || k == 0) {
        return FUSED_NOTHING;
    }
    if (view->stride != 1 || k > span / DENSE_SELECTION) {
        return FUSED_AFTER;
    }
    if (per_fibre) {
        return span >= ROWS_SHORTEST ? FUSED_ROWS : FUSED_AFTER;
    }
    return span > SMALL_TENSOR ? FUSED_BRACKET : FUSED_AFTER;
}

/* Entries of one range's list of candidates. */
static size_t fused_capacity(const struct view *view, uint64_t k, bool per_fibre, unsigned ranges)
{
    switch (fused_mode(view, k, per_fibre)) {
    case FUSED_BRACKET: return bracket_capacity(view_size(view), k, ranges);
    case FUSED_ROWS: return rows_capacity(view->length, k);
    default: return 0;
    }
}

/* Scratch: the selections' own, then a list a range, then (rows) a histogram a range. */
size_t fused_scratch(const struct view *view, uint64_t k, bool per_fibre, unsigned ranges)
{
    const size_t capacity = fused_capacity(view, k, per_fibre, ranges);
    const size_t list = fused_align(capacity * (sizeof(uint32_t) + sizeof(float)));
    const size_t plain = fused_align(select_scratch(view_size(view)));
    return plain + ranges * (list + SELECT_BINS * sizeof(uint32_t));
}

static void fused_place(struct fused *pass)
{
    const size_t capacity = fused_capacity(&pass->view, pass->k, pass->per_fibre, pass->ranges);
    const size_t list = fused_align(capacity * (sizeof(uint32_t) + sizeof(float)));
    char *place = (char *)pass->scratch + fused_align(select_scratch(view_size(&pass->view)));
    for (unsigned r = 0; r < pass->ranges; r++) {
        pass->overflow[r] = false;
        pass->candidate[r] = (struct sparse){.position = (uint32_t *)(void *)place,
            .value = (float *)(void *)place + capacity,
            .capacity = capacity};
        place += list;
    }
    pass->histogram = (uint32_t *)(void *)place;
}

void fused_start(struct fused *pass, const double sums[2])
{
    assert(pass->stamp != 0 && pass->ranges > 0 && pass->ranges <= FUSED_MAX_RANGES);
    assert(view_size(&pass->view) <= VIEW_MAX_ELEMENTS);
    pass->ops = pass->ops != NULL ? pass->ops : chunk_best();
    pass->mode = fused_mode(&pass->view, pass->k, pass->per_fibre);
    pass->least = 0;
    fused_place(pass);
    progress_start(pass->progress, pass->stamp, sums);
    if (pass->mode == FUSED_BRACKET && !bracket_guess(pass)) {
        pass->mode = FUSED_AFTER;
    }
    if (pass->out != NULL) {
        pass->out->count = 0;
    }
}

bool fused_is_added(const struct fused *pass, uint64_t chunk)
{
    const struct chunk_record *record = &pass->progress->chunk[chunk];
    return atomic_load_explicit(&record->stamp, memory_order_acquire) == pass->stamp;
}

/* What is to be added to a chunk: the gradient itself if it is the only one, else in `buffer`. */
static const float *fused_sum(
    const struct fused *pass, uint64_t first, unsigned length, float buffer[CHUNK])
{
    if (pass->count == 1 && pass->gradients[0] != NULL && pass->dtype == DTYPE_F32 &&
        !pass->withdraw) {
        return (const float *)pass->gradients[0] + first;
    }
    pass->ops->gather(buffer, pass->gradients, pass->count, pass->dtype, first, length);
    for (unsigned i = 0; pass->withdraw && i < length; i++) {
        buffer[i] = -buffer[i];
    }
    return buffer;
}

/* Adds the gradients to a chunk; with a mask, marks what reaches pass->least. */
static void fused_add(
    struct fused *pass, uint64_t number, unsigned length, struct journal *journal, uint64_t *mask)
{
    const uint64_t first = number * CHUNK;
    struct chunk_record *record = &pass->progress->chunk[number];
    float buffer[CHUNK];
    struct chunk chunk = {
        .acc = pass->residual + first,
        .sum = fused_sum(pass, first, length, buffer),
        .number = number,
        .journal = journal,
        .mask = mask,
        .least = pass->least,
    };
    if (journal != NULL) {
        journal_open(journal, pass->id, pass->stamp, number);
    }
    chunk_add(pass->ops, &chunk, length, record->sums);
    record->nonfinite = chunk.nonfinite;
    journal_close(journal, record, pass->stamp);
}

static unsigned fused_length(const struct fused *pass, uint64_t chunk)
{
    const uint64_t rest = view_size(&pass->view) - chunk * CHUNK;
    return rest < CHUNK ? (unsigned)rest : CHUNK;
}

/* A chunk of a global selection: its candidates go to the range's list. */
static void fused_collect(
    struct fused *pass, uint64_t number, unsigned range, struct journal *journal)
{
    struct sparse *list = &pass->candidate[range];
    const unsigned length = fused_length(pass, number);
    const uint32_t first = (uint32_t)(number * CHUNK);
    uint32_t *const position = list->position + list->count;
    float *const value = list->value + list->count;
    float *const acc = pass->residual + first;
    uint64_t mask[CHUNK_WORDS];

    if (list->capacity - list->count < CHUNK + CHUNK_PACK_SLACK) {
        pass->overflow[range] = true;
    }
    if (!fused_is_added(pass, number)) {
        fused_add(pass, number, length, journal, mask);
        if (!pass->overflow[range]) {
            list->count += chunk_pack(pass->ops, acc, mask, length, first, position, value);
        }
    } else if (!pass->overflow[range]) {
        list->count += chunk_collect(pass->ops, acc, length, pass->least, first, position, value);
    }
}

uint64_t fused_first_chunk(const struct fused *pass, unsigned range)
{
    return chunk_count(view_size(&pass->view)) * range / pass->ranges;
}

void fused_range(struct fused *pass, unsigned range, struct journal *journal)
{
    const uint64_t end = fused_first_chunk(pass, range + 1);
    struct rows rows = rows_begin(pass, range);
    assert(range < pass->ranges);
    for (uint64_t c = fused_first_chunk(pass, range); c < end; c++) {
        if (pass->mode == FUSED_BRACKET) {
            fused_collect(pass, c, range, journal);
            continue;
        }
        if (!fused_is_added(pass, c)) {
            fused_add(pass, c, fused_length(pass, c), journal, NULL);
        }
        if (pass->mode == FUSED_ROWS) {
            rows_select_until(&rows, c * CHUNK + fused_length(pass, c));
        }
    }
}

/* The selection that needs no guess. */
static void fused_select_plain(struct fused *pass)
{
    (pass->per_fibre ? select_fibres : select_top)(
        pass->residual, &pass->view, pass->k, pass->out, pass->scratch);
}

static void fused_select(struct fused *pass)
{
    switch (pass->mode) {
    case FUSED_NOTHING: break;
    case FUSED_BRACKET:
        if (!bracket_select(pass)) {
            fused_select_plain(pass);
        }
        break;
    case FUSED_ROWS: rows_finish(pass); break;
    case FUSED_AFTER: fused_select_plain(pass); break;
    }
}

uint64_t fused_finish(struct fused *pass, double sums[2])
{
    const struct progress *progress = pass->progress;
    const uint64_t chunks = chunk_count(view_size(&pass->view));
    double total[2] = {progress->before[0], progress->before[1]};
    uint64_t nonfinite = 0;
    fused_select(pass);
    for (uint64_t c = 0; c < chunks; c++) {
        total[0] += progress->chunk[c].sums[0];
        total[1] += progress->chunk[c].sums[1];
        nonfinite += progress->chunk[c].nonfinite;
    }
    sums[0] = total[0];
    sums[1] = total[1];
    return nonfinite;
}
