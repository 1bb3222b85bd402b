#include "kernels/cpu/survey.h"

#include <assert.h>
#include <math.h>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/fused.h"
#include "kernels/cpu/stats.h"

/* Elements that are worth another thread's attention. */
enum { PART_ELEMENTS = 1 << 18 };

/* A hint aims at so many candidates, as a multiple of the requested number. The slack covers the
 * change of one turn and the random variation of the number of values above a bound. The search for
 * the hint goes in steps from the last one; where there were too few, not below a share of it. */
#define HINT_SLACK 0.25
#define HINT_NOISE 3.0
#define HINT_STEP 1.01f
#define HINT_LOWEST 0.8
enum { HINT_STEPS = 8 };

/* Floats that fit where one chunk's statistics do. */
enum { ROOM_OF_CHUNK = sizeof(struct stats) / sizeof(float) };

static size_t survey_plain(uint64_t n)
{
    return (select_scratch(n) + 7) / 8 * 8;
}

size_t survey_scratch(uint64_t n)
{
    return survey_plain(n) + chunk_count(n) * sizeof(struct stats);
}

/* ------------------------------------------------------------------ reading */

/* The residual is read in parts, each some chunks. */
struct survey_reading {
    const struct cpu_survey *survey;
    uint32_t least;
    unsigned parts;
    bool squares;                     /* whether sum_squares is one of the sums */
    uint64_t most;                    /* a part that has counted more may stop */
    uint64_t count[FUSED_MAX_RANGES]; /* of each part */
    struct sparse *out;               /* for collecting: sum(count) entries */
};

static struct survey_reading survey_reading(const struct cpu_survey *survey, uint32_t least)
{
    const uint64_t chunks = chunk_count(survey->base.stats.n);
    const unsigned most = chunks < FUSED_MAX_RANGES ? (unsigned)chunks : FUSED_MAX_RANGES;
    return (struct survey_reading){.survey = survey,
        .least = least,
        .parts = parallel_parts(&survey->parallel, survey->base.stats.n, PART_ELEMENTS, most),
        .most = UINT64_MAX};
}

static uint64_t survey_first_chunk(const struct survey_reading *reading, unsigned part)
{
    return chunk_count(reading->survey->base.stats.n) * part / reading->parts;
}

static unsigned survey_length(const struct cpu_survey *survey, uint64_t chunk)
{
    const uint64_t rest = survey->base.stats.n - chunk * CHUNK;
    return rest < CHUNK ? (unsigned)rest : CHUNK;
}

static void survey_stats_part(void *arg, unsigned part, unsigned thread)
{
    const struct survey_reading *reading = arg;
    const struct cpu_survey *survey = reading->survey;
    const uint64_t end = survey_first_chunk(reading, part + 1);
    (void)thread;
    for (uint64_t c = survey_first_chunk(reading, part); c < end; c++) {
        survey->chunk[c] = stats_tail(survey->stats_ops, survey->x + c * CHUNK,
            survey_length(survey, c), reading->least, reading->squares);
    }
}

static void survey_count_part(void *arg, unsigned part, unsigned thread)
{
    struct survey_reading *reading = arg;
    const struct cpu_survey *survey = reading->survey;
    const uint64_t end = survey_first_chunk(reading, part + 1);
    uint64_t count = 0;
    (void)thread;
    for (uint64_t c = survey_first_chunk(reading, part); c < end && count <= reading->most; c++) {
        count += survey->stats_ops->count(
            survey->x + c * CHUNK, survey_length(survey, c), reading->least);
    }
    reading->count[part] = count;
}

/* How many elements reach the key, of each part and of all, or just more than `most`. */
static uint64_t survey_read_count(struct survey_reading *reading, uint64_t most)
{
    uint64_t count = 0;
    reading->most = most;
    parallel_for(&reading->survey->parallel, survey_count_part, reading, reading->parts);
    for (unsigned p = 0; p < reading->parts; p++) {
        count += reading->count[p];
    }
    return count;
}

