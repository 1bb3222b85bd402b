/*
 * What a job waits for, as a sentence, and for how long: when its patience ends, the job fails with
 * that sentence. The node of a late rank knows its name, so others wait a little longer.
 */
#include <stdio.h>

#include "daemon/core/model.h"

#define RETRY_US 10000u /* of what failed for want of memory */

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

/* The first node of the view that is down, or that restarted and has not joined again; or -1. */
static int down_node(const struct job *job)
{
    for (unsigned i = 0; i < job->view_nodes; i++) {
        uint16_t node = job->view_node[i];
        if (!job_peer_is_up(job, node) || join_member(job, node)->incarnation == 0) {
            return node;
        }
    }
    return -1;
}

/* A tensor of the open step that some local rank has not pushed, and that rank. */
static bool missing_push(const struct job *job, const struct rank **late, uint32_t *tensor)
{
    uint64_t step = step_number(job);

    for (unsigned i = 0; job->step_since_us != 0 && i < job->ranks; i++) {
        for (uint32_t t = 0; job->rank[i]->ended != step + 1 && t < job->tensors; t++) {
            if (job->rank[i]->pushed[t] != step + 1) {
                *late = job->rank[i];
                *tensor = t;
                return true;
            }
        }
    }
    return false;
}

/* A local rank that has not called the plain operation that others have; NULL: all have. */
static const struct rank *missing_call(const struct job *job)
{
    for (unsigned i = 0; i < job->ranks; i++) {
        if (job->rank[i]->submitted != job->store->ops_done + 1) {
            return job->rank[i];
        }
    }
    return NULL;
}

/* A round that waits for the frame of another node, or NULL. */
static const struct round *late_round(const struct job *job)
{
    for (uint32_t r = 0; r < job->plan->rounds; r++) {
        if (round_late_node(&job->plan->round[r]) >= 0) {
            return &job->plan->round[r];
        }
    }
    return round_late_node(&job->op_round) >= 0 ? &job->op_round : NULL;
}

static void waiting_in_round(
    const struct round *round, const char *what, uint64_t number, char *text, size_t size)
{
    (void)snprintf(text, size, "node %d to send its part of %s %llu%s", round_late_node(round),
        what, (unsigned long long)number,
        round_relays(round) ? ", or a node that it waits for" : "");
}

static void waiting_in_switch(const struct job *job, char *text, size_t size)
{
    (void)snprintf(text, size,
        "all nodes to reach step %llu, where version %u of the policy begins",
        (unsigned long long)step_number(job), job->next_plan->change.version);
}

/* Nothing is under way, and the step from which the policy holds comes only when ranks train on. */
static void waiting_for_step(const struct job *job, char *text, size_t size)
{
    (void)snprintf(text, size,
        "ranks to begin step %llu; version %u of the policy holds from step %llu",
        (unsigned long long)step_number(job), job->next_plan->change.version,
        (unsigned long long)job->next_plan->change.step);
}

static void waiting_in_step(const struct job *job, char *text, size_t size)
{
    unsigned long long step = step_number(job);
    const struct round *round = late_round(job);
    const struct rank *late;
    uint32_t tensor;

    if (missing_push(job, &late, &tensor)) {
        (void)snprintf(text, size, "rank %u to push tensor '%s' of step %llu", late->number,
            job->tensor[tensor].spec.name, step);
    } else if (round != NULL) {
        waiting_in_round(round, "step", step, text, size);
    } else {
        (void)snprintf(text, size, "the computes of step %llu", step);
    }
}

static void waiting_in_op(const struct job *job, char *text, size_t size)
{
    unsigned long long number = job->store->ops_done;
    const struct round *round = late_round(job);
    const struct rank *late = missing_call(job);

    if (late != NULL) {
        (void)snprintf(text, size, "rank %u to call operation %llu", late->number, number);
    } else if (round != NULL) {
        waiting_in_round(round, "operation", number, text, size);
    } else {
        (void)snprintf(text, size, "operation %llu", number);
    }
}

