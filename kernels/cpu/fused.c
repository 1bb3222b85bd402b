#include "kernels/cpu/fused.h"

#include <assert.h>
#include <string.h>

#include "kernels/cpu/bracket.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/gradient.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/rule.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/slabs.h"

/* Up to this size the tensor stays in the cache, and is selected from as one row. */
enum { SMALL_TENSOR = 1 << 16 };
/* A selection denser than one in this many has no small set of candidates. */
enum { DENSE_SELECTION = 8 };

enum { ALIGNMENT = 64 };

/* Elements that are added, then surveyed, at a time. */
enum { RULE_PIECE = 512 };

/* The pass fetches the records of so many chunks ahead. */
enum { AHEAD = 4 };

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
    if (k > span / DENSE_SELECTION) {
        return FUSED_AFTER;
    }
    if (view->stride != 1) {
        const bool fits = view->stride <= SLABS_WIDEST && view->length >= SLABS_SHORTEST;
        return per_fibre && fits ? FUSED_SLABS : FUSED_AFTER;
    }
    if (per_fibre || span <= SMALL_TENSOR) {
        return span >= ROWS_SHORTEST ? FUSED_ROWS : FUSED_AFTER;
    }
    return FUSED_BRACKET;
}

/* Entries of one range's list of candidates. */
static size_t fused_capacity(const struct view *view, uint64_t k, bool per_fibre, unsigned ranges)
{
    switch (fused_mode(view, k, per_fibre)) {
    case FUSED_BRACKET: return bracket_capacity(view_size(view), k, ranges);
    case FUSED_ROWS: return rows_capacity(per_fibre ? view->length : view_size(view), k);
    case FUSED_SLABS: return slabs_capacity(view, k);
    default: return 0;
    }
}

/* The plain selection's part of the scratch. */
static size_t fused_plain(const struct view *view, uint64_t k)
{
    return k > 0 ? fused_align(select_scratch(view_size(view))) : 0;
}

static size_t fused_list(size_t capacity)
{
    return fused_align(capacity * (sizeof(uint32_t) + sizeof(float)));
}

/* Scratch: the plain selection's, then a list a range, then a histogram a range, then (rule) the
 * chunks' statistics. */
size_t fused_scratch(const struct view *view, uint64_t k, bool per_fibre, unsigned ranges)
{
    const size_t list = fused_list(fused_capacity(view, k, per_fibre, ranges));
    return fused_plain(view, k) + ranges * (list + SELECT_BINS * sizeof(uint32_t));
}

size_t fused_rule_scratch(uint64_t n, uint64_t k, unsigned ranges)
{
    const size_t list = fused_list(rule_capacity(n, k, ranges));
    return fused_align(select_scratch(n)) + ranges * (list + SELECT_BINS * sizeof(uint32_t)) +
           chunk_count(n) * sizeof(struct stats);
}

static void fused_place(struct fused *pass)
{
    const bool rule = pass->mode == FUSED_RULE;
    const size_t capacity =
        rule ? rule_capacity(view_size(&pass->view), pass->k, pass->ranges)
             : fused_capacity(&pass->view, pass->k, pass->per_fibre, pass->ranges);
    char *place = (char *)pass->scratch + fused_plain(&pass->view, rule ? 1 : pass->k);
    for (unsigned r = 0; r < pass->ranges; r++) {
        pass->of_list[r] = (struct fused_list){.overflow = false};
        pass->candidate[r] = (struct sparse){.position = (uint32_t *)(void *)place,
            .value = (float *)(void *)place + capacity,
            .capacity = capacity};
        place += fused_list(capacity);
    }
    pass->histogram = (uint32_t *)(void *)place;
    pass->statistics = (struct stats *)(void *)(pass->histogram + pass->ranges * SELECT_BINS);
}