static void survey_collect_part(void *arg, unsigned part, unsigned thread)
{
    const struct survey_reading *reading = arg;
    const float *x = reading->survey->x;
    uint64_t at = 0;
    (void)thread;
    for (unsigned p = 0; p < part; p++) {
        at += reading->count[p];
    }
    const uint64_t end = at + reading->count[part];
    for (uint64_t i = survey_first_chunk(reading, part) * CHUNK; at < end; i++) {
        if (select_key(x[i]) >= reading->least) {
            reading->out->position[at] = (uint32_t)i;
            reading->out->value[at++] = x[i];
        }
    }
}

/* ------------------------------------------------------------------ the first reader */

static uint64_t survey_memory_count(struct cpu_survey *survey, uint32_t least, uint64_t most)
{
    struct survey_reading reading = survey_reading(survey, least);
    return survey_read_count(&reading, most);
}

static uint64_t survey_memory_take(
    struct cpu_survey *survey, uint32_t least, uint64_t most, struct sparse *out)
{
    struct survey_reading reading = survey_reading(survey, least);
    const uint64_t count = survey_read_count(&reading, most);
    if (count <= most) {
        reading.out = out;
        out->count = count;
        parallel_for(&survey->parallel, survey_collect_part, &reading, reading.parts);
    }
    return count;
}

/* The chunks' statistics are joined in order, whichever thread read them. */
static struct stats survey_memory_tail(struct cpu_survey *survey, uint32_t least, bool squares)
{
    struct survey_reading reading = survey_reading(survey, least);
    struct stats total = stats_none();
    reading.squares = squares;
    parallel_for(&survey->parallel, survey_stats_part, &reading, reading.parts);
    for (uint64_t c = 0; c < chunk_count(survey->base.stats.n); c++) {
        stats_join(&total, &survey->chunk[c]);
    }
    return total;
}

/* The smallest key of a span that reaches the bound. */
static uint32_t survey_smallest(const struct select_span *span, uint32_t least)
{
    uint32_t smallest = UINT32_MAX;
    for (uint64_t i = 0; i < span->length; i++) {
        const uint32_t key = select_key(span->x[i * span->stride]);
        smallest = key >= least && key < smallest ? key : smallest;
    }
    return smallest;
}

static float survey_rank_of(
    const struct cpu_survey *survey, const struct select_span *sample, uint64_t rank)
{
    const struct select_cut cut = select_cut_between(sample, 1, 0, 31, rank, survey->scratch);
    return convert_float(survey_smallest(sample, cut.key));
}

static float survey_memory_ranked(
    struct cpu_survey *survey, uint64_t start, uint64_t stride, uint64_t rank)
{
    const struct select_span sample = {.x = survey->x + start,
        .length = (survey->base.stats.n - start - 1) / stride + 1,
        .stride = stride};
    return survey_rank_of(survey, &sample, rank);
}

static void survey_memory_top(struct cpu_survey *survey, uint64_t k, struct sparse *out)
{
    const struct view view = {.fibres = 1, .length = survey->base.stats.n, .stride = 1};
    select_top(survey->x, &view, k, out, survey->scratch);
}

const struct survey_reader survey_memory = {.count = survey_memory_count,
    .take = survey_memory_take,
    .tail = survey_memory_tail,
    .ranked = survey_memory_ranked,
    .top = survey_memory_top};

/* ------------------------------------------------------------------ candidates */

/* The statistics of the elements that reach a key, which must not be below survey->complete. */
static struct stats survey_list_stats(const struct cpu_survey *survey, uint32_t least)
{
    struct stats total = stats_none();
    struct stats_lanes lanes = stats_lanes_none();
    uint32_t chunk = 0;
    for (unsigned l = 0; l < survey->lists; l++) {
        const struct sparse *list = &survey->candidate[l];
        for (size_t i = 0; i < list->count; i++) {
            if (select_key(list->value[i]) < least) {
                continue;
            }
            if (list->position[i] / CHUNK != chunk) {
                const struct stats part = stats_fold(&lanes);
                stats_join(&total, &part);
                lanes = stats_lanes_none();
                chunk = list->position[i] / CHUNK;
            }
            stats_lane(&lanes, list->position[i] % STATS_LANES, list->value[i]);
        }
    }
    const struct stats part = stats_fold(&lanes);
    stats_join(&total, &part);
    return total;
}

