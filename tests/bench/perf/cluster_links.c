#include "tests/bench/perf/cluster_links.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/perf/clock.h"
#include "tests/bench/perf/cluster_trial.h"

#define SMALL_BYTES (UINT64_C(4) << 10)
#define SMALL_STEPS 31
#define BULK_BYTES ((size_t)8 << 20)
#define BULK_US                                                                                    \
    400000.0 /* in each direction, but at least BULK_LEAST and at most BULK_MOST times */
#define BULK_LEAST 2
#define BULK_MOST 50

enum {
    LINK_SMALL,
    LINK_THERE,
    LINK_BACK,
    LINK_NETWORK,
    LINK_LOOP,
    LINK_IDLE,
    LINK_ENCRYPTS,
    LINK_FIGURES
};

/* ------------------------------------------------------------------ one pair */

/* In each of turns - 1 rounds every node meets another one: itself or one beyond the last is none.
 */
static unsigned links_partner(unsigned node, unsigned round, unsigned turns)
{
    const unsigned last = turns - 1;
    const unsigned other = node == last ? round : (2 * round + last - node) % last;

    return other == node ? last : other;
}

static enum adtopk_status links_broadcast(
    adtopk_context *context, void *bytes, int root, double *us)
{
    enum adtopk_status status = adtopk_barrier(context);
    const uint64_t begin = clock_ns();

    if (status == ADTOPK_OK) {
        status = adtopk_broadcast(context, bytes, BULK_BYTES, root);
    }
    if (status == ADTOPK_OK) {
        status = adtopk_barrier(context); /* the other rank has it */
    }
    *us = clock_us_between(begin, clock_ns());
    return status;
}

/* Both ranks find the same number. */
static enum adtopk_status links_turns(adtopk_context *context, double us, unsigned *turns)
{
    float sum = (float)us;
    const enum adtopk_status status = adtopk_allreduce(context, &sum, 1);

    *turns = (unsigned)fmin(BULK_MOST, fmax(BULK_LEAST, 2 * BULK_US / (double)sum));
    return status;
}

/* rate: bytes per second from rank 0, and to it. */
static enum adtopk_status links_bulk(adtopk_context *context, void *bytes, double rate[2])
{
    double us, spent_us[2] = {0, 0};
    unsigned turns = 0;
    enum adtopk_status status = links_broadcast(context, bytes, 0, &us);

    if (status == ADTOPK_OK) {
        status = links_broadcast(context, bytes, 1, &us);
    }
    if (status == ADTOPK_OK) {
        status = links_turns(context, us, &turns);
    }
    for (unsigned i = 0; i < 2 * turns && status == ADTOPK_OK; i++) {
        status = links_broadcast(context, bytes, (int)(i % 2), &us);
        spent_us[i % 2] += us;
    }
    for (unsigned i = 0; i < 2; i++) {
        rate[i] = (double)turns * (double)BULK_BYTES / spent_us[i] * 1e6;
    }
    return status;
}

static enum adtopk_status links_watched(
    const struct cluster *cluster, adtopk_context *context, double figures[LINK_FIGURES])
{
    const struct trial_load before = trial_look(cluster);
    struct trial_load load;
    void *bytes = calloc(1, BULK_BYTES);
    enum adtopk_status status = ADTOPK_ERR_MEMORY;

    if (bytes != NULL) {
        status = links_bulk(context, bytes, &figures[LINK_THERE]);
    }
    free(bytes);
    load = trial_since(cluster, &before);
    figures[LINK_NETWORK] = load.network;
    figures[LINK_LOOP] = load.loop;
    figures[LINK_IDLE] = load.idle;
    return status;
}

static enum adtopk_status links_pair(const struct perf *perf, const struct cluster *cluster,
    unsigned other, double figures[LINK_FIGURES], struct error *err)
{
    const unsigned node = cluster->node[cluster->rank];
    const unsigned low = node < other ? node : other, high = node < other ? other : node;
    struct trial trial = {.rank = node == high,
        .world = 2,
        .density = 1,
        .count = SMALL_BYTES / sizeof(float),
        .warmup = perf->options.warmup,
        .steps = SMALL_STEPS};
    struct series times = {0};
    adtopk_context *context = NULL;
    enum adtopk_status status;

    (void)snprintf(trial.name, sizeof(trial.name), "link%u-%u", low, high);
    status = trial_enter(cluster, &trial, &context, err);
    if (status == ADTOPK_OK) {
        status = trial_steps(&trial, context, &times);
        status = status == ADTOPK_OK ? links_watched(cluster, context, figures) : status;
        status = status == ADTOPK_OK ? trial_median(&times, &figures[LINK_SMALL], err)
                                     : cluster_failed(cluster, status, context, err);
    }
    figures[LINK_ENCRYPTS] = cluster->daemon.encrypts;
    adtopk_close(context);
    series_free(&times);
    return status;
}

/* ------------------------------------------------------------------ all pairs */

