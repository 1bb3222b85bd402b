/*
 * The life of a job on this node: created by its first rank, running while its view is in force,
 * over when all ranks have left or when anything goes wrong that cannot be mended.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/estimate.h"
#include "daemon/core/hash.h"
#include "daemon/core/measure.h"
#include "daemon/core/model.h"
#include "daemon/core/plan.h"
#include "daemon/core/planning.h"

#define TO(state) (1u << (state))
#define RETRY_US 10000u /* of what failed for want of memory */

const struct machine_table job_machine = {
    .name = "job",
    .states = JOB_STATES,
    .events = JOB_EVENTS,
    .state_name = {"forming", "prepared", "active", "ended"},
    .event_name = {"prepare", "commit", "fail", "leave"},
    .next =
        {
            [JOB_FORMING] =
                {
                    [JOB_ON_PREPARE] = TO(JOB_PREPARED),
                    [JOB_ON_FAIL] = TO(JOB_ENDED),
                    [JOB_ON_LEAVE] = TO(JOB_ENDED),
                },
            [JOB_PREPARED] =
                {
                    [JOB_ON_PREPARE] = TO(JOB_PREPARED),
                    [JOB_ON_COMMIT] = TO(JOB_ACTIVE),
                    [JOB_ON_FAIL] = TO(JOB_ENDED),
                    [JOB_ON_LEAVE] = TO(JOB_ENDED),
                },
            [JOB_ACTIVE] =
                {
                    [JOB_ON_PREPARE] = TO(JOB_PREPARED),
                    [JOB_ON_FAIL] = TO(JOB_ENDED),
                    [JOB_ON_LEAVE] = TO(JOB_ENDED),
                },
        },
};

static uint64_t mix_text(uint64_t hash, const char *text)
{
    do {
        hash = hash_mix(hash ^ (uint8_t)*text);
    } while (*text++ != '\0');
    return hash;
}

uint64_t core_job_id(const struct job_key *key)
{
    uint64_t hash = mix_text(hash_mix(key->owner + 1u), key->name);

    hash = mix_text(hash, key->run_id);
    return hash != 0 ? hash : 1;
}

struct job *job_find(struct core *core, uint64_t id)
{
    for (struct job *job = core->jobs; job != NULL; job = job->next) {
        if (job->id == id && !job_ended(job)) {
            return job;
        }
    }
    return NULL;
}

/* A job that has ended but still computes: its memory is in use. */
bool job_is_ending(const struct core *core, uint64_t id)
{
    for (const struct job *job = core->jobs; job != NULL; job = job->next) {
        if (job->id == id && job_ended(job)) {
            return true;
        }
    }
    return false;
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

struct plan *job_first_plan(struct core *core, const struct event *event, struct error *err)
{
    struct plan *plan = NULL;
    struct policy *policy = malloc(sizeof(*policy));
    bool parsed = policy != NULL;

    if (parsed) {
        *policy = core->policy;
        parsed = event->open.policy == NULL ||
                 policy_parse(policy, event->open.policy, err) == ADTOPK_OK;
        plan = parsed ? plan_create(policy) : NULL;
    }
    free(policy);
    if (plan == NULL && (policy == NULL || parsed)) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for job '%s'", event->open.key.name);
    }
    return plan;
}

struct job *job_create(struct core *core, const struct event *event, struct error *err)
{
    struct plan *plan = job_first_plan(core, event, err);
    struct job *job = plan != NULL ? calloc(1, sizeof(*job)) : NULL;
    struct failure *failure = job != NULL ? calloc(1, sizeof(*failure)) : NULL;
    struct job **end = &core->jobs;

    if (plan == NULL) {
        return NULL;
    }
    if (failure == NULL) {
        free(job);
        plan_free(plan);
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for job '%s'", event->open.key.name);
        return NULL;
    }
    failure->references = 1;
    job->failure = failure;
    job->plan = plan;
    job->policy_hash = hash_text(HASH_EMPTY, plan->text);
    job->core = core;
    job->settle.job = job;
    job->verification.job = job;
    job->key = event->open.key;
    job->id = core_job_id(&job->key);
    job->world_size = event->open.world_size;
    job->forming_since_us = core->now_us;
    machine_init(&job->machine, &job_machine, &core->trace, job->id);
    machine_init(&job->step, &step_machine, &core->trace, job->id);
    machine_init(&job->policy_switch, &switch_machine, &core->trace, job->id);
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = job;
    return job;
}

void job_drop_failure(struct failure *failure)
{
    if (failure != NULL && --failure->references == 0) {
        free(failure);
    }
}

