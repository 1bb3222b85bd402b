#include "daemon/job/job_state.h"

#include "daemon/job/machine.h"
#include "daemon/job/members.h"
#include "daemon/job/store.h"

void job_touch(struct job *job)
{
    if (!job->advance.touched) {
        job->advance.touched = true;
        job->advance.next = job->core->touched;
        job->core->touched = job;
    }
}

void job_regroup(struct job *job)
{
    job->advance.regroup = true;
    job_touch(job);
}

void job_note_since(const struct job *job, uint64_t *since_us)
{
    if (*since_us == 0) {
        *since_us = job->core->now_us;
    }
}

struct rank *job_rank(const struct job *job, uint32_t number)
{
    for (unsigned i = 0; i < job->ranks; i++) {
        if (job->rank[i]->number == number) {
            return job->rank[i];
        }
    }
    return NULL;
}

bool job_is_left(const struct job *job)
{
    for (unsigned i = 0; i < job->ranks; i++) {
        if (job->rank[i]->machine.state != RANK_LEFT) {
            return false;
        }
    }
    return true;
}

bool job_is_done_with(const struct job *job, uint16_t node)
{
    const struct member *member = members_find(job, node);

    return member != NULL && member->left && member->left_step <= step_number(job) &&
           !step_begun(job) && job->step.since_us == 0 && job->op.since_us == 0;
}

bool job_peer_is_up(const struct job *job, uint16_t node)
{
    const struct core *core = job->core;

    for (unsigned i = 0; i < core->peers; i++) {
        if (core->peer[i].node == node) {
            return core->peer[i].up;
        }
    }
    return node == core->config.node;
}

uint64_t step_number(const struct job *job)
{
    return job->store != NULL ? job->store->steps_done : 0;
}

uint32_t step_rounds(const struct job *job)
{
    const struct plan *plan = job->plan;

    return plan->split || plan->rounds < plan->buckets ? plan->rounds : plan->buckets;
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
    return job->step.machine.state > STEP_OPEN || job->step.since_us != 0;
}

bool residuals_are_free(const struct job *job)
{
    return job->advance.computing == 0 && !job->lending.running;
}

uint64_t round_number(const struct round *round)
{
    const struct store_header *store = round->job->store;

    return round->op ? store->ops_done : store->steps_done;
}

bool round_delivered(const struct round *round)
{
    const struct job *job = round->job;

    for (unsigned i = 0; i < round->tensors; i++) {
        const struct store_tensor *store = job->tensor[round->tensor[i]].store;
        if (store->step != job->store->steps_done || store->stage < STAGE_DELIVERED) {
            return false;
        }
    }
    return !round->op;
}

int round_late_node(const struct round *round)
{
    const struct exchange *exchange = &round->exchange;

    for (unsigned m = 0; round->machine.state == ROUND_EXCHANGE && m < exchange->members; m++) {
        if (exchange->ops->expects(exchange, round->phase, m) &&
            round->received[round->phase * exchange->members + m] == NULL) {
            return exchange->node[m];
        }
    }
    return -1;
}

/* A node sends its frame of a phase when it has the frames of the phase before. If some nodes send
 * this node none in the first phase, they may not have begun, and others wait for them. */
bool round_relays(const struct round *round)
{
    const struct exchange *exchange = &round->exchange;
    unsigned heard = 1;

    for (unsigned m = 0; round->phase > 0 && m < exchange->members; m++) {
        heard += exchange->ops->expects(exchange, 0, m) ? 1 : 0;
    }
    return round->phase > 0 && heard < exchange->members;
}

const char *job_state_name(const struct job *job)
{
    if (!job_ended(job)) {
        return machine_state(&job->machine);
    }
    return job->ending.failure->error.text[0] != '\0' ? JOB_FAILED : JOB_DONE;
}
