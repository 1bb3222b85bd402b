#include "daemon/compute/work.h"

#include <string.h>

#include "daemon/compute/launch.h"
#include "daemon/compute/orders.h"
#include "daemon/job/actions.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/store.h"

/* Tensors whose orders go into one batch. */
#define WORK_WINDOW 32u
#define WORK_WINDOW_FAR 256u /* an engine that works for many tensors at once */

static struct work *work_of(struct compute *compute)
{
    return (struct work *)compute;
}

struct parallel work_parallel(const struct work *work)
{
    struct parallel parallel = work->job->core->config.parallel;

    parallel.caller = work->compute.thread;
    return parallel;
}

enum adtopk_status work_no_memory(struct work *work)
{
    work->status = error_set(&work->error, ADTOPK_ERR_MEMORY, "job '%s': no memory to %s",
        work->job->key.name, work->kind->verb);
    return work->status;
}

/* The number of tensors of the round, or of the job. */
static uint32_t work_tensors(const struct work *work)
{
    return work->round != NULL ? work->round->tensors : work->job->tensors;
}

static uint32_t work_tensor(const struct work *work, uint32_t item)
{
    return work->round != NULL ? work->round->tensor[item] : item;
}

static void work_pass(
    const struct work *work, uint32_t end, enum engine_owner from, enum engine_owner to)
{
    for (uint32_t i = work->first; i < end; i++) {
        struct tensor *tensor = &work->job->tensor[work_tensor(work, i)];
        if (work->kind->residuals) {
            engine_pass(&tensor->residual_owner, from, to);
        }
        if (work->kind->updates) {
            engine_pass(&tensor->update_owner, from, to);
        }
    }
}

/* So many of the tensors that are left are in the next batch. */
static uint32_t work_window(const struct work *work, uint32_t tensors)
{
    const bool near = engine_is_near(plan_engine(work->job));
    const uint32_t most = near ? WORK_WINDOW : WORK_WINDOW_FAR;

    return tensors < most ? tensors : most;
}

static bool work_room(struct work *work)
{
    uint32_t tensors = work_tensors(work);
    uint32_t window = work_window(work, tensors);

    for (unsigned b = 0; b < 2; b++) {
        struct engine_batch *batch = &work->batch[b];
        const unsigned orders = window * orders_per_tensor(work->job);
        if (batch->room < orders) { /* the job has more tensors than before */
            engine_batch_free(batch);
            if (!engine_batch_init(
                    batch, &work->job->layout.arenas, orders, window * orders_parts(work->job))) {
                return false;
            }
        }
        batch->context = work;
    }
    return true;
}

void work_drop(struct work *work)
{
    engine_batch_free(&work->batch[0]);
    engine_batch_free(&work->batch[1]);
}

/* ------------------------------------------------------------------ stages */

const struct engine_result *work_results(const struct work *work, unsigned *count)
{
    *count = work->read - work->read_from;
    return &work->batch[1 - work->filling].result[work->read_from];
}

/* The order's residual has lost what was in it. Only the residual's owner hears of that. */
static void work_note_loss(const struct work *work, const struct engine_batch *done, unsigned order)
{
    if (done->result[order].emptied != 0) {
        store_note_emptied(work->job->tensor[done->order[order].tensor].store);
    }
}

/* Goes on to the results of this tensor. False: one of its orders had no memory. */
static bool work_read(struct work *work, uint32_t t)
{
    const struct engine_batch *done = &work->batch[1 - work->filling];
    bool ok = true;

    work->read_from = work->read;
    for (; work->read < done->count && done->order[work->read].tensor == t; work->read++) {
        ok = ok && done->result[work->read].status == ADTOPK_OK;
        work_note_loss(work, done, work->read);
    }
    return ok;
}

/* Fills the next batch with the stage's orders for each tensor of the window. If orders of some
 * tensor had no memory, the records of the others are still brought up to date. */