static void member_free(struct member *member)
{
    free(member->rank);
    free(member->tensor);
    free(member->delivered);
    free(member->copied);
    free(member->newer);
    if (member->estimates != NULL) {
        estimate_free(member->estimates);
    }
    free(member->estimates);
    free(member);
}

void job_free(struct job *job)
{
    measure_end(job);
    planning_free(job->planning);
    plan_free(job->plan);
    plan_free(job->next_plan);
    round_free(&job->op_round);
    frame_drop_early(job);
    fetch_drop(job);
    while (job->early_splits != NULL) {
        struct split *split = job->early_splits;
        job->early_splits = split->next;
        free(split);
    }
    for (unsigned i = 0; i < job->ranks; i++) {
        rank_free(job->rank[i]);
    }
    for (unsigned i = 0; i < job->members; i++) {
        member_free(job->member[i]);
    }
    ticket_free(job->asked);
    ticket_free(job->verify);
    job_drop_failure(job->failure);
    free(job->tensor);
    free(job->name_slot);
    free(job->rank);
    free(job->member);
    free(job->view_node);
    free(job->next_node);
    free(job->next_incarnation);
    free(job);
}

void job_reap(struct job *job)
{
    const struct core_memory *memory = &job->core->config.memory;
    struct job **link = &job->core->jobs;

    if (!job_ended(job) || job->computing > 0 || job->untold) {
        return;
    }
    while (*link != job) {
        link = &(*link)->next;
    }
    *link = job->next;
    for (unsigned i = 0; i < job->ranks; i++) {
        memory->release_session(memory->context, job->rank[i]->session);
    }
    memory->release_job(memory->context, job->id);
    job_free(job);
}

/* Who waits for an answer about the job gets one. */
static void answer_tickets(struct job *job, const struct error *error)
{
    switch_drop(job, error);
    verify_drop(job, error);
}

void job_end(struct job *job)
{
    struct error error;

    (void)error_set(&error, ADTOPK_ERR_STATE, "job '%s' has ended", job->key.name);
    answer_tickets(job, &error);
    machine_fire(&job->machine, JOB_ON_LEAVE, JOB_ENDED);
}

void job_stop(struct job *job)
{
    struct error error;

    if (job_ended(job) ||
        (job->machine.state == JOB_ACTIVE && (step_begun(job) || job->op_since_us != 0))) {
        return;
    }
    (void)error_set(
        &error, ADTOPK_ERR_PEER, "node %u: its daemon is stopping", job->core->config.node);
    job->last_steps = step_number(job);
    job_fail(job, &error, true);
}

/* Tells the peers why the job has failed; again at the next event if memory is too short for it. */
void job_tell_failure(struct job *job)
{
    if (job->untold) {
        job->out_of_memory = false;
        peer_send_fail(job, &job->failure->error);
        job->untold = job->out_of_memory;
    }
}

void job_fail(struct job *job, const struct error *error, bool tell_peers)
{
    if (job_ended(job)) {
        return;
    }
    job->failure->error = *error;
    job->untold = tell_peers;
    job_tell_failure(job);
    for (unsigned i = 0; i < job->ranks; i++) {
        if (job->rank[i]->machine.state != RANK_LEFT) {
            job->failure->references++;
            core_act(job->core, &(struct action){.type = ACTION_FAILED,
                                    .session = job->rank[i]->session,
                                    .status = error->code,
                                    .error = &job->failure->error});
        }
    }
    answer_tickets(job, error);
    machine_fire(&job->machine, JOB_ON_FAIL, JOB_ENDED);
}

void job_fail_later(struct job *job, const struct error *error, uint64_t steps)
{
    if (job->last_steps == 0) {
        job->failure->error = *error;
        job->last_steps = steps;
    }
}

void job_fail_due(struct job *job)
{
    struct error error = job->failure->error;

    if (job->last_steps > 0 && !job_ended(job)) {
        job_fail(job, &error, false);
    }
}

static bool all_left(const struct job *job)
{
    for (unsigned i = 0; i < job->ranks; i++) {
        if (job->rank[i]->machine.state != RANK_LEFT) {
            return false;
        }
    }
    return true;
}

/* Whether the ranks of all other nodes have left. */
static bool others_left(const struct job *job)
{
    for (unsigned i = 0; i < job->view_nodes; i++) {
        const struct member *member = join_member(job, job->view_node[i]);
        if (member->node != job->core->config.node && !member->left) {
            return false;
        }
    }
    return true;
}

/* When all local ranks have left, the job stays until those of the other nodes have left too: one
 * of them may still need a copy of the last update. */