void fused_start(struct fused *pass, const double sums[2])
{
    assert(pass->stamp != 0 && pass->ranges > 0 && pass->ranges <= FUSED_MAX_RANGES);
    assert(pass->k == 0 || view_size(&pass->view) <= VIEW_MAX_ELEMENTS);
    assert(!fused_is_rounded(pass) ||
           (!pass->rule && pass->take == FUSED_TAKE_NOTHING && pass->momentum == NULL));
    assert(!fused_is_rounded(pass) || pass->per_fibre || pass->view.stride == 1);
    pass->ops = pass->ops != NULL ? pass->ops : chunk_best();
    pass->mode = pass->rule ? FUSED_RULE : fused_mode(&pass->view, pass->k, pass->per_fibre);
    if (!pass->per_fibre && pass->view.stride == 1) {
        pass->view = (struct view){.fibres = 1, .length = view_size(&pass->view), .stride = 1};
    }
    pass->least = 0;
    fused_place(pass);
    assert(!(pass->decay.share > 0) || (!fused_is_rounded(pass) && pass->momentum == NULL));
    progress_start(pass->progress, pass->stamp, sums, pass->decay.lost);
    if (pass->mode == FUSED_BRACKET && !bracket_guess(pass)) {
        pass->mode = FUSED_AFTER;
    } else if (pass->mode == FUSED_RULE) {
        rule_start(pass);
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

static unsigned fused_length(const struct fused *pass, uint64_t chunk)
{
    const uint64_t rest = view_size(&pass->view) - chunk * CHUNK;
    return rest < CHUNK ? (unsigned)rest : CHUNK;
}

/* A chunk whose elements the pass adds, or only reads because an earlier run added them. */
struct fused_stream {
    struct fused *pass;
    struct chunk chunk;
    bool added;    /* already, by an earlier attempt */
    bool look;     /* the elements are complete */
    unsigned skip; /* the next elements that are, from an attempt that was stopped in the chunk */
    struct ahead_range ahead; /* whether memory is fetched ahead of its use */
    struct chunk_bound bound; /* of candidates of a global selection in this range */
    struct rounding rounding; /* of a residual in bf16 */
    float *buffer;            /* CHUNK elements, for gradients that have to be summed */
    float *expanded;          /* as many elements of a bf16 residual that the pass only reads */
};

/* The chunk's elements are complete from here on. */
static void fused_look_at(struct fused_stream *stream, unsigned length)
{
    const struct fused *pass = stream->pass;
    const uint64_t first = stream->chunk.number * CHUNK;
    stream->look = true;
    if (fused_is_rounded(pass)) {
        rounded_read(&pass->rounded, first, length, stream->expanded);
        stream->chunk.acc = stream->expanded;
    } else {
        stream->chunk.acc = pass->residual + first;
    }
}

static void fused_open(struct fused_stream *stream, uint64_t number, struct journal *journal)
{
    struct fused *pass = stream->pass;
    stream->added = fused_is_added(pass, number);
    __builtin_prefetch(&pass->progress->chunk[number + AHEAD], 1);
    stream->look = false;
    stream->skip = 0;
    stream->chunk = (struct chunk){.number = number};
    if (stream->added) {
        fused_look_at(stream, fused_length(pass, number));
        return;
    }
    if (journal != NULL) {
        journal_open(journal, pass->id, pass->stamp, number);
    }
    if (fused_is_rounded(pass)) {
        rounded_begin(
            &stream->rounding, rounded_best(), &pass->rounded, number, pass->stamp, journal);
        stream->chunk.rounding = &stream->rounding;
    } else {
        stream->chunk.acc = pass->residual + number * CHUNK;
        stream->chunk.journal = journal;
        stream->skip = journal_resumed(&pass->progress->chunk[number], pass->stamp);
    }
    gradient_sum(pass, &stream->chunk, fused_length(pass, number), ahead_next(&stream->ahead),
        stream->buffer);
}

static void fused_close(struct fused_stream *stream, struct journal *journal)
{
    const struct fused *pass = stream->pass;
    const uint64_t number = stream->chunk.number;
    struct chunk_record *record = &pass->progress->chunk[number];
    if (stream->added) {
        return;
    }
    stream->pass->ops->sums(&stream->chunk, record->sums);
    for (unsigned k = 0; k < 2; k++) {
        record->lost[k] = stream->chunk.lost[k];
        record->sums[k] += stream->chunk.lost[k];
    }
    record->nonfinite = stream->chunk.nonfinite;
    if (fused_is_rounded(pass)) {
        rounded_end(&stream->rounding);
    }
    if (pass->take != FUSED_TAKE_NOTHING && record->nonfinite > 0) {
        gradient_take_rest(pass, number, fused_length(pass, number), stream->buffer, record);
    }
    journal_close(journal, record, pass->stamp);
}

static void fused_look(struct fused_stream *stream, const struct piece *piece, unsigned length)
{
    if (piece->list != NULL) {
        chunk_collect(stream->pass->ops, stream->chunk.acc, length, piece->bound, piece->position,
            piece->list);
    }
}

/* Takes the chunk's next elements; collects candidates if there is a list. */
static void fused_step(struct fused_stream *stream, const struct piece *piece)
{
    struct chunk *chunk = &stream->chunk;
    const unsigned skip = stream->skip < piece->length ? stream->skip : piece->length;
    if (stream->look) {
        fused_look(stream, piece, piece->length);
        chunk->acc += piece->length;
        return;
    }
    chunk->bound = piece->bound;
    chunk->phase = piece->bound->phase;
    if (skip > 0) {
        fused_look(stream, piece, skip);
        chunk_skip(stream->pass->ops, chunk, skip);
        stream->skip -= skip;
    }
    chunk->candidate = piece->list;
    chunk->position = piece->position + skip;
    chunk_step(stream->pass->ops, chunk, piece->length - skip);
}

static bool fused_has_room(const struct sparse *list)
{
    return list->capacity - list->count >= CHUNK + CHUNK_SLACK;
}

/* A chunk of a global selection. A list that is full keeps the k best of its range. */
static void fused_chunk_global(struct fused_stream *stream, uint64_t number, unsigned range)
{
    struct fused *pass = stream->pass;
    struct sparse *list = &pass->candidate[range];
    if (!fused_has_room(list) && list->count > pass->k) {
        pass->of_list[range].pruned = true;
        stream->bound.least =
            chunk_prune(pass->ops, list, pass->k, pass->histogram + (size_t)range * SELECT_BINS);
    }
    pass->of_list[range].overflow = pass->of_list[range].overflow || !fused_has_room(list);
    const struct piece piece = {.length = fused_length(pass, number),
        .position = (uint32_t)(number * CHUNK),
        .bound = &stream->bound,
        .list = pass->of_list[range].overflow ? NULL : list};
    fused_step(stream, &piece);
}

/* A chunk of a residual that is surveyed, in pieces: memory fetches the next piece while the survey
 * reads this one. */
static void fused_chunk_rule(struct fused_stream *stream, uint64_t number, unsigned range)
{
    struct fused *pass = stream->pass;
    const unsigned length = fused_length(pass, number);
    struct stats_lanes lanes = stats_lanes_none();
    struct piece piece = {.bound = &stream->bound};
    piece.list = rule_list(pass, range, &stream->bound.least);
    for (unsigned done = 0; done < length; done += piece.length) {
        const float *const x = stream->chunk.acc;
        piece.length = length - done < RULE_PIECE ? length - done : RULE_PIECE;
        piece.position = (uint32_t)(number * CHUNK + done);
        fused_step(stream, &piece);
        rule_look(pass, &lanes, x, piece.length);
    }
    rule_close(pass, number, &lanes);
}

/* A chunk of rows or slabs. The pass selects from each as soon as it is added, so that memory can
 * fetch the next one meanwhile. Rows and slabs that share words wait until the whole chunk is
 * added, and so do slabs in bf16. */
static void fused_chunk_fibres(
    struct fused_stream *stream, uint64_t number, struct rows *rows, struct slabs *slabs)
{
    const struct fused *pass = stream->pass;
    const uint64_t whole = pass->view.length * pass->view.stride;
    const bool shared = whole < view_size(&pass->view) && whole % CHUNK_WORD != 0;
    struct piece piece = {.length = fused_length(pass, number), .bound = &stream->bound};
    if (!stream->look && (shared || (fused_is_rounded(pass) && rows == NULL))) {
        fused_step(stream, &piece);
        fused_look_at(stream, piece.length);
    }
    for (unsigned rest = piece.length; rest > 0; rest -= piece.length) {
        piece = rows != NULL ? rows_open(rows, rest) : slabs_open(slabs, rest);
        fused_step(stream, &piece);
        if (rows != NULL) {
            rows_close(rows, piece.length);
        } else {
            slabs_close(slabs, piece.length);
        }
    }
}

const float *fused_elements(
    const struct fused *pass, uint64_t first, unsigned length, float *buffer)
{
    if (!fused_is_rounded(pass)) {
        return pass->residual + first;
    }
    rounded_read(&pass->rounded, first, length, buffer);
    return buffer;
}

uint64_t fused_first_chunk(const struct fused *pass, unsigned range)
{
    return chunk_count(view_size(&pass->view)) * range / pass->ranges;
}

void fused_range(struct fused *pass, unsigned range, struct journal *journal)
{
    const uint64_t begin = fused_first_chunk(pass, range);
    const uint64_t end = fused_first_chunk(pass, range + 1);
    struct rows rows;
    struct slabs slabs;
    float buffer[CHUNK];
    float expanded[CHUNK];
    struct fused_stream stream = {.pass = pass,
        .ahead = ahead_begin(
            pass->parallel.ahead, fused_is_rounded(pass) ? AHEAD_BF16 : AHEAD_F32, end - begin),
        .bound.least = pass->least,
        .buffer = buffer,
        .expanded = expanded};
    assert(range < pass->ranges);
    if (pass->mode == FUSED_ROWS) {
        rows_begin(&rows, pass, range);
    } else if (pass->mode == FUSED_SLABS) {
        slabs_begin(&slabs, pass, range);
    }
    for (uint64_t c = begin; c < end; c++) {
        fused_open(&stream, c, journal);
        if (pass->mode == FUSED_ROWS || pass->mode == FUSED_SLABS) {
            fused_chunk_fibres(&stream, c, pass->mode == FUSED_ROWS ? &rows : NULL, &slabs);
        } else if (pass->mode == FUSED_BRACKET) {
            fused_chunk_global(&stream, c, range);
        } else if (pass->mode == FUSED_RULE) {
            fused_chunk_rule(&stream, c, range);
        } else {
            const struct piece piece = {.length = fused_length(pass, c), .bound = &stream.bound};
            fused_step(&stream, &piece);
        }
        fused_close(&stream, journal);
    }
    ahead_end(&stream.ahead);
}

/* The selection that needs no guess. */
static void fused_select_plain(struct fused *pass)
{
    if (fused_is_rounded(pass)) {
        pass->out->count = 0;
        rounded_select(
            &pass->rounded, &pass->view, 0, pass->view.fibres, pass->k, pass->out, pass->histogram);
        return;
    }
    (pass->per_fibre ? select_fibres : select_top)(
        pass->residual, &pass->view, pass->k, pass->out, pass->scratch);
}

/* After a wrong guess: guesses again from the finished residual, and collects once more as one
 * range, whose list is always long enough. */
static bool fused_select_again(struct fused *pass)
{
    const unsigned ranges = pass->ranges;
    float *const hints = pass->hints;
    pass->hints = NULL;
    pass->ranges = 1;
    fused_place(pass);
    bool selected = bracket_guess(pass);
    if (selected) {
        fused_range(pass, 0, NULL);
        selected = bracket_select(pass);
    }
    pass->ranges = ranges;
    pass->hints = hints;
    if (hints != NULL) {
        hints[0] = 0; /* the next turn had better not rely on this one */
    }
    return selected;
}

static void fused_select(struct fused *pass)
{
    switch (pass->mode) {
    case FUSED_NOTHING:
    case FUSED_RULE: break;
    case FUSED_BRACKET:
        if (!bracket_select(pass) && !fused_select_again(pass)) {
            fused_select_plain(pass);
        }
        break;
    case FUSED_ROWS: rows_finish(pass); break;
    case FUSED_SLABS: slabs_finish(pass); break;
    case FUSED_AFTER: fused_select_plain(pass); break;
    }
}

/* The records of a group of chunks, added up. */
static struct chunk_record fused_group(const struct progress *progress, uint64_t c, uint64_t end)
{
    struct chunk_record group = {.nonfinite = 0};
    for (; c < end; c++) {
        const struct chunk_record *const chunk = &progress->chunk[c];
        group.sums[0] += chunk->sums[0];
        group.sums[1] += chunk->sums[1];
        group.lost[0] += chunk->lost[0];
        group.lost[1] += chunk->lost[1];
        group.nonfinite += chunk->nonfinite;
    }
    return group;
}

uint64_t fused_finish(struct fused *pass, double sums[2])
{
    const struct progress *progress = pass->progress;
    const uint64_t chunks = chunk_count(view_size(&pass->view));
    double total[2] = {progress->before[0], progress->before[1]};
    double lost[2] = {progress->before_lost[0], progress->before_lost[1]};
    uint64_t nonfinite = 0;
    fused_select(pass);
    for (uint64_t c = 0; c < chunks; c += LEDGER_GROUP) {
        const uint64_t end = chunks - c < LEDGER_GROUP ? chunks : c + LEDGER_GROUP;
        const struct chunk_record group = fused_group(progress, c, end);
        total[0] += group.sums[0];
        total[1] += group.sums[1];
        lost[0] += group.lost[0];
        lost[1] += group.lost[1];
        nonfinite += group.nonfinite;
    }
    memcpy(sums, total, sizeof total);
    if (pass->decay.lost != NULL) {
        memcpy(pass->decay.lost, lost, sizeof lost);
    }
    return nonfinite;
}
