#include "kernels/cpu/bracket.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/gradient.h"
#include "kernels/cpu/select.h"

/* The sample consists of blocks at equal distances. They are longer than a cache line, because
 * finding their pages takes most of the time. With a hint an eighth of the blocks is enough. */
enum { BLOCK = 64, SAMPLE_BLOCKS = 1024, SAMPLE_SHARE = 32, SAMPLE_AHEAD = 8, HINTED_SHARE = 8 };
enum { LINE = 16 };

/* The bracket reaches this many standard deviations of the sample's count to both sides. */
#define BRACKET_WIDTH 4.0

/* A hint is the bound that so many candidates would have reached last turn, as a multiple of k. The
 * slack covers the change of one turn and the random variation of the number of values above a
 * bound. The hint counts candidates instead of scaling the threshold: the smaller the selected
 * share, the more of the residual lies just below the threshold. */
#define HINT_SLACK 0.25
#define HINT_NOISE 3.0
/* A bound is not extrapolated further than that from the one that was used. */
#define HINT_FARTHEST 4.0
/* How far below the threshold it is where not all candidates were counted, relative. */
#define HINT_DRIFT 0.03

static uint64_t bracket_blocks(uint64_t n)
{
    const uint64_t blocks = n / BLOCK / SAMPLE_SHARE;
    return blocks < SAMPLE_BLOCKS ? blocks : SAMPLE_BLOCKS;
}

/* How far beside the expected rank in a sample the wanted one may lie. */
static double bracket_margin(double rank)
{
    return BRACKET_WIDTH * (sqrt(rank) + 1.0);
}

size_t bracket_capacity(uint64_t n, uint64_t k, unsigned ranges)
{
    const uint64_t sample = bracket_blocks(n) * BLOCK;
    const double rank = (double)k * (double)sample / (double)n;
    const double expected = (rank + bracket_margin(rank)) * (double)n / (double)sample;
    /* A quarter covers the error of the guess. A chunk must fit behind the last entry. */
    const uint64_t each = (uint64_t)(expected * 1.25) / ranges + CHUNK + CHUNK_SLACK;
    /* The first list takes the sample too. */
    return (each > sample ? each : sample) + CHUNK_SLACK;
}

static void bracket_prefetch(const struct fused *pass, uint64_t first)
{
    for (uint64_t i = first; i < first + BLOCK; i += LINE) {
        __builtin_prefetch(fused_is_rounded(pass) ? (const void *)(pass->rounded.element + i)
                                                  : pass->residual + i);
        for (unsigned r = 0; r < pass->count; r++) {
            if (pass->gradients[r] != NULL) {
                __builtin_prefetch((const char *)pass->gradients[r] + i * dtype_size(pass->dtype));
            }
        }
    }
}

/* A block of the residual as it will be after the pass. It only serves a guess, so it need not
 * filter. */
static void bracket_block(const struct fused *pass, uint64_t first, float block[BLOCK])
{
    float expanded[BLOCK];
    const float *acc = fused_elements(pass, first, BLOCK, expanded);
    if (fused_is_added(pass, first / CHUNK)) {
        memcpy(block, acc, BLOCK * sizeof *block);
        return;
    }
    gradient_peek(pass, first, BLOCK, block);
    for (unsigned i = 0; i < BLOCK; i++) {
        block[i] += acc[i];
    }
}

/* The distance between blocks is a fraction, so that both ends of the tensor are in. */
static uint64_t bracket_element(uint64_t n, uint64_t blocks, uint64_t i)
{
    return (2 * i + 1) * (n / BLOCK) / (2 * blocks) * BLOCK;
}

static void bracket_sample(const struct fused *pass, uint64_t blocks, float *sample)
{
    const uint64_t n = view_size(&pass->view);
    for (uint64_t i = 0; i < blocks; i++) {
        if (i + SAMPLE_AHEAD < blocks) {
            bracket_prefetch(pass, bracket_element(n, blocks, i + SAMPLE_AHEAD));
        }
        bracket_block(pass, bracket_element(n, blocks, i), sample + i * BLOCK);
    }
}

static uint32_t bracket_least(uint32_t key)
{
    return key > 0 ? key : 1; /* zeros are no candidates */
}

/* Candidates that a hint aims at, for each entry that is selected. */
static double bracket_aim(const struct fused *pass)
{
    return 1 + HINT_SLACK + HINT_NOISE / sqrt((double)pass->k);
}