void job_try_leave(struct job *job)
{
    if (job_ended(job) || !all_left(job)) {
        return;
    }
    if (job->machine.state == JOB_FORMING) {
        job_end(job);
        return;
    }
    if (job->machine.state != JOB_ACTIVE && (job->view == 0 || !others_left(job))) {
        return; /* the view changes: again when it is in force */
    }
    if (job->left_since_us == 0) {
        job->left_since_us = job->core->now_us;
    }
    peer_send_leave(job);
    if (others_left(job)) {
        job_end(job);
    }
}

void job_peer_left(struct job *job, uint16_t node, uint64_t steps_done)
{
    struct member *member = join_member(job, node);
    struct error error;

    if (member == NULL) {
        return;
    }
    member->left = true;
    member->left_step = steps_done;
    if (job->step_since_us != 0 && step_number(job) >= steps_done) {
        (void)error_set(&error, ADTOPK_ERR_PEER,
            "the ranks of node %u left the job before step %llu", node,
            (unsigned long long)step_number(job));
        job_fail(job, &error, true);
        return;
    }
    job_try_leave(job);
}

static bool peer_is_up(const struct core *core, uint16_t node)
{
    for (unsigned i = 0; i < core->peers; i++) {
        if (core->peer[i].node == node) {
            return core->peer[i].up;
        }
    }
    return node == core->config.node;
}

void job_peer_down(struct job *job, uint16_t node)
{
    struct error error;

    if (job_ended(job) || view_index(job, node) < 0) {
        return;
    }
    if (job->last_steps > 0) {
        job_fail_due(job); /* what its last step needs may be lost */
        return;
    }
    if (job->waiting_since_us == 0) {
        job->waiting_since_us = job->core->now_us;
    }
    if (job->plan->policy.on_peer_loss == PEER_LOSS_FAIL) {
        (void)error_set(&error, ADTOPK_ERR_PEER, "node %u %s", node,
            peer_is_up(job->core, node) ? "restarted" : "does not answer");
        job_fail(job, &error, true);
    }
}

/* The first node of the view that is down, or that restarted and has not joined again; or -1. */
static int down_node(const struct job *job)
{
    for (unsigned i = 0; i < job->view_nodes; i++) {
        uint16_t node = job->view_node[i];
        if (!peer_is_up(job->core, node) || join_member(job, node)->incarnation == 0) {
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

/* A node whose frame some round waits for, or -1. */
static int late_node(const struct job *job)
{
    for (uint32_t r = 0; r < job->plan->rounds; r++) {
        int node = round_late_node(&job->plan->round[r]);
        if (node >= 0) {
            return node;
        }
    }
    return round_late_node(&job->op_round);
}

static void waiting_in_switch(const struct job *job, char *text, size_t size)
{
    (void)snprintf(text, size,
        "all nodes to reach step %llu, where version %u of the policy begins",
        (unsigned long long)step_number(job), job->next_plan->change.version);
}

static void waiting_in_step(const struct job *job, char *text, size_t size)
{
    unsigned long long step = step_number(job);
    const struct rank *late;
    uint32_t tensor;

    if (missing_push(job, &late, &tensor)) {
        (void)snprintf(text, size, "rank %u to push tensor '%s' of step %llu", late->number,
            job->tensor[tensor].spec.name, step);
    } else if (late_node(job) >= 0) {
        (void)snprintf(text, size, "node %d to send its part of step %llu", late_node(job), step);
    } else {
        (void)snprintf(text, size, "the computes of step %llu", step);
    }
}

static void waiting_in_op(const struct job *job, char *text, size_t size)
{
    unsigned long long number = job->store->ops_done;
    const struct rank *late = missing_call(job);

    if (late != NULL) {
        (void)snprintf(text, size, "rank %u to call operation %llu", late->number, number);
    } else if (late_node(job) >= 0) {
        (void)snprintf(
            text, size, "node %d to send its part of operation %llu", late_node(job), number);
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
            peer_is_up(job->core, (uint16_t)node) ? "restarted and has not joined again"
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

/* Jobs of different users are different jobs, which may surprise whoever started both. */
static bool has_namesake(const struct job *job)
{
    for (const struct job *other = job->core->jobs; other != NULL; other = other->next) {
        if (other->key.owner != job->key.owner && strcmp(other->key.name, job->key.name) == 0 &&
            strcmp(other->key.run_id, job->key.run_id) == 0) {
            return true;
        }
    }
    return false;
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
        has_namesake(job) ? "; another user has a job of this name and run id on this node" : "");
    job_fail(job, &error, true);
}
