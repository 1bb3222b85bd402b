#include "tests/bench/perf/group.h"

#include <math.h>
#include <string.h>

#include "tests/bench/perf/stop.h"

static size_t journals_size(const struct group *group)
{
    return team_threads(group->team) * sizeof(struct journal);
}

static void measured_free(struct measured *measured)
{
    series_free(&measured->time);
    series_free(&measured->settle);
    floor_free(&measured->race);
}

void group_close(struct group *group)
{
    for (unsigned t = 0; t < group->count; t++) {
        tensor_close(&group->tensor[t]);
        measured_free(&group->measured[t]);
    }
    measured_free(&group->all);
    data_unmap(group->journals, journals_size(group));
}

bool group_open(struct group *group)
{
    bool ok;

    memset(group->tensor, 0, sizeof(group->tensor));
    memset(group->measured, 0, sizeof(group->measured));
    memset(&group->all, 0, sizeof(group->all));
    group->selected = 0;
    group->journals = data_map(journals_size(group));
    ok = group->journals != NULL;
    for (unsigned t = 0; t < group->count && ok && !stop_requested(); t++) {
        ok = tensor_open(
            &group->tensor[t], &group->kind, &group->shape[t].shape, team_threads(group->team));
    }
    return ok;
}

static void restore(struct group *group)
{
    for (unsigned t = 0; t < group->count; t++) {
        tensor_restore(&group->tensor[t]);
    }
}

static bool sample_floor(struct group *group, unsigned loop)
{
    double all = 0;
    bool ok = true;

    restore(group);
    for (unsigned t = 0; t < group->count && ok; t++) {
        const struct floor_work work = tensor_floor(&group->tensor[t]);
        const double time = floor_time(&work, loop, group->team, group->tensor[t].pass.ranges);

        all += time;
        ok = series_add(&group->measured[t].race.time[loop], time);
    }
    return ok && series_add(&group->all.race.time[loop], all);
}

static bool sample_pass(struct group *group, bool counts)
{
    double all = 0;
    double settled = 0;
    bool ok = true;

    restore(group);
    for (unsigned t = 0; t < group->count && ok; t++) {
        const double time = tensor_pass(&group->tensor[t], group->team, group->journals);

        all += time;
        ok = !counts || series_add(&group->measured[t].time, time);
    }
    for (unsigned t = 0; t < group->count && ok; t++) {
        const double time = tensor_settle(&group->tensor[t], group->team);

        settled += time;
        ok = !counts || series_add(&group->measured[t].settle, time);
        group->selected += counts ? (double)tensor_sent(&group->tensor[t]) : 0;
    }
    return ok && (!counts || (series_add(&group->all.time, all) &&
                                 series_add(&group->all.settle, settled)));
}

uint64_t group_elements(const struct group *group)
{
    uint64_t n = 0;

    for (unsigned t = 0; t < group->count; t++) {
        n += group->tensor[t].n;
    }
    return n;
}

bool group_measure(const struct perf *perf, struct group *group)
{
    const uint64_t warmup = perf->options.warmup;
    bool ok = true;

    for (uint64_t turn = 0; turn < warmup + perf->options.iterations && ok && !stop_requested();
         turn++) {
        const bool counts = turn >= warmup;

        perf_progress(perf, group->name, group_elements(group) * dtype_size(group->kind.dtype),
            counts ? turn - warmup : 0);
        for (unsigned t = 0; t < group->count; t++) {
            tensor_turn(&group->tensor[t], turn);
        }
        for (unsigned loop = 0; loop < FLOOR_LOOPS && counts && ok; loop++) {
            ok = sample_floor(group, loop);
        }
        ok = ok && sample_pass(group, counts);
    }
    return ok;
}

enum adtopk_status group_row(struct perf *perf, const struct group *group,
    const struct measured *measured, const struct row *own, struct error *err)
{
    const struct tensor_kind *kind = &group->kind;
    const unsigned fastest = floor_fastest(&measured->race);
    struct row row = *own;

    row.benchmark = perf->benchmark;
    row.variant = group->name;
    row.input = data_names[kind->distribution];
    row.type = data_dtype_names[kind->dtype];
    row.threads = team_threads(group->team);
    row.ranks = kind->ranks;
    row.size = row.count * dtype_size(kind->dtype);
    row.alg_bytes = (double)row.size;
    row.residual = data_dtype_names[kind->rounded ? DTYPE_BF16 : DTYPE_F32];
    row.bus_bytes = (double)(row.size * kind->ranks +
                             2 * row.count * dtype_size(kind->rounded ? DTYPE_BF16 : DTYPE_F32));
    row.wire_bytes = row.target_us = NAN;
    row.nonzeros = group->selected / (double)group->all.time.count;
    row.time = &measured->time;
    row.settle = &measured->settle;
    row.floor_name = floor_loops[fastest].name;
    row.floor = &measured->race.time[fastest];
    row.paired = true;
    return perf_row(perf, &row, err);
}