/* The next turn's hint: candidates get more the lower they begin, by a power that two points show,
 * their bound and the cut. */
static float bracket_hint(const struct fused *pass, uint64_t candidates, uint32_t cut)
{
    const double least = (double)convert_float(pass->least);
    /* A cut without ties is any key that separates. */
    const double threshold = fmax((double)convert_float(cut), least);
    const double ratio = (double)candidates / (double)pass->k;
    const double aim = log(bracket_aim(pass));
    const double power = log(ratio) * HINT_FARTHEST > aim ? aim / log(ratio) : HINT_FARTHEST;
    for (unsigned r = 0; r < pass->ranges; r++) {
        if (pass->of_list[r].pruned) {
            return (float)(threshold * (1 - HINT_DRIFT));
        }
    }
    return (float)(threshold * pow(least / threshold, power));
}

/* Whether the hint serves: then it sets pass->least. A small sample must not say that it is far
 * off. */
static bool bracket_hinted(struct fused *pass)
{
    const uint64_t blocks = bracket_blocks(view_size(&pass->view)) / HINTED_SHARE;
    const float hint = pass->hints != NULL ? pass->hints[0] : 0;
    float *const sample = pass->candidate[0].value;
    if (blocks == 0 || !(hint > 0 && hint < KERNEL_FINITE_LIMIT)) {
        return false;
    }
    pass->least = select_key(hint);
    bracket_sample(pass, blocks, sample);
    const double found = (double)pass->ops->count(sample, blocks * BLOCK, pass->least);
    const double rank = (double)pass->k * (double)(blocks * BLOCK) / (double)view_size(&pass->view);
    const double expected = rank * bracket_aim(pass);
    return fabs(found - expected) <= bracket_margin(expected);
}

bool bracket_guess(struct fused *pass)
{
    const uint64_t n = view_size(&pass->view);
    const uint64_t blocks = bracket_blocks(n);
    float *const sample = pass->candidate[0].value;
    const struct select_span span = {.x = sample, .length = blocks * BLOCK, .stride = 1};
    float *const spare = (float *)(void *)pass->candidate[0].position; /* not in use yet */
    const double rank = (double)pass->k * (double)span.length / (double)n;
    const double most = ceil(rank + bracket_margin(rank));
    if (most >= (double)span.length) {
        return false;
    }
    if (!bracket_hinted(pass)) {
        bracket_sample(pass, blocks, sample);
        pass->least = bracket_least(chunk_cut_spans(pass->ops, &span, 1, (uint64_t)most, spare,
            span.length, pass->histogram, &pass->parallel)
                                        .key);
    }
    return true;
}

_Static_assert((int)FUSED_MAX_RANGES <= (int)CHUNK_SPANS, "every range has a list");

/* The cut among all candidates, at least pass->k; pass->out->value serves as scratch. */
static struct select_cut bracket_cut(const struct fused *pass)
{
    struct select_span spans[FUSED_MAX_RANGES];
    for (unsigned r = 0; r < pass->ranges; r++) {
        const struct sparse *list = &pass->candidate[r];
        spans[r] = (struct select_span){.x = list->value, .length = list->count, .stride = 1};
    }
    return chunk_cut_spans(pass->ops, spans, pass->ranges, pass->k, pass->out->value, pass->k,
        pass->histogram, &pass->parallel);
}

/* All that is not zero is among the candidates, and not enough. */
static void bracket_fill(const struct fused *pass, uint64_t candidates)
{
    if (fused_is_rounded(pass)) {
        rounded_select(&pass->rounded, &pass->view, 0, 1, pass->k, pass->out, pass->histogram);
        return;
    }
    const uint64_t end = select_prefix(pass->residual, 1, pass->k - candidates, 0, pass->out);
    for (unsigned r = 0; r < pass->ranges; r++) {
        select_rest(&pass->candidate[r], end, pass->out);
    }
}

bool bracket_select(struct fused *pass)
{
    uint64_t candidates = 0;
    for (unsigned r = 0; r < pass->ranges; r++) {
        if (pass->of_list[r].overflow) {
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
    const struct select_cut cut = bracket_cut(pass);
    if (pass->hints != NULL) {
        pass->hints[0] = bracket_hint(pass, candidates, cut.key);
    }
    chunk_select_lists(
        pass->ops, pass->candidate, pass->ranges, &cut, pass->out, pass->k, &pass->parallel);
    return true;
}