static bool work_stage_run(struct work *work, work_stage stage)
{
    bool ok = true;

    work->filling = 1 - work->filling;
    engine_batch_clear(&work->batch[work->filling]);
    work->read = 0;
    for (uint32_t i = work->first; i < work->end; i++) {
        ok = work_read(work, work_tensor(work, i)) && stage(work, i) == ADTOPK_OK && ok;
    }
    if (!ok && work->status == ADTOPK_OK) {
        (void)work_no_memory(work);
    }
    return ok;
}

/* Checks the results of the last orders, which no stage reads. False: one of them had no memory. */
static bool work_last_orders(struct work *work)
{
    const struct engine_batch *done = &work->batch[work->filling];

    for (unsigned i = 0; i < done->count; i++) {
        work_note_loss(work, done, i);
        if (done->result[i].status != ADTOPK_OK) {
            (void)work_no_memory(work);
            return false;
        }
    }
    return true;
}

/* Begins the window after this one; false: there is none. */
static bool work_next_window(struct work *work)
{
    uint32_t tensors = work_tensors(work);

    work->first = work->end;
    work->end = work->first + work_window(work, tensors - work->first);
    work->at = 0;
    engine_batch_clear(&work->batch[0]);
    engine_batch_clear(&work->batch[1]);
    return work->first < tensors;
}

/* Runs stages until there are orders to carry out. False: the work is done, or has failed. */
static bool work_advance(struct work *work)
{
    do {
        while (work->at < WORK_STAGES && work->kind->stage[work->at] != NULL) {
            if (!work_stage_run(work, work->kind->stage[work->at])) {
                return false;
            }
            work->at++;
            if (work->batch[work->filling].count > 0) {
                return true;
            }
        }
        if (!work_last_orders(work)) {
            return false;
        }
    } while (work_next_window(work));
    if (work->kind->finish != NULL) {
        work->kind->finish(work);
    }
    return false;
}

static bool work_begin(struct work *work)
{
    if (work->kind->stage[0] != NULL && !work_room(work)) {
        (void)work_no_memory(work);
        return false;
    }
    work->first = work->end = 0;
    if (work->kind->begin != NULL) {
        work->kind->begin(work);
    }
    (void)work_next_window(work);
    return work->status == ADTOPK_OK;
}

/* The engine for the orders of the stage that ran last. */
static const struct engine_ops *work_engine(const struct work *work)
{
    return work->kind->moves > 0 && work->at > work->kind->moves ? work->job->core->config.engine
                                                                 : plan_engine(work->job);
}

static void work_run(struct compute *compute)
{
    struct work *work = work_of(compute);
    const struct parallel parallel = work_parallel(work);
    bool goes_on = work->ordered || work_begin(work);

    work->ordered = false;
    while (goes_on && work_advance(work)) {
        const struct engine_ops *engine = work_engine(work);

        work_pass(work, work->end, ENGINE_OWNER_COMPUTE, ENGINE_OWNER_ENGINE);
        if (!engine_is_near(engine)) {
            work->ordered = true; /* the core submits the batch when it has the compute back */
            return;
        }
        engine->run(work->job->core->config.engine_context, &work->batch[work->filling], &parallel);
        work_pass(work, work->end, ENGINE_OWNER_ENGINE, ENGINE_OWNER_COMPUTE);
    }
}

void core_work(struct work *work, const struct work_kind *kind, void (*done)(struct work *work),
    uint64_t bytes)
{
    if (work->job->advance.frozen && !kind->last) {
        return;
    }
    work->kind = kind;
    work->ordered = false;
    work->first = 0;
    work_pass(work, work_tensors(work), ENGINE_OWNER_CORE, ENGINE_OWNER_COMPUTE);
    core_compute(work, work_run, done, bytes);
}

