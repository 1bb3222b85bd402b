/*
 * Steps: opened when the one before is closed; over when every round is delivered and every local
 * rank has ended it. Then either what was sent leaves the residuals (accepted), or, if a gradient
 * anywhere held NaN or Inf, the gradients are withdrawn again. All nodes decide alike, because the
 * flag travels with every contribution.
 */
#include "daemon/core/measure.h"
#include "daemon/core/model.h"
#include "daemon/core/replan.h"

#define TO(state) (1u << (state))

const struct machine_table step_machine = {
    .name = "step",
    .states = STEP_STATES,
    .events = STEP_EVENTS,
    .state_name = {"idle", "open", "settle", "withdraw"},
    .event_name = {"open", "delivered", "done"},
    .next =
        {
            [STEP_IDLE] = {[STEP_ON_OPEN] = TO(STEP_OPEN)},
            [STEP_OPEN] = {[STEP_ON_DELIVERED] = TO(STEP_SETTLE) | TO(STEP_WITHDRAW)},
            [STEP_SETTLE] = {[STEP_ON_DONE] = TO(STEP_IDLE)},
            [STEP_WITHDRAW] = {[STEP_ON_DONE] = TO(STEP_IDLE)},
        },
};

uint64_t step_number(const struct job *job)
{
    return job->store != NULL ? job->store->steps_done : 0;
}

bool step_round_active(const struct job *job, const struct round *round)
{
    uint64_t step = step_number(job);

    if (round->bucket < job->plan->buckets) {
        return round->split_step > step;
    }
    return job->plan->round[job->plan->tensor[round->tensor[0]].bucket].split_step <= step;
}

struct round *step_round(struct job *job, uint32_t tensor)
{
    struct round *round = &job->plan->round[job->plan->tensor[tensor].bucket];

    return step_round_active(job, round) ? round : &job->plan->round[job->plan->buckets + tensor];
}

bool step_begun(const struct job *job)
{
    return job->step.state > STEP_OPEN || job->step_since_us != 0;
}

/* What the local ranks pushed while the step was held. */
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

/* Nothing of the next step is in the residuals yet. */
static void note_rest(struct job *job)
{
    for (uint32_t t = 0; t < job->tensors; t++) {
        job->tensor[t].at_rest = *job->tensor[t].store;
    }
}

void step_open(struct job *job, bool recover)
{
    machine_fire(&job->step, STEP_ON_OPEN, STEP_OPEN);
    job->undelivered = 0;
    note_rest(job);
    for (uint32_t r = 0; r < job->plan->rounds; r++) {
        if (step_round_active(job, &job->plan->round[r]) && recover) {
            round_recover(&job->plan->round[r]);
        } else if (step_round_active(job, &job->plan->round[r])) {
            round_open(&job->plan->round[r]);
        }
    }
    if (job->step_since_us != 0) {
        catch_up(job);
    }
}

void step_start(struct job *job)
{
    for (uint32_t r = 0; r < job->plan->rounds && !job_ended(job); r++) {
        round_try(&job->plan->round[r]);
    }
    if (!job_ended(job)) {
        step_check(job);
    }
}

static void step_done(struct work *work)
{
    struct job *job = work->job;
    bool withdrawn = job->step.state == STEP_WITHDRAW;
    uint64_t step = job->store->steps_done;

    measure_step(job);
    store_count_step(job->store, withdrawn);
    job->counters.phase_us[PHASE_SETTLE] += job->core->now_us - job->settle_since_us;
    job->counters.dense_bytes += job->counters.elements * sizeof(float);
    for (uint32_t r = 0; r < job->plan->rounds; r++) {
        if (job->plan->round[r].machine.state == ROUND_DELIVERED) {
            round_close(&job->plan->round[r]);
        }
    }
    for (unsigned i = 0; i < job->ranks; i++) {
        if (job->rank[i]->machine.state != RANK_LEFT) {
            core_act(job->core, &(struct action){.type = ACTION_STEP,
                                    .session = job->rank[i]->session,
                                    .number = step,
                                    .status = store_step_status(job->store)});
        }
    }
    machine_fire(&job->step, STEP_ON_DONE, STEP_IDLE);
    job->step_since_us = 0;
    if (job->last_steps > 0 && job->store->steps_done >= job->last_steps) {
        job_fail_due(job);
    } else if (switch_hold(job)) {
        note_rest(job);
    } else {
        step_open(job, false);
    }
    if (!job_ended(job)) {
        replan_step(job);
    }
}

void step_check(struct job *job)
{
    uint64_t step = step_number(job);
    uint64_t bytes = 0;
    bool nonfinite = false;

    if (job->machine.state != JOB_ACTIVE || job->step.state != STEP_OPEN || job->undelivered > 0 ||
        job->verifying) {
        return;
    }
    for (unsigned i = 0; i < job->ranks; i++) {
        if (job->rank[i]->ended != step + 1) {
            return;
        }
    }
    for (uint32_t t = 0; t < job->tensors; t++) {
        const struct tensor *tensor = &job->tensor[t];
        const struct planned *planned = &job->plan->tensor[t];
        nonfinite = nonfinite || tensor->store->round_nonfinite != 0;
        bytes += (planned->dense ? tensor->numel : planned->sent.count * 4) * sizeof(float);
    }
    machine_fire(&job->step, STEP_ON_DELIVERED, nonfinite ? STEP_WITHDRAW : STEP_SETTLE);
    job->settle_since_us = job->core->now_us;
    core_compute(&job->settle, work_settle, step_done, bytes);
}
