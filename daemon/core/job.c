/*
 * The life of a job on this node: created by its first rank, running while its view is in force,
 * over when all ranks have left or when anything goes wrong that cannot be mended.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/estimate.h"
#include "daemon/core/hash.h"
#include "daemon/core/measure.h"
#include "daemon/core/model.h"
#include "daemon/core/plan.h"
#include "daemon/core/planning.h"

#define TO(state) (1u << (state))

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

/* Random choices of a run are those of every run with the same key, so that it can be repeated. */
static uint64_t job_seed(const struct job_key *key)
{
    return mix_text(mix_text(hash_mix(key->owner + 1u), key->name), key->run_id);
}

struct job *job_find(struct core *core, const struct job_key *key)
{
    struct job *newest = NULL;

    for (struct job *job = core->jobs; job != NULL; job = job->next) {
        if (!job_ended(job) && core_same_job(&job->key, key)) {
            newest = job;
        }
    }
    return newest;
}

struct job *job_by_number(struct core *core, uint64_t number)
{
    for (struct job *job = core->jobs; job != NULL; job = job->next) {
        if (!job_ended(job) && job->number == number) {
            return job;
        }
    }
    return NULL;
}

struct job *job_find_run(struct core *core, uint64_t run)
{
    for (struct job *job = core->jobs; job != NULL; job = job->next) {
        if (run != 0 && !job_ended(job) && (job->run != 0 ? job->run : job->next_run) == run) {
            return job;
        }
    }
    return NULL;
}

bool job_is_ending(const struct core *core, const struct job_key *key)
{
    for (const struct job *job = core->jobs; job != NULL; job = job->next) {
        if (job_ended(job) && core_same_job(&job->key, key)) {
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
    struct job **job_at = realloc(core->job_at, (core->job_count + 1) * sizeof(*job_at));
    struct job **end = &core->jobs;

    core->job_at = job_at != NULL ? job_at : core->job_at;

    if (plan == NULL) {
        return NULL;
    }
    if (failure == NULL || job_at == NULL) {
        free(failure);
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
    job->number = ++core->opened_jobs;
    job->run = event->open.run;
    job->seed = job_seed(&job->key);
    job->world_size = event->open.world_size;
    job->forming_since_us = core->now_us;
    job->moved_us = core->now_us;
    machine_init(&job->machine, &job_machine, &core->trace, job->number);
    machine_init(&job->step, &step_machine, &core->trace, job->number);
    machine_init(&job->policy_switch, &switch_machine, &core->trace, job->number);
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = job;
    core->job_at[core->job_count++] = job;
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
    switch_drop_turn(job);
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
    free(job->next_job);
    free(job);
}

static void drop_from_index(struct core *core, const struct job *job)
{
    uint32_t at = 0;

    while (core->job_at[at] != job) {
        at++;
    }
    core->job_count--;
    (void)memmove(
        &core->job_at[at], &core->job_at[at + 1], (core->job_count - at) * sizeof(struct job *));
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
    drop_from_index(job->core, job);
    job->core->ended--;
    for (unsigned i = 0; i < job->ranks; i++) {
        memory->release_session(memory->context, job->rank[i]->session);
    }
    memory->release_job(memory->context, job->number);
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
    job->core->ended++;
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
    job->core->ended++;
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

bool job_is_left(const struct job *job)
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

/* Tells the other nodes once in every view: a node that restarted has forgotten it. */
void job_tell_leave(struct job *job)
{
    if (job->left_view != job->view) {
        job->left_view = job->view;
        peer_send_leave(job);
    }
}

/* When all local ranks have left, the job stays until those of the other nodes have left too: one
 * of them may still need a copy of the last update. */
void job_try_leave(struct job *job)
{
    if (job_ended(job) || !job_is_left(job)) {
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
    job_tell_leave(job);
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
    job->leaving_us = job->leaving_us != 0 ? job->leaving_us : job->core->now_us;
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

bool job_is_done_with(const struct job *job, uint16_t node)
{
    const struct member *member = join_member(job, node);

    return member != NULL && member->left && member->left_step <= step_number(job) &&
           !step_begun(job) && job->step_since_us == 0 && job->op_since_us == 0;
}

/* Whether the job cannot go on without the node's daemon as it was. A daemon that came back can be
 * waited for only where it may have found its stores again. */
static bool job_is_lost(const struct job *job, enum peer_loss loss)
{
    return loss == PEER_GONE || job->plan->policy.on_peer_loss == PEER_LOSS_FAIL ||
           (loss == PEER_RESTARTED && job->core->config.memory.has_store == NULL);
}

void job_peer_lost(struct job *job, uint16_t node, enum peer_loss loss)
{
    static const char *const why[] = {[PEER_SILENT] = "does not answer",
        [PEER_RESTARTED] = "restarted",
        [PEER_GONE] = "is gone: no daemon listens at its address"};
    struct error error;

    if (job_ended(job) || view_index(job, node) < 0 || job_is_done_with(job, node)) {
        return;
    }
    if (job->last_steps > 0) {
        job_fail_due(job); /* what its last step needs may be lost */
        return;
    }
    if (job->waiting_since_us == 0) {
        job->waiting_since_us = job->core->now_us;
    }
    if (job_is_lost(job, loss)) {
        (void)error_set(&error, ADTOPK_ERR_PEER, "node %u %s", node, why[loss]);
        job_fail(job, &error, true);
    }
}
