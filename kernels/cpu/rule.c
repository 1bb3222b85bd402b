#include "kernels/cpu/rule.h"

#include <assert.h>
#include <math.h>

#include "kernels/cpu/bracket.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/survey.h"

/* A tensor of up to this size stays in the cache. */
enum { SMALL_TENSOR = 1 << 16 };
/* More entries than one in this many are no small set. */
enum { DENSE_SELECTION = 4 };

/* What must fit behind the last entry before a chunk is collected. */
enum { ROOM = CHUNK + CHUNK_SLACK };

size_t rule_capacity(uint64_t n, uint64_t k, unsigned ranges)
{
    if (n <= SMALL_TENSOR || k == 0 || k > n / DENSE_SELECTION) {
        return 0;
    }
    return bracket_capacity(n, 2 * k, ranges) + ROOM;
}

void rule_start(struct fused *pass)
{
    assert(pass->view.stride == 1);
    pass->surveyed = pass->surveyed != NULL ? pass->surveyed : stats_best();
    if (pass->guess > 0) {
        pass->least = select_key(pass->guess);
    } else if (pass->candidate[0].capacity == 0 || !bracket_guess(pass)) {
        pass->least = INT32_MAX; /* nothing but NaN */
    }
    for (unsigned r = 0; r < pass->ranges; r++) {
        pass->complete[r] = pass->least;
    }
}

struct sparse *rule_list(struct fused *pass, unsigned range, uint32_t *least)
{
    struct sparse *list = &pass->candidate[range];
    if (list->capacity == 0) {
        return NULL;
    }
    if (list->capacity - list->count < ROOM) {
        uint32_t *histogram = pass->histogram + (size_t)range * SELECT_BINS;
        *least = chunk_prune(pass->ops, list, (list->capacity - ROOM) / 2, histogram);
        pass->complete[range] = *least;
    }
    return list;
}

void rule_look(struct fused *pass, struct stats_lanes *lanes, const float *x, unsigned length)
{
    if (pass->need != SURVEY_NO_STATS) {
        stats_add(pass->surveyed, lanes, x, length, pass->need);
    }
}

void rule_close(struct fused *pass, uint64_t chunk, const struct stats_lanes *lanes)
{
    if (pass->need != SURVEY_NO_STATS) {
        pass->statistics[chunk] = stats_fold(lanes);
    }
}

void fused_survey(const struct fused *pass, struct cpu_survey *survey)
{
    const uint64_t n = view_size(&pass->view);
    struct stats total = stats_none();
    assert(pass->mode == FUSED_RULE);
    for (uint64_t c = 0; pass->need != SURVEY_NO_STATS && c < chunk_count(n); c++) {
        stats_join(&total, &pass->statistics[c]);
    }
    *survey = (struct cpu_survey){.reader = &survey_memory,
        .x = pass->residual,
        .base = {.ops = &survey_cpu, .stats = survey_describe(n, pass->need, &total)},
        .stats_ops = pass->surveyed,
        .pick = pass->ops,
        .chunk = pass->statistics,
        .complete = SURVEY_NOTHING,
        .scratch = pass->scratch};
    if (pass->candidate[0].capacity > 0) {
        survey->candidate = pass->candidate;
        survey->lists = pass->ranges;
        survey->complete = 0;
    }
    for (unsigned r = 0; r < survey->lists; r++) {
        const uint32_t complete = pass->complete[r];
        survey->complete = complete > survey->complete ? complete : survey->complete;
    }
}