/* The ends of a link are equally needed, so the one with less to spare counts. */
static struct judge_link links_read(const struct cluster *cluster, unsigned low, unsigned high)
{
    double end[2][LINK_FIGURES];

    for (unsigned i = 0; i < LINK_FIGURES; i++) {
        end[0][i] = cluster_figure(cluster, cluster->lead[low], i);
        end[1][i] = cluster_figure(cluster, cluster->lead[high], i);
    }
    return (struct judge_link){.low = low,
        .high = high,
        .small_us = end[0][LINK_SMALL],
        .there = end[0][LINK_THERE],
        .back = end[0][LINK_BACK],
        .bytes_s = fmin(end[0][LINK_THERE], end[0][LINK_BACK]),
        .network = fmax(end[0][LINK_NETWORK], end[1][LINK_NETWORK]),
        .loop = fmax(end[0][LINK_LOOP], end[1][LINK_LOOP]),
        .idle = fmin(end[0][LINK_IDLE], end[1][LINK_IDLE]),
        .encrypts = end[0][LINK_ENCRYPTS]};
}

/* As in a tournament: in every round all nodes have a partner, if their number is even. */
static enum adtopk_status links_play(struct perf *perf, struct cluster *cluster,
    struct judge_link *links, size_t *count, struct error *err)
{
    const unsigned turns = cluster->nodes + cluster->nodes % 2;
    const unsigned own = cluster->node[cluster->rank];
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned round = 0; round + 1 < turns && status == ADTOPK_OK; round++) {
        double figures[LINK_FIGURES] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN};
        const unsigned other = links_partner(own, round, turns);

        if (cluster->leads && other < cluster->nodes) {
            status = links_pair(perf, cluster, other, figures, err);
        }
        if (status == ADTOPK_OK) {
            status = cluster_gather(cluster, figures, LINK_FIGURES, err);
        }
        for (unsigned low = 0; low < cluster->nodes && status == ADTOPK_OK; low++) {
            const unsigned high = links_partner(low, round, turns);

            if (low < high && high < cluster->nodes) {
                links[(*count)++] = links_read(cluster, low, high);
            }
        }
    }
    return status;
}

/* The medians of the time with 4 KB, and of the time per byte. */
static bool links_medians(
    const struct judge_link *links, size_t count, double *small_us, double *byte_s)
{
    double *values = malloc((2 * count + 1) * sizeof(*values));

    if (values == NULL) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        values[i] = links[i].small_us;
        values[count + i] = 1 / links[i].bytes_s;
    }
    *small_us = judge_median(values, count);
    *byte_s = judge_median(values + count, count);
    free(values);
    return true;
}

static enum adtopk_status links_report_one(
    struct report *report, const struct judge_link *link, bool slow, bool listed, struct error *err)
{
    char name[32];
    const struct report_fact facts[] = {{.name = "nodes", .text = name},
        {.name = "4K step", .unit = "us", .number = link->small_us},
        {.name = "there", .unit = "MB/s", .number = link->there * 1e-6},
        {.name = "back", .unit = "MB/s", .number = link->back * 1e-6},
        {.name = "network", .unit = "%", .number = 100 * link->network},
        {.name = "loop", .unit = "%", .number = 100 * link->loop},
        {.name = "idle", .unit = "%", .number = 100 * link->idle},
        {.name = "slow", .text = slow ? "yes" : "no"}};

    (void)snprintf(name, sizeof(name), "%u-%u", link->low, link->high);
    return report_facts(
        report, "links", facts, sizeof(facts) / sizeof(facts[0]), listed || slow, err);
}

static enum adtopk_status links_report(
    struct report *report, const struct judge_link *links, size_t count, struct error *err)
{
    double small_us, byte_s;
    enum adtopk_status status = ADTOPK_OK;

    if (!links_medians(links, count, &small_us, &byte_s)) {
        return perf_no_memory(err, 2 * count * sizeof(double));
    }
    for (size_t i = 0; i < count && status == ADTOPK_OK; i++) {
        const bool slow = judge_is_slow(links[i].small_us, small_us) ||
                          judge_is_slow(1 / links[i].bytes_s, byte_s);

        status = links_report_one(report, &links[i], slow, count <= CLUSTER_LISTED, err);
    }
    return status;
}

enum adtopk_status cluster_links(
    struct perf *perf, struct cluster *cluster, struct judge_link *slowest, struct error *err)
{
    const size_t pairs = (size_t)cluster->nodes * (cluster->nodes - 1) / 2;
    struct judge_link *links = malloc((pairs + 1) * sizeof(*links));
    size_t count = 0;
    enum adtopk_status status;

    if (links == NULL) {
        return perf_no_memory(err, pairs * sizeof(*links));
    }
    status = links_play(perf, cluster, links, &count, err);
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || links[i].bytes_s < slowest->bytes_s) {
            *slowest = links[i];
        }
    }
    if (status == ADTOPK_OK) {
        status = links_report(perf->report, links, count, err);
    }
    free(links);
    return status;
}