const char *job_waiting_for(const struct job *job, char *text, size_t size)
{
    int node = down_node(job);

    text[0] = '\0';
    if (node >= 0) {
        (void)snprintf(text, size, "node %d, which %s", node,
            job_peer_is_up(job, (uint16_t)node) ? "restarted and has not joined again"
                                                : "does not answer");
    } else if (job->machine.state == JOB_FORMING) {
        join_missing_ranks(job, text, size);
    } else if (job->machine.state == JOB_PREPARED) {
        (void)snprintf(text, size, "the nodes of view %u to agree", job->promised);
    } else if (job->left_since_us != 0) {
        (void)snprintf(text, size, "the ranks of other nodes to leave");
    } else if (job->policy_switch.state >= SWITCH_HELD) {
        waiting_in_switch(job, text, size);
    } else if (job->machine.state == JOB_ACTIVE && job->step_since_us != 0) {
        waiting_in_step(job, text, size);
    } else if (job->machine.state == JOB_ACTIVE && job->op_since_us != 0) {
        waiting_in_op(job, text, size);
    } else if (job->policy_switch.state == SWITCH_PROPOSED) {
        waiting_for_step(job, text, size);
    }
    return text;
}

/* When the step or operation under way began; 0: there is none. */
static uint64_t busy_since(const struct job *job)
{
    uint64_t step = job->step_since_us, op = job->op_since_us;

    return step == 0 || (op != 0 && op < step) ? op : step;
}

/* Whether the wait is for a rank of this node. */
static bool is_culprit(const struct job *job)
{
    const struct rank *late;
    uint32_t tensor;

    return missing_push(job, &late, &tensor) ||
           (job->op_since_us != 0 && missing_call(job) != NULL);
}

/* When the job's patience ends; UINT64_MAX: it waits for nothing. */
static uint64_t patience(const struct job *job)
{
    uint64_t due = UINT64_MAX;

    if (job_ended(job)) {
        return due;
    }
    if (job->machine.state != JOB_ACTIVE) {
        due = job->forming_since_us + (job->view == 0 ? job->plan->policy.join_timeout_us
                                                      : job->plan->policy.wait_limit_us);
    } else if (busy_since(job) != 0) {
        due = busy_since(job) + job->plan->policy.push_timeout_us;
    } else if (job->left_since_us != 0) {
        due = job->left_since_us + job->plan->policy.push_timeout_us;
    }
    if (job->waiting_since_us != 0 && down_node(job) >= 0 &&
        job->waiting_since_us + job->plan->policy.wait_limit_us < due) {
        due = job->waiting_since_us + job->plan->policy.wait_limit_us;
    }
    return due;
}

/* How much longer a node waits that has nobody to blame: the node of the late rank, whose time is
 * up at about the same moment, knows its name. */
static uint64_t grace(const struct job *job)
{
    return job->plan->policy.push_timeout_us / 4;
}

uint64_t job_deadline(const struct job *job)
{
    uint64_t due = patience(job);

    if (job->untold) {
        return job->core->now_us + RETRY_US;
    }
    return due <= job->core->now_us ? due + grace(job) : due;
}

void job_check_time(struct job *job)
{
    uint64_t due = patience(job);
    char text[ERROR_TEXT_SIZE / 2];
    struct error error;

    if (down_node(job) < 0) {
        job->waiting_since_us = 0;
    }
    if (job->core->now_us < due ||
        (job->machine.state == JOB_ACTIVE && !is_culprit(job) && down_node(job) < 0 &&
            job->core->now_us < due + grace(job))) {
        return;
    }
    (void)error_set(&error, ADTOPK_ERR_TIMEOUT, "job '%s' waited too long for %s%s", job->key.name,
        job_waiting_for(job, text, sizeof(text)),
        job->machine.state == JOB_FORMING ? "; ranks of another user would be of another job" : "");
    job_fail(job, &error, true);
}