/* ------------------------------------------------------------------ questions */

struct survey_stats survey_describe(uint64_t n, unsigned need, const struct stats *stats)
{
    return (struct survey_stats){.n = n,
        .zeros = need & SURVEY_ZEROS ? n - stats->count : 0,
        .sum = need & SURVEY_SUM ? stats->sum : 0,
        .sum_abs = need & SURVEY_MAGNITUDES ? stats->sum_abs : 0,
        .sum_squares = need & SURVEY_SQUARES ? stats->sum_squares : 0,
        .sum_log = need & SURVEY_LOGARITHMS ? stats_log(stats) : 0,
        .most = need & SURVEY_MAGNITUDES ? convert_float(stats->most) : 0};
}

void survey_open(
    struct cpu_survey *survey, const struct survey_reader *reader, uint64_t n, void *scratch)
{
    *survey = (struct cpu_survey){.reader = reader,
        .base = {.ops = &survey_cpu, .stats = {.n = n}},
        .stats_ops = stats_best(),
        .pick = chunk_best(),
        .chunk = (struct stats *)(void *)((char *)scratch + survey_plain(n)),
        .complete = SURVEY_NOTHING,
        .scratch = scratch};
    assert(n <= VIEW_MAX_ELEMENTS);
}

/* The key that a threshold asks for. */
static uint32_t survey_key(float threshold)
{
    assert(threshold > 0);
    return select_key(threshold);
}

/* Candidates of at least a key, which must not be below survey->complete. */
static uint64_t survey_candidates(const struct cpu_survey *survey, uint32_t least)
{
    uint64_t count = 0;
    for (unsigned l = 0; l < survey->lists; l++) {
        const struct sparse *list = &survey->candidate[l];
        for (size_t i = 0; i < list->count; i += CHUNK) {
            const size_t rest = list->count - i;
            count += survey->stats_ops->count(
                list->value + i, rest < CHUNK ? (unsigned)rest : CHUNK, least);
        }
    }
    return count;
}

/* All the candidates are reason enough for "more than most", whatever the key. */
static uint64_t cpu_survey_count(struct survey *base, float threshold, uint64_t most)
{
    struct cpu_survey *survey = (struct cpu_survey *)base;
    const uint32_t least = survey_key(threshold);
    const bool complete = least >= survey->complete;
    uint64_t count = survey_candidates(survey, complete ? least : survey->complete);
    if (!complete && count <= most) {
        count = survey->reader->count(survey, least, most);
    }
    return count > most ? most + 1 : count;
}

static float cpu_survey_hint(const struct survey *base, uint64_t entries)
{
    const struct cpu_survey *survey = (const struct cpu_survey *)base;
    const double aim = (double)entries * (1 + HINT_SLACK + HINT_NOISE / sqrt((double)entries + 1));
    float hint = convert_float(survey->complete);
    uint64_t reached = survey_candidates(survey, survey->complete);
    uint64_t above = 0;
    if (reached == 0 || !(hint < KERNEL_FINITE_LIMIT)) {
        return 0;
    }
    for (unsigned step = 0; step < HINT_STEPS; step++, reached = above, hint *= HINT_STEP) {
        above = survey_candidates(survey, select_key(hint * HINT_STEP));
        if ((double)above < aim) {
            break;
        }
    }
    if ((double)reached < aim) { /* as if the number grew by the same power further down */
        const double power = log((double)reached / fmax((double)above, 1)) / log((double)HINT_STEP);
        hint *= (float)fmax(pow((double)reached / aim, 1 / power), HINT_LOWEST);
    }
    return hint;
}

