/*
 * Predicts a step by the overlap recurrence (forecast.h). forecast_costs.c supplies the costs.
 */
#include "daemon/planner/forecast.h"

#include <math.h>
#include <stdlib.h>

#include "daemon/planner/forecast_costs.h"

#define NONE UINT32_MAX
#define WORKERS_MAX 64u /* of the model */
#define BYTES_MAX 1e14  /* of a bucket: a sum of them fits */

struct forecast_bucket {
    uint64_t elements, entries;
    double saved;  /* as in struct cost_load */
    uint32_t rank; /* of its last gradient */
    enum choice choice;
    double exchanged_us;
};

bool forecast_init(struct forecast *forecast, const struct planner_config *config)
{
    uint32_t n = config->tensors;

    *forecast = (struct forecast){.config = config};
    forecast->arrival = calloc(n, sizeof(*forecast->arrival));
    forecast->rank = calloc(n, sizeof(*forecast->rank));
    forecast->bucket_at = calloc(n, sizeof(*forecast->bucket_at));
    forecast->bucket = calloc(n, sizeof(*forecast->bucket));
    return forecast->arrival != NULL && forecast->rank != NULL && forecast->bucket_at != NULL &&
           forecast->bucket != NULL;
}

void forecast_free(struct forecast *forecast)
{
    free(forecast->arrival);
    free(forecast->rank);
    free(forecast->bucket_at);
    free(forecast->bucket);
    *forecast = (struct forecast){.config = NULL};
}

static int by_arrival(const void *a, const void *b)
{
    const struct forecast_arrival *one = a, *other = b;

    if (one->us < other->us || other->us < one->us) {
        return one->us < other->us ? -1 : 1;
    }
    return one->tensor < other->tensor ? -1 : one->tensor > other->tensor;
}

void forecast_set(struct forecast *forecast, const struct estimates *estimates)
{
    struct forecast_arrival *arrival = forecast->arrival;
    uint32_t n = forecast->config->tensors;

    forecast_costs_set(&forecast->costs, estimates);
    for (uint32_t t = 0; t < n; t++) {
        arrival[t] = (struct forecast_arrival){fmax(estimates->arrival_us[t], 0), t};
    }
    qsort(arrival, n, sizeof(*arrival), by_arrival);
    for (uint32_t i = 0; i < n; i++) {
        forecast->rank[arrival[i].tensor] = i;
    }
}

/* Puts the tensors of each choice, in order of registration, into buckets. Returns how many there
 * are, and notes in bucket_at[] with which gradient each is complete. */
static uint32_t form_buckets(struct forecast *forecast, const struct choices *choices)
{
    const struct planner_tensor *tensor = forecast->config->tensor;
    uint32_t open[CHOICES], buckets = 0;
    uint64_t bytes[CHOICES];

    for (unsigned c = 0; c < CHOICES; c++) {
        open[c] = NONE;
        bytes[c] = 0;
    }
    for (uint32_t t = 0; t < choices->tensors; t++) {
        enum choice c = (enum choice)choices->choice[t];
        uint64_t size = tensor[t].numel * sizeof(float);
        struct forecast_bucket *bucket;

        forecast->bucket_at[t] = NONE;
        if (open[c] == NONE || (bytes[c] > 0 && bytes[c] + size > choices->bucket_bytes)) {
            open[c] = buckets++;
            bytes[c] = 0;
            forecast->bucket[open[c]] = (struct forecast_bucket){.choice = c};
        }
        bytes[c] += size;
        bucket = &forecast->bucket[open[c]];
        bucket->elements += tensor[t].numel;
        bucket->entries += choice_is_sparse(c) ? tensor[t].count : 0;
        bucket->saved += choice_is_sparse(c) ? tensor[t].saved * (double)tensor[t].count : 0;
        bucket->rank = bucket->rank > forecast->rank[t] ? bucket->rank : forecast->rank[t];
    }
    for (uint32_t b = 0; b < buckets; b++) {
        forecast->bucket_at[forecast->bucket[b].rank] = b;
    }
    return buckets;
}

/* Runs a compute of `us` that is ready at that time on at most `share` workers. Workers join when
 * they get free, as long as work is left. Returns the time when it is over. The times at which
 * workers are free are in ascending order, before and after. */
static double compute(double *worker, unsigned workers, unsigned share, double ready, double us)
{
    double sum = us, end = INFINITY;
    unsigned used = 0, i;

    while (used < share && used < workers && fmax(worker[used], ready) < end) {
        sum += fmax(worker[used++], ready);
        end = sum / used;
    }
    for (i = used; i < workers && worker[i] < end; i++) {
        worker[i - used] = worker[i];
    }
    for (unsigned j = i - used; j < i; j++) {
        worker[j] = end;
    }
    return end;
}

