/*
 * sparsify: a turn of every sparsifier on the same input, against the r += g loops.
 */
#include <math.h>
#include <stdlib.h>

#include "daemon/policy/policy.h"
#include "tests/bench/perf/group.h"
#include "tests/bench/perf/sparsify.h"
#include "tests/bench/perf/stop.h"

#define COLUMNS 4096

void sparsify_list(const char *names[SPARSIFY_MAX])
{
    size_t i = 0;

    for (; sparsifier_table[i] != NULL && i + 1 < SPARSIFY_MAX; i++) {
        names[i] = sparsifier_table[i]->name;
    }
    names[i] = NULL;
}

static enum adtopk_status one_sparsifier(struct perf *perf, struct group *group, struct error *err)
{
    const uint64_t n = tensor_numel(&group->shape[0].shape);
    const double density = group->kind.params.density;
    const struct row row = {
        .count = n, .density = density, .target_count = fmax(1, floor((double)n * density))};
    enum adtopk_status status = ADTOPK_OK;

    if (!group_open(group) || !group_measure(perf, group)) {
        status = perf_no_memory(err, 16 * n);
    } else {
        status = group_row(perf, group, &group->all, &row, err);
    }
    group_close(group);
    return status;
}

static enum adtopk_status all_densities(struct perf *perf, struct group *group, struct error *err)
{
    const struct options *options = &perf->options;
    enum adtopk_status status = ADTOPK_OK;

    for (size_t d = 0; d < options->densities.count; d++) {
        group->kind.params.density = options->densities.value[d];
        for (unsigned i = 0; sparsifier_table[i] != NULL; i++) {
            group->kind.sparsifier = sparsifier_table[i];
            group->name = sparsifier_table[i]->name;
            if (perf_has(options->sparsifiers, i)) {
                status = one_sparsifier(perf, group, err);
            }
            if (status != ADTOPK_OK || stop_requested()) {
                return status;
            }
        }
    }
    return status;
}

static enum adtopk_status all_sizes(struct perf *perf, struct group *group, struct error *err)
{
    const struct options *options = &perf->options;
    enum adtopk_status status = ADTOPK_OK;

    for (uint64_t size = options->min; size > 0 && status == ADTOPK_OK && !stop_requested();
         size = perf_next_size(options, size)) {
        const uint64_t n = size / sizeof(float);
        const uint64_t columns = n < COLUMNS ? n : COLUMNS;

        group->shape[0].shape = (struct tensor_shape){.dims = 2, .size = {n / columns, columns}};
        for (unsigned d = 0; d < DATA_COUNT && status == ADTOPK_OK && !stop_requested(); d++) {
            group->kind.distribution = (enum distribution)d;
            if (perf_has(options->distributions, d)) {
                status = all_densities(perf, group, err);
            }
        }
    }
    return status;
}

enum adtopk_status sparsify_run(struct perf *perf, struct error *err)
{
    const struct number_list *threads = &perf->options.threads;
    struct group *group = calloc(1, sizeof(*group));
    enum adtopk_status status = ADTOPK_OK;
    struct policy policy;

    if (group == NULL) {
        return perf_no_memory(err, sizeof(*group));
    }
    policy_default(&policy);
    group->kind = (struct tensor_kind){.params = policy.tensor.params, .ranks = 1};
    group->count = 1;
    for (size_t i = 0; i < threads->count && status == ADTOPK_OK && !stop_requested(); i++) {
        group->team = team_new((unsigned)threads->value[i]);
        status = group->team != NULL ? all_sizes(perf, group, err)
                                     : perf_no_threads(err, threads->value[i]);
        team_free(group->team);
    }
    free(group);
    return status;
}
