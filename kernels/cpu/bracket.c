#include "kernels/cpu/bracket.h"

#include <math.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/gradient.h"
#include "kernels/cpu/select.h"

/* The sample consists of whole cache lines at equal distances. */
enum { LINE = 16, SAMPLE_LINES = 4096, SAMPLE_SHARE = 32, SAMPLE_AHEAD = 16 };

/* The bracket reaches this many standard deviations of the sample's count to both sides. */
#define BRACKET_WIDTH 4.0

static uint64_t bracket_lines(uint64_t n)
{
    const uint64_t lines = n / LINE / SAMPLE_SHARE;
    return lines < SAMPLE_LINES ? lines : SAMPLE_LINES;
}

/* How far beside the expected rank in a sample the wanted one may lie. */
static double bracket_margin(double rank)
{
    return BRACKET_WIDTH * (sqrt(rank) + 1.0);
}

size_t bracket_capacity(uint64_t n, uint64_t k, unsigned ranges)
{
    const uint64_t sample = bracket_lines(n) * LINE;
    const double rank = (double)k * (double)sample / (double)n;
    const double expected = (rank + bracket_margin(rank)) * (double)n / (double)sample;
    /* A quarter for what the guess is off; a chunk must fit behind the last entry. */
    const uint64_t each = (uint64_t)(expected * 1.25) / ranges + CHUNK + CHUNK_SLACK;
    /* The first list takes the sample too. */
    return (each > sample ? each : sample) + LINE;
}

static void bracket_prefetch(const struct fused *pass, uint64_t element)
{
    __builtin_prefetch(pass->residual + element);
    for (unsigned r = 0; r < pass->count; r++) {
        if (pass->gradients[r] != NULL) {
            __builtin_prefetch(
                (const char *)pass->gradients[r] + element * dtype_size(pass->dtype));
        }
    }
}

/* One line of what the residual is going to be. Only a guess comes of it, so it need not filter. */
static void bracket_line(const struct fused *pass, uint64_t first, float line[LINE])
{
    const float *acc = pass->residual + first;
    if (fused_is_added(pass, first / CHUNK)) {
        for (unsigned i = 0; i < LINE; i++) {
            line[i] = acc[i];
        }
        return;
    }
    gradient_peek(pass, first, LINE, line);
    for (unsigned i = 0; i < LINE; i++) {
        line[i] += acc[i];
    }
}

/* The distance between lines is a fraction, so that both ends of the tensor are in. */
static uint64_t bracket_element(uint64_t n, uint64_t lines, uint64_t i)
{
    return (2 * i + 1) * (n / LINE) / (2 * lines) * LINE;
}

static uint64_t bracket_sample(const struct fused *pass, float *sample)
{
    const uint64_t n = view_size(&pass->view);
    const uint64_t lines = bracket_lines(n);
    for (uint64_t i = 0; i < lines; i++) {
        if (i + SAMPLE_AHEAD < lines) {
            bracket_prefetch(pass, bracket_element(n, lines, i + SAMPLE_AHEAD));
        }
        bracket_line(pass, bracket_element(n, lines, i), sample + i * LINE);
    }
    return lines * LINE;
}

/* Sampled elements that would be candidates. */
static uint64_t bracket_reached(const struct select_span *sample, uint32_t least)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < sample->length; i++) {
        count += select_key(sample->x[i]) >= least;
    }
    return count;
}

bool bracket_guess(struct fused *pass)
{
    struct select_span sample = {.x = pass->candidate[0].value, .stride = 1};
    sample.length = bracket_sample(pass, pass->candidate[0].value);
    const double rank = (double)pass->k * (double)sample.length / (double)view_size(&pass->view);
    const double most = ceil(rank + bracket_margin(rank));
    const double fewest = floor(rank - bracket_margin(rank));
    if (most >= (double)sample.length) {
        return false;
    }
    pass->least = select_cut_between(&sample, 1, 0, 31, (uint64_t)most, pass->histogram).key;
    pass->least = pass->least > 0 ? pass->least : 1; /* zeros are no candidates */
    pass->bits = 31;
    if (fewest >= 1 && bracket_reached(&sample, pass->least) >= (uint64_t)fewest) {
        const uint32_t high =
            select_cut_between(&sample, 1, pass->least, 31, (uint64_t)fewest, pass->histogram).key;
        for (pass->bits = 0; (high - pass->least) >> pass->bits != 0;) {
            pass->bits++;
        }
    }
    return true;
}

/* Copies the candidates inside the bracket to `undecided`, of capacity `room`; those above it are
 * selected for sure. Returns their number, or `room` if that is too small. */
static uint64_t bracket_undecided(const struct fused *pass, float *undecided, uint64_t room)
{
    uint64_t count = 0;
    for (unsigned r = 0; r < pass->ranges; r++) {
        const struct sparse *list = &pass->candidate[r];
        for (size_t i = 0; i < list->count && count < room; i++) {
            undecided[count] = list->value[i];
            count += (select_key(list->value[i]) - pass->least) >> pass->bits == 0;
        }
    }
    return count;
}

/* The cut among so many candidates, at least pass->k; pass->out->value serves as scratch. */
static struct select_cut bracket_cut(const struct fused *pass, uint64_t candidates)
{
    struct select_span spans[FUSED_MAX_RANGES];
    const uint64_t room = pass->k;
    const uint64_t undecided = bracket_undecided(pass, pass->out->value, room);
    const uint64_t sure = candidates - undecided;
    if (undecided < room && sure < pass->k) {
        spans[0] = (struct select_span){.x = pass->out->value, .length = undecided, .stride = 1};
        return select_cut_between(
            spans, 1, pass->least, pass->bits, pass->k - sure, pass->histogram);
    }
    /* The bracket is too wide for the scratch, or the k-th lies above it. */
    for (unsigned r = 0; r < pass->ranges; r++) {
        const struct sparse *list = &pass->candidate[r];
        spans[r] = (struct select_span){.x = list->value, .length = list->count, .stride = 1};
    }
    return select_cut_between(spans, pass->ranges, pass->least, 31, pass->k, pass->histogram);
}

/* All that is not zero is among the candidates, and not enough. */
static void bracket_fill(const struct fused *pass, uint64_t candidates)
{
    const uint64_t end = select_prefix(pass->residual, pass->k - candidates, 0, pass->out);
    for (unsigned r = 0; r < pass->ranges; r++) {
        select_rest(&pass->candidate[r], end, pass->out);
    }
}

bool bracket_select(struct fused *pass)
{
    uint64_t candidates = 0;
    for (unsigned r = 0; r < pass->ranges; r++) {
        if (pass->overflow[r]) {
            return false;
        }
        candidates += pass->candidate[r].count;
    }
    if (candidates < pass->k && pass->least == 1) {
        bracket_fill(pass, candidates);
        return true;
    }
    if (candidates < pass->k) {
        return false;
    }
    struct select_cut cut = bracket_cut(pass, candidates);
    for (unsigned r = 0; r < pass->ranges; r++) {
        chunk_select(pass->ops, &pass->candidate[r], &cut, pass->out, pass->k);
    }
    return true;
}