static struct survey_tail cpu_survey_tail(struct survey *base, float threshold, bool squares)
{
    struct cpu_survey *survey = (struct cpu_survey *)base;
    const uint32_t least = survey_key(threshold);
    const struct stats stats = least >= survey->complete
                                   ? survey_list_stats(survey, least)
                                   : survey->reader->tail(survey, least, squares);
    return (struct survey_tail){.count = stats.count,
        .sum_abs = stats.sum_abs,
        .sum_squares = squares ? stats.sum_squares : 0,
        .least = stats.count > 0 ? convert_float(stats.least) : 0};
}

/* All elements that reach survey->complete among every stride-th one; false if they are too many.
 * One list may hold entries that another dropped. */
static bool survey_sampled(
    const struct cpu_survey *survey, uint64_t start, uint64_t stride, struct select_span *sample)
{
    const uint64_t room = chunk_count(survey->base.stats.n) * ROOM_OF_CHUNK;
    const uint64_t inverse = UINT64_MAX / stride + 1; /* i * inverse < inverse: i is a multiple */
    float *const found = (float *)(void *)survey->chunk;
    uint64_t count = 0;
    for (unsigned l = 0; l < survey->lists; l++) {
        const struct sparse *list = &survey->candidate[l];
        for (size_t i = 0; i < list->count; i++) {
            const uint32_t position = list->position[i];
            if (position < start || (stride > 1 && (position - start) * inverse >= inverse) ||
                select_key(list->value[i]) < survey->complete) {
                continue;
            }
            if (count == room) {
                return false;
            }
            found[count++] = list->value[i];
        }
    }
    *sample = (struct select_span){.x = found, .length = count, .stride = 1};
    return true;
}

static float cpu_survey_ranked(struct survey *base, uint64_t start, uint64_t stride, uint64_t rank)
{
    struct cpu_survey *survey = (struct cpu_survey *)base;
    struct select_span sample;
    assert(stride > 0 && start < survey->base.stats.n);
    return survey_sampled(survey, start, stride, &sample) && sample.length >= rank
               ? survey_rank_of(survey, &sample, rank)
               : survey->reader->ranked(survey, start, stride, rank);
}

static void survey_filter(
    const struct cpu_survey *survey, struct select_cut cut, uint64_t count, struct sparse *out)
{
    chunk_select_lists(
        survey->pick, survey->candidate, survey->lists, &cut, out, count, &survey->parallel);
}

static void cpu_survey_top(struct survey *base, uint64_t k, struct sparse *out)
{
    struct cpu_survey *survey = (struct cpu_survey *)base;
    struct select_span spans[FUSED_MAX_RANGES];
    if (k == 0 || survey_candidates(survey, survey->complete) < k) {
        survey->reader->top(survey, k, out);
        return;
    }
    for (unsigned l = 0; l < survey->lists; l++) {
        const struct sparse *list = &survey->candidate[l];
        spans[l] = (struct select_span){.x = list->value, .length = list->count, .stride = 1};
    }
    out->count = 0;
    survey_filter(survey,
        chunk_cut_spans(survey->pick, spans, survey->lists, k, out->value, k, survey->scratch,
            &survey->parallel),
        k, out);
}

static void cpu_survey_take(struct survey *base, float threshold, uint64_t most, struct sparse *out)
{
    struct cpu_survey *survey = (struct cpu_survey *)base;
    const uint32_t least = survey_key(threshold);
    const bool complete = least >= survey->complete;
    uint64_t count = survey_candidates(survey, complete ? least : survey->complete);
    out->count = 0;
    if (!complete && count <= most) {
        count = survey->reader->take(survey, least, most, out);
    }
    if (count > most) {
        out->count = 0;
        cpu_survey_top(base, most, out);
    } else if (complete) {
        survey_filter(survey, (struct select_cut){.key = least, .ties = SELECT_ALL}, most, out);
    }
}

const struct survey_ops survey_cpu = {.count = cpu_survey_count,
    .tail = cpu_survey_tail,
    .ranked = cpu_survey_ranked,
    .take = cpu_survey_take,
    .top = cpu_survey_top,
    .hint = cpu_survey_hint};
