#include "kernels/cpu/survey.h"

#include <assert.h>
#include <math.h>

#include "kernels/cpu/fused.h"
#include "kernels/cpu/stats.h"

size_t survey_scratch(uint64_t n)
{
    return select_scratch(n);
}

static unsigned survey_length(const struct survey *survey, uint64_t first)
{
    const uint64_t rest = survey->stats.n - first;
    return rest < CHUNK ? (unsigned)rest : CHUNK;
}

/* The statistics of what reaches a key, by reading. */
static struct stats survey_read_stats(const struct survey *survey, uint32_t least)
{
    struct stats total = stats_none();
    for (uint64_t first = 0; first < survey->stats.n; first += CHUNK) {
        const struct stats chunk =
            stats_chunk(survey->ops, survey->x + first, survey_length(survey, first), least);
        stats_join(&total, &chunk);
    }
    return total;
}

/* The same from the candidates. */
static struct stats survey_list_stats(const struct survey *survey, uint32_t least)
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

struct survey_stats survey_describe(uint64_t n, const struct stats *stats)
{
    return (struct survey_stats){.n = n,
        .zeros = n - stats->count,
        .sum = stats->sum,
        .sum_abs = stats->sum_abs,
        .sum_squares = stats->sum_squares,
        .sum_log = stats_log(stats),
        .most = convert_float(stats->most),
        .least = stats->count > 0 ? convert_float(stats->least) : 0};
}

void survey_read(
    struct survey *survey, const struct stats_ops *ops, const float *x, uint64_t n, void *scratch)
{
    *survey = (struct survey){.x = x,
        .stats = {.n = n},
        .ops = ops != NULL ? ops : stats_best(),
        .complete = SURVEY_NOTHING,
        .scratch = scratch};
    assert(n <= VIEW_MAX_ELEMENTS);
    const struct stats stats = survey_read_stats(survey, 1);
    survey->stats = survey_describe(n, &stats);
}

float survey_threshold(double threshold, bool strict)
{
    if (threshold < 0 || (threshold == 0 && !strict)) {
        return 0;
    }
    if (!(threshold < INFINITY)) {
        return INFINITY;
    }
    const float nearest = (float)threshold;
    const bool reached = strict ? (double)nearest > threshold : (double)nearest >= threshold;
    return reached ? nearest : nextafterf(nearest, INFINITY);
}

/* The key that a threshold asks for. */
static uint32_t survey_key(float threshold)
{
    assert(threshold > 0);
    return select_key(threshold);
}

/* Candidates of at least a key, which must not be below survey->complete. */
static uint64_t survey_candidates(const struct survey *survey, uint32_t least)
{
    uint64_t count = 0;
    for (unsigned l = 0; l < survey->lists; l++) {
        const struct sparse *list = &survey->candidate[l];
        for (size_t i = 0; i < list->count; i += CHUNK) {
            const size_t rest = list->count - i;
            count +=
                survey->ops->count(list->value + i, rest < CHUNK ? (unsigned)rest : CHUNK, least);
        }
    }
    return count;
}

uint64_t survey_count(const struct survey *survey, float threshold)
{
    const uint32_t least = survey_key(threshold);
    uint64_t count = 0;
    if (least >= survey->complete) {
        return survey_candidates(survey, least);
    }
    for (uint64_t first = 0; first < survey->stats.n; first += CHUNK) {
        count += survey->ops->count(survey->x + first, survey_length(survey, first), least);
    }
    return count;
}

struct survey_tail survey_tail(const struct survey *survey, float threshold)
{
    const uint32_t least = survey_key(threshold);
    const struct stats stats = least >= survey->complete ? survey_list_stats(survey, least)
                                                         : survey_read_stats(survey, least);
    return (struct survey_tail){.count = stats.count,
        .sum_abs = stats.sum_abs,
        .sum_squares = stats.sum_squares,
        .sum_log = stats_log(&stats),
        .least = stats.count > 0 ? convert_float(stats.least) : 0};
}

/* Appends the `count` > 0 elements of at least a key. */
static void survey_collect(
    const struct survey *survey, uint32_t least, uint64_t count, struct sparse *out)
{
    for (uint64_t i = 0; out->count < count; i++) {
        if (select_key(survey->x[i]) >= least) {
            out->position[out->count] = (uint32_t)i;
            out->value[out->count++] = survey->x[i];
        }
    }
}

static void survey_filter(
    const struct survey *survey, struct select_cut cut, uint64_t count, struct sparse *out)
{
    for (unsigned l = 0; l < survey->lists; l++) {
        select_filter(&survey->candidate[l], &cut, out, count);
    }
}

void survey_take(struct survey *survey, float threshold, uint64_t most, struct sparse *out)
{
    const uint32_t least = survey_key(threshold);
    const uint64_t count = survey_count(survey, threshold);
    out->count = 0;
    if (count > most) {
        survey_top(survey, most, out);
    } else if (least >= survey->complete) {
        survey_filter(survey, (struct select_cut){.key = least, .ties = SELECT_ALL}, count, out);
    } else {
        survey_collect(survey, least, count, out);
    }
}

void survey_top(struct survey *survey, uint64_t k, struct sparse *out)
{
    const struct view view = {.fibres = 1, .length = survey->stats.n, .stride = 1};
    struct select_span spans[FUSED_MAX_RANGES];
    if (k == 0 || survey_candidates(survey, survey->complete) < k) {
        select_top(survey->x, &view, k, out, survey->scratch);
        return;
    }
    for (unsigned l = 0; l < survey->lists; l++) {
        const struct sparse *list = &survey->candidate[l];
        spans[l] = (struct select_span){.x = list->value, .length = list->count, .stride = 1};
    }
    out->count = 0;
    survey_filter(
        survey, select_cut_between(spans, survey->lists, 0, 31, k, survey->scratch), k, out);
}