/* An open step: times in us after its first push. */
struct sweep {
    struct forecast *forecast;
    double worker[WORKERS_MAX]; /* when each is free, in ascending order */
    unsigned workers;
    double link_free;
    uint32_t reduced; /* the buckets of all ranks before this one are summed */
    struct forecast_result *result;
};

static double forecast_line_at(const struct line *line, double x)
{
    return line->offset + line->slope * x;
}

static double sweep_compute(struct sweep *sweep, const struct forecast_bucket *bucket, double ready,
    const struct line *line, double reference)
{
    unsigned share = cost_share(bucket->elements, sweep->workers);

    return compute(sweep->worker, sweep->workers, share, ready, forecast_line_at(line, reference));
}

/* Sums the buckets that are exchanged before `until`, among those of the ranks before `end`. */
static void sweep_reduce(struct sweep *sweep, uint32_t end, double until)
{
    struct forecast *forecast = sweep->forecast;
    const struct forecast_costs *costs = &forecast->costs;

    for (; sweep->reduced < end; sweep->reduced++) {
        uint32_t b = forecast->bucket_at[sweep->reduced];
        const struct forecast_bucket *bucket = b != NONE ? &forecast->bucket[b] : NULL;
        double reference, over;

        if (bucket == NULL) {
            continue;
        }
        if (bucket->exchanged_us > until) {
            return;
        }
        reference = cost_reduce(bucket->choice, forecast->config->nodes, costs->gamma,
            (struct cost_load){bucket->elements, bucket->entries, bucket->saved});
        over = sweep_compute(
            sweep, bucket, bucket->exchanged_us, &costs->reduce[bucket->choice], reference);
        sweep->result->reduce_us += forecast_line_at(&costs->reduce[bucket->choice], reference);
        sweep->result->finish_us = fmax(sweep->result->finish_us, over);
    }
}

/* Selects a bucket that is ready then, and exchanges it. */
static void sweep_select(struct sweep *sweep, struct forecast_bucket *bucket, double ready)
{
    const struct forecast *forecast = sweep->forecast;
    const struct forecast_costs *costs = &forecast->costs;
    enum choice c = bucket->choice;
    struct cost_load load = {bucket->elements, bucket->entries, bucket->saved};
    double reference = cost_select(c, load);
    double bytes = costs->volume[c] * cost_bytes(c, forecast->config->nodes, costs->gamma, load);
    double busy = forecast_line_at(&costs->exchange[c], bytes);
    double selected = sweep_compute(sweep, bucket, ready, &costs->select[c], reference);

    sweep->link_free = fmax(sweep->link_free, selected) + busy;
    bucket->exchanged_us = sweep->link_free + costs->latency_us[c];
    sweep->result->select_us += forecast_line_at(&costs->select[c], reference);
    sweep->result->link_us += busy;
    sweep->result->bytes += (uint64_t)fmin(bytes, BYTES_MAX);
}

static double settle_of(const struct forecast *forecast, const struct choices *choices)
{
    const struct planner_tensor *tensor = forecast->config->tensor;
    uint64_t dense = 0, entries = 0;

    for (uint32_t t = 0; t < choices->tensors; t++) {
        if (choice_is_sparse((enum choice)choices->choice[t])) {
            entries += tensor[t].count;
        } else {
            dense += tensor[t].numel;
        }
    }
    return forecast_line_at(&forecast->costs.settle, cost_settle(dense, entries));
}

void forecast_run(
    struct forecast *forecast, const struct choices *choices, struct forecast_result *result)
{
    const struct planner_config *config = forecast->config;
    struct sweep sweep = {.forecast = forecast,
        .workers = config->threads < WORKERS_MAX ? config->threads : WORKERS_MAX,
        .result = result};

    *result = (struct forecast_result){.bytes = 0};
    result->buckets = form_buckets(forecast, choices);
    for (uint32_t i = 0; i < config->tensors; i++) {
        const double arrival_us = forecast->arrival[i].us;
        if (forecast->bucket_at[i] != NONE) {
            sweep_reduce(&sweep, i, arrival_us);
            sweep_select(&sweep, &forecast->bucket[forecast->bucket_at[i]], arrival_us);
        }
    }
    sweep_reduce(&sweep, config->tensors, INFINITY);
    result->step_us = result->finish_us + settle_of(forecast, choices);
}
