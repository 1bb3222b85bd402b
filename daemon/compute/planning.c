/*
 * See planning.h. The happy path: this file copies the visible parts of the last decision. A
 * compute asks the planner and copies its plan. Then done() runs on the core's thread.
 *
 * What can go wrong: the policy changes, or the job ends. The compute's result is dropped then.
 */
#include "daemon/compute/planning.h"

#include <stdlib.h>

#include "daemon/job/actions.h"
#include "daemon/job/measure.h"
#include "daemon/job/plan_query.h"

#define WORK_BYTES (UINT64_C(1) << 20) /* always worth a worker */

/* ------------------------------------------------------------------ life */

static struct planner *make_planner(const struct job *job)
{
    struct planner_tensor *tensor = calloc(job->tensors, sizeof(*tensor));
    struct planner_config config = {.tensor = tensor,
        .tensors = job->tensors,
        .nodes = job->in_force.nodes,
        .threads = measure_threads(job),
        .bucket_bytes = job->plan->policy.bucket_bytes};
    struct planner *planner;
    struct error unused;

    for (uint32_t t = 0; tensor != NULL && t < job->tensors; t++) {
        const struct plan_tensor *planned = &job->plan->tensor[t];
        uint64_t residuals = planned->policy.scope == SCOPE_RANK ? job->ranks : 1;
        uint64_t count = planned->sparse_count * residuals;
        uint64_t numel = job->tensor[t].numel;
        tensor[t] = (struct planner_tensor){.numel = numel,
            .count = count < numel ? count : numel,
            .allowed = planned->allowed,
            .saved = cost_saved(planned->policy.values)};
    }
    planner = tensor != NULL ? planner_create(&config, &unused) : NULL;
    free(tensor);
    return planner;
}

struct planning *planning_create(struct job *job)
{
    struct planning *planning = calloc(1, sizeof(*planning));
    bool all;

    if (planning == NULL) {
        return NULL;
    }
    planning->work.job = job;
    planning->planner = make_planner(job);
    all = planning->planner != NULL;
    all = estimate_init(&planning->estimates, job->tensors, job->in_force.nodes) && all;
    all = choices_init(&planning->in_force, job->tensors) && all;
    all = choices_init(&planning->wanted, job->tensors) && all;
    for (unsigned i = 0; i < PLANNING_SHOWN; i++) {
        all = choices_init(&planning->plan[i], job->tensors) && all;
    }
    if (!all) {
        planning_free(planning);
        return NULL;
    }
    return planning;
}

void planning_free(struct planning *planning)
{
    if (planning == NULL) {
        return;
    }
    planner_free(planning->planner);
    estimate_free(&planning->estimates);
    choices_free(&planning->in_force);
    choices_free(&planning->wanted);
    for (unsigned i = 0; i < PLANNING_SHOWN; i++) {
        choices_free(&planning->plan[i]);
    }
    free(planning);
}

void planning_drop(struct job *job)
{
    if (job->figures.planning != NULL && job->figures.planning->running) {
        job->figures.planning->dropped = true;
    } else {
        planning_free(job->figures.planning);
        job->figures.planning = NULL;
    }
}

void planning_forget(struct job *job)
{
    planning_drop(job);
    measure_end(job);
    for (unsigned i = 0; i < job->members; i++) {
        if (job->member[i]->estimates != NULL) {
            estimate_free(job->member[i]->estimates);
            free(job->member[i]->estimates);
            job->member[i]->estimates = NULL;
        }
    }
}

void planning_begin(struct job *job)
{
    measure_begin(job);
    if (job->figures.measure == NULL) {
        planning_drop(job);
    } else if (job->plan->change.uid != POLICY_PLANNER) {
        planning_drop(job);
        job->figures.measure->predicted_us = 0; /* it was for another policy of the same number */
    }
}

/* ------------------------------------------------------------------ a decision */

/* The planner's prediction for the plan that it wants. */
static double predicted_us(const struct planner *planner, const struct choices *plan)
{
    struct planner_candidate candidate;

    for (unsigned i = 0; planner_candidate(planner, i, &candidate); i++) {
        if (choices_equal(candidate.plan, plan)) {
            return candidate.predicted_us;
        }
    }
    return 0;
}

static void planning_run(struct compute *compute)
{
    struct planning *planning = (struct planning *)compute;
    struct planner_decision *decision = &planning->decision;

    planner_decide(planning->planner, &planning->estimates, &planning->in_force, decision);
    if (decision->change) {
        choices_copy(&planning->wanted, decision->plan);
        decision->plan = &planning->wanted;
        planning->predicted_us = predicted_us(planning->planner, decision->plan);
    }
}

static void copy_shown(struct planning *planning)
{
    unsigned i = 0;

    while (i < PLANNING_SHOWN && planner_candidate(planning->planner, i, &planning->shown[i])) {
        choices_copy(&planning->plan[i], planning->shown[i].plan);
        planning->shown[i].plan = &planning->plan[i];
        i++;
    }
    planning->shown_count = i;
}

void planning_decide(struct planning *planning, void (*done)(struct work *work))
{
    copy_shown(planning);
    plan_choices(planning->work.job->plan, &planning->in_force);
    planning->version = planning->work.job->plan->change.version;
    planning->running = true;
    core_compute(&planning->work, planning_run, done, WORK_BYTES);
    planning->work.compute.class.place = UINT64_MAX; /* work for which steps wait goes first */
}

bool planning_candidate(
    const struct planning *planning, unsigned index, struct planner_candidate *candidate)
{
    if (!planning->running) {
        return planner_candidate(planning->planner, index, candidate);
    }
    if (index >= planning->shown_count) {
        return false;
    }
    *candidate = planning->shown[index];
    return true;
}
