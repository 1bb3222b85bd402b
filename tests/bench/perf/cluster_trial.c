#include "tests/bench/perf/cluster_trial.h"

#include <math.h>
#include <stdio.h>

#include "tests/bench/perf/clock.h"
#include "tests/bench/perf/data.h"
#include "tests/bench/perf/perf.h"
#include "tests/bench/perf/training.h"

#define LOOK_MS 1000 /* how soon a dead rank is noticed */

static enum adtopk_status trial_open(
    const struct cluster *cluster, const struct trial *trial, adtopk_context **context)
{
    char job[128];
    char policy[96] = "{\"sparsifier\": \"dense\"}";
    const struct adtopk_options options = {.size = sizeof options,
        .job = job,
        .run_id = adtopk_run_id(cluster->context),
        .rank = (int)trial->rank,
        .has_rank = 1,
        .world_size = (int)trial->world,
        .policy = policy};

    (void)snprintf(job, sizeof(job), "%s.%s", adtopk_job(cluster->context), trial->name);
    if (trial->density < 1) {
        (void)snprintf(policy, sizeof(policy), "{\"sparsifier\": \"adtopk\", \"density\": %.9g}",
            trial->density);
    }
    return adtopk_open(&options, context);
}

/* A rank that has died takes no part in the trial; only the job of all ranks knows that. */
static enum adtopk_status trial_commit(
    const struct cluster *cluster, adtopk_context *context, struct error *err)
{
    enum adtopk_status status;

    while ((status = adtopk_commit_for(context, LOOK_MS)) == ADTOPK_PENDING) {
        const enum adtopk_status all = adtopk_arm(cluster->context);

        if (error_is_failure(all) && all != ADTOPK_ERR_ARGUMENT) {
            return cluster_failed(cluster, all, cluster->context, err);
        }
    }
    return status == ADTOPK_OK ? status : cluster_failed(cluster, status, context, err);
}

static enum adtopk_status trial_prepare(const struct cluster *cluster, const struct trial *trial,
    adtopk_context *context, struct error *err)
{
    uint64_t count = trial->count;
    const uint64_t columns = training_shape(&count);
    const struct adtopk_tensor_spec spec = {
        .size = sizeof spec, .name = "w", .dims = 2, .shape = {count / columns, columns}};
    enum adtopk_status status = adtopk_register(context, &spec, NULL);

    status = status == ADTOPK_OK ? trial_commit(cluster, context, err)
                                 : cluster_failed(cluster, status, context, err);
    if (status == ADTOPK_OK) {
        data_fill(adtopk_gradient(context, 0), count, DATA_NORMAL, trial->rank + 1);
    }
    return status;
}

static enum adtopk_status trial_step(adtopk_context *context)
{
    const enum adtopk_status status = adtopk_push_tensor(context, 0, NULL);

    return status == ADTOPK_OK ? adtopk_step_wait(context) : status;
}

enum adtopk_status trial_enter(const struct cluster *cluster, const struct trial *trial,
    adtopk_context **context, struct error *err)
{
    enum adtopk_status status = trial_open(cluster, trial, context);

    if (status != ADTOPK_OK) {
        return cluster_failed(cluster, status, *context, err);
    }
    status = trial_prepare(cluster, trial, *context, err);
    for (uint64_t step = 0; step < trial->warmup && status == ADTOPK_OK; step++) {
        status = trial_step(*context);
        if (status != ADTOPK_OK) {
            (void)cluster_failed(cluster, status, *context, err);
        }
    }
    return status;
}

enum adtopk_status trial_steps(
    const struct trial *trial, adtopk_context *context, struct series *times)
{
    enum adtopk_status status = adtopk_barrier(context);

    for (uint64_t step = 0; step < trial->steps && status == ADTOPK_OK; step++) {
        const uint64_t begin = clock_ns();

        status = trial_step(context);
        (void)series_add(times, clock_us_between(begin, clock_ns())); /* trial_median() sees it */
    }
    return status == ADTOPK_OK ? adtopk_barrier(context) : status;
}

struct trial_load trial_look(const struct cluster *cluster)
{
    struct told_daemon told = {.network_us = NAN, .loop_us = NAN};
    const double idle_us = machine_idle_us();

    if (cluster->asks) {
        (void)told_daemon(&told, NULL);
    }
    return (struct trial_load){
        .at_ns = clock_ns(), .network = told.network_us, .loop = told.loop_us, .idle = idle_us};
}

struct trial_load trial_since(const struct cluster *cluster, const struct trial_load *before)
{
    struct trial_load load = trial_look(cluster);
    const double elapsed_us = clock_us_between(before->at_ns, load.at_ns);

    load.network = (load.network - before->network) / elapsed_us;
    load.loop = (load.loop - before->loop) / elapsed_us;
    load.idle = (load.idle - before->idle) / elapsed_us;
    return load;
}

/* Samples the network's thread before and after the steps, and asks for the job while it is there.
 */
static enum adtopk_status trial_watched(const struct cluster *cluster, const struct trial *trial,
    adtopk_context *context, struct series *times, struct trial_told *told)
{
    const struct trial_load before = trial_look(cluster);
    const enum adtopk_status status = trial_steps(trial, context, times);

    told->busy = trial_since(cluster, &before).network;
    if (status == ADTOPK_OK && cluster->asks) {
        (void)told_job(adtopk_job(context), adtopk_run_id(context), &told->job);
    }
    return status;
}

enum adtopk_status trial_median(const struct series *times, double *median, struct error *err)
{
    struct summary summary;

    if (times->count == 0 || !series_summarise(times, &summary)) {
        return perf_no_memory(err, times->count * sizeof(double));
    }
    *median = summary.median;
    return ADTOPK_OK;
}

enum adtopk_status trial_run(const struct cluster *cluster, const struct trial *trial,
    struct series *times, struct trial_told *told, struct error *err)
{
    adtopk_context *context = NULL;
    enum adtopk_status status = trial_enter(cluster, trial, &context, err);

    *told = (struct trial_told){.job = {NAN, NAN, {NAN, NAN, NAN, NAN}}, .busy = NAN};
    if (status == ADTOPK_OK) {
        status = trial_watched(cluster, trial, context, times, told);
        if (status != ADTOPK_OK) {
            (void)cluster_failed(cluster, status, context, err);
        }
    }
    adtopk_close(context);
    return status;
}