/* Status tells how much the job has lost with memory. */
static void work_count_losses(struct job *job, uint32_t losses, const double lost[2])
{
    job->figures.residual.losses += losses;
    job->figures.residual.lost[0] += lost[0];
    job->figures.residual.lost[1] += lost[1];
}

void work_ended(struct work *work)
{
    if (work->kind == NULL) {
        return; /* it has no stages */
    }
    if (work->ordered) { /* the job has ended, so nobody needs the batch */
        work_pass(work, work->end, ENGINE_OWNER_ENGINE, ENGINE_OWNER_COMPUTE);
    }
    work->first = 0;
    work_pass(work, work_tensors(work), ENGINE_OWNER_COMPUTE, ENGINE_OWNER_CORE);
    work->kind = NULL;
    work_count_losses(work->job, work->losses, work->lost);
    work->losses = 0;
    work->lost[0] = work->lost[1] = 0;
    if (work->job->tensors > work->job->core->config.inline_tensors) {
        work_drop(work); /* the batches of all rounds would be too many to keep */
    }
}

/* ------------------------------------------------------------------ far engines */

void work_spent(struct work *work, uint64_t us)
{
    work->spent_us += us;
    work->spent_unknown |= us == 0;
}

void work_submit(struct work *work)
{
    const struct core_config *config = &work->job->core->config;

    work->submitted_us = work->job->core->now_us;
    config->engine->submit(config->engine_context, &work->batch[work->filling]);
}

void work_check_engine(struct work *work)
{
    struct job *job = work->job;
    uint64_t limit_us;

    if (work->submitted_us == 0 || job_ended(job)) {
        return;
    }
    limit_us = job->plan->policy.round_timeout_us;
    if (job->core->now_us - launch_orders_since(work) < limit_us) {
        return;
    }
    job_fail_with(job, ADTOPK_ERR_TIMEOUT,
        "job '%s': the engine '%s' of node %u has not carried out its orders within "
        "round_timeout, %llu s",
        job->key.name, job->core->config.engine->name, job->core->config.node,
        (unsigned long long)(limit_us / 1000000));
}

void work_ordered(struct engine_batch *batch)
{
    struct work *work = batch->context;

    work->submitted_us = 0;
    work_spent(work, batch->took_us);
    work_pass(work, work->end, ENGINE_OWNER_ENGINE, ENGINE_OWNER_COMPUTE);
    /* This holds even if the job has ended meanwhile: the next stage notes what the engine has
     * done. The orders of that stage are not submitted any more. */
    core_act(work->job->core, &(struct action){.type = ACTION_COMPUTE, .compute = &work->compute});
}

/* Declares as lost what the tensor's residuals had when the open step began. Returns the sum. */
static double work_declare_all(struct job *job, uint32_t t)
{
    struct store_tensor *record = &job->tensor[t].at_rest;
    double lost[2];

    for (unsigned i = 0; i < 2; i++) {
        lost[i] = record->input[i] - store_applied(record)[i] - record->lost[i];
        record->lost[i] += lost[i];
    }
    work_count_losses(job, 1, lost);
    return lost[0];
}

static void work_job_lost(struct job *job)
{
    const struct core_config *config = &job->core->config;
    double sum = 0;

    for (uint32_t t = 0; t < job->tensors; t++) {
        sum += work_declare_all(job, t);
    }
    job_fail_with(job, ADTOPK_ERR_LOST,
        "node %u: the engine '%s' has lost the residuals of job '%s', whose sum was %.9g when step "
        "%llu began",
        config->node, config->engine->name, job->key.name, sum,
        (unsigned long long)job->store->steps_done);
}

void work_engine_lost(struct core *core, uint64_t number)
{
    for (struct job *job = core->jobs; job != NULL; job = job->places.next) {
        const bool meant = number == job->number || (number == 0 && plan_is_far(job, job->plan));

        if (meant && !job_ended(job) && job->store != NULL) {
            work_job_lost(job);
        }
    }
}
