/*
 * Steps. One opens when the step before is closed. It is over when every round is delivered and
 * every local rank has ended it. Then either the sent entries leave the residuals (accepted), or
 * the gradients are withdrawn, if a gradient of any node has NaN or Inf. All nodes decide alike,
 * because every contribution has that flag. A policy that passes NaN on accepts all steps.
 */
#include "daemon/core/step.h"

#include "daemon/compute/grow.h"
#include "daemon/compute/settle.h"
#include "daemon/core/round.h"
#include "daemon/job/actions.h"
#include "daemon/job/declare.h"
#include "daemon/job/due.h"
#include "daemon/job/flight.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/measure.h"
#include "daemon/job/members.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/store.h"

/* Handles the pushes that local ranks made while the step was held. */
static void catch_up(struct job *job)
{
    uint64_t step = step_number(job);

    for (unsigned r = 0; r < job->ranks; r++) {
        const struct rank *rank = job->rank[r];
        for (uint32_t t = 0; t < job->tensors; t++) {
            if (rank->pushed[t] == step + 1) {
                step_round(job, t)->pushes[rank->index]++;
            }
        }
    }
}

void step_rest(struct job *job)
{
    for (uint32_t t = 0; t < job->tensors; t++) {
        job->tensor[t].at_rest = *job->tensor[t].store;
    }
}

void step_open(struct job *job)
{
    const uint32_t rounds = step_rounds(job);

    flight_step(job, RECORD_OPENED);
    machine_fire(&job->step.machine, STEP_ON_OPEN, STEP_OPEN);
    job->step.undelivered = 0;
    step_rest(job);
    grow_step_opens(job);
    for (uint32_t r = 0; r < rounds; r++) {
        if (step_round_active(job, &job->plan->round[r])) {
            round_recover(&job->plan->round[r]);
        }
    }
    if (job->step.since_us != 0) {
        catch_up(job);
    }
}

void step_start(struct job *job)
{
    const uint32_t rounds = step_rounds(job);

    for (uint32_t r = 0; r < rounds && !job_ended(job); r++) {
        round_try(&job->plan->round[r]);
    }
}

static void step_done(struct work *work)
{
    struct job *job = work->job;
    bool withdrawn = job->step.machine.state == STEP_WITHDRAW;
    uint64_t step = job->store->steps_done;
    const uint32_t rounds = step_rounds(job);

    measure_step(job);
    flight_step(job, RECORD_CLOSED);
    store_count_step(job->store, withdrawn, job->agreement.due.step == step + 1);
    grow_step_closed(job);
    declare_tell(job);
    measure_phase_time(job, PHASE_SETTLE, job->core->now_us - job->step.settle_since_us);
    job->figures.counters.dense_bytes += job->figures.counters.elements * sizeof(float);
    for (uint32_t r = 0; r < rounds; r++) {
        if (job->plan->round[r].machine.state == ROUND_DELIVERED) {
            round_close(&job->plan->round[r]);
        }
    }
    for (unsigned i = 0; i < job->ranks; i++) {
        if (job->rank[i]->machine.state == RANK_READY) {
            core_act(job->core, &(struct action){.type = ACTION_STEP,
                                    .session = job->rank[i]->session,
                                    .number = step,
                                    .members = members_taking_part(job->rank[i], step + 1),
                                    .status = store_step_status(job->store)});
        }
    }
    due_answer(job);
    machine_fire(&job->step.machine, STEP_ON_DONE, STEP_IDLE);
    if (job->step.since_us != 0) {
        job->step.took_us[step % 2] = job->core->now_us - job->step.since_us;
    }
    job->step.since_us = 0;
    job->step.loss_scale = 0;
    if (job->ending.last_steps > 0 && job->store->steps_done >= job->ending.last_steps) {
        job_fail_due(job);
    }
}

bool step_settle(struct job *job)
{
    uint64_t step = step_number(job);
    uint64_t bytes = 0;
    bool nonfinite = false;

    if (job->machine.state != JOB_ACTIVE || job->step.machine.state != STEP_OPEN ||
        job->step.undelivered > 0 || job->lending.running) {
        return false;
    }
    for (unsigned i = 0; i < job->ranks; i++) {
        if (job->rank[i]->ended != step + 1) {
            return false;
        }
    }
    for (uint32_t t = 0; t < job->tensors; t++) {
        const struct tensor *tensor = &job->tensor[t];
        const struct plan_tensor *planned = &job->plan->tensor[t];
        nonfinite = nonfinite || tensor->store->round_nonfinite != 0;
        bytes += (planned->dense ? tensor->numel : planned->sent.count * 4) * sizeof(float);
    }
    nonfinite = nonfinite && !plan_propagates(job->plan);
    machine_fire(&job->step.machine, STEP_ON_DELIVERED, nonfinite ? STEP_WITHDRAW : STEP_SETTLE);
    flight_step(job, nonfinite ? RECORD_WITHDRAW : RECORD_SETTLE);
    job->step.settle_since_us = job->core->now_us;
    bytes += declare_begin(job);
    core_work(&job->step.settle, nonfinite ? &work_withdraw : &work_settle, step_done, bytes);
    return true;
}
