#include "daemon/core/inspect.h"

#include <stdio.h>
#include <string.h>

#include "daemon/compute/launch_describe.h"
#include "daemon/compute/leaving.h"
#include "daemon/compute/planning.h"
#include "daemon/core/rank.h"
#include "daemon/core/waiting.h"
#include "daemon/job/due.h"
#include "daemon/job/job_index.h"
#include "daemon/job/job_state.h"
#include "daemon/job/measure.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/roster.h"
#include "daemon/job/store.h"
#include "daemon/job/verified.h"

uint32_t core_job_count(const struct core *core)
{
    return core->job_count;
}

uint32_t core_staying_count(const struct core *core)
{
    uint32_t count = 0;

    for (const struct job *job = core->jobs; job != NULL; job = job->places.next) {
        count += leaving_stays(job) ? 1 : 0;
    }
    return count;
}

static void fill_waiting(const struct job *job, struct job_info *info)
{
    const struct waiting waiting = waiting_find(job);

    info->waiting = waiting;
    info->stuck = waiting_is_stuck(job, &waiting);
    launch_describe(job, info->carrier, sizeof(info->carrier));
    (void)waiting_text(job, &waiting, info->waiting_for, sizeof(info->waiting_for));
    if (waiting.kind == WAIT_PUSH) {
        (void)snprintf(info->waiting_tensor, sizeof(info->waiting_tensor), "%s",
            job->tensor[waiting.tensor].spec.name);
    }
}

static void fill_job(const struct job *job, struct job_info *info)
{
    *info = job->figures.counters;
    info->id = job->number;
    info->key = job->key;
    info->state = job_state_name(job);
    info->world_size = job->run.world_size;
    info->ranks = job->run.ranks;
    info->local_ranks = job->ranks;
    info->nodes = job->in_force.nodes;
    info->view = job->view;
    info->tensors = job->tensors;
    info->buckets = job->plan->buckets;
    info->sparse_elements = job->plan->sparse_elements;
    info->policy.text = job->plan->text;
    info->policy.version = job->plan->change.version;
    info->policy.step = job->plan->change.step;
    info->policy.next_version =
        job->switching.next != NULL ? job->switching.next->change.version : 0;
    info->policy.next_step = job->switching.next != NULL ? job->switching.next->change.step : 0;
    info->checkpoint.due = due_saved_as(job);
    if (job->store != NULL) {
        info->steps_done = job->store->steps_done;
        info->steps_withdrawn = job->store->steps_withdrawn[info->steps_done % 2];
    }
    fill_waiting(job, info);
    (void)snprintf(info->reason, sizeof(info->reason), "%s", job->ending.failure->error.text);
}

bool core_job_info(const struct core *core, uint32_t index, struct job_info *info)
{
    if (index < core->job_count) {
        fill_job(core->job_at[index], info);
    }
    return index < core->job_count;
}

static const struct job *find(const struct core *core, uint64_t id)
{
    return job_index_first(core, BY_NUMBER, id);
}

struct residual_info core_residual_info(const struct core *core, uint64_t id)
{
    const struct job *job = find(core, id);

    return job != NULL ? verified_residual(job) : (struct residual_info){.elements = 0};
}

bool core_find_job(const struct core *core, uint64_t id, struct job_info *info)
{
    const struct job *job = find(core, id);

    if (job != NULL) {
        fill_job(job, info);
    }
    return job != NULL;
}

const char *core_unmatched_rule(const struct core *core, uint64_t job_id, uint32_t index)
{
    const struct job *job = find(core, job_id);

    return job != NULL ? plan_unmatched_rule(job->plan, index) : NULL;
}

bool core_policy_change(
    const struct core *core, uint64_t job_id, uint32_t index, struct policy_past *past)
{
    const struct job *job = find(core, job_id);
    uint32_t version = job != NULL ? job->plan->change.version : 0;

    if (index >= version || index >= POLICY_CHANGES) {
        return false;
    }
    *past = job->history.past[(version - index - 1) % POLICY_CHANGES];
    return past->change.version == version - index; /* a restarted daemon knows the last one only */
}

bool core_plan_info(const struct core *core, uint64_t job_id, struct plan_info *info)
{
    const struct job *job = find(core, job_id);

    if (job == NULL || job->in_force.nodes == 0) {
        return false;
    }
    *info = (struct plan_info){.replan = job->plan->policy.replan,
        .coordinator = membership_coordinator(&job->in_force),
        .bucket_bytes = job->plan->bucket_bytes,
        .text = job->plan->policy.plan,
        .why = ""};
    measure_tell(job, info);
    return true;
}

bool core_plan_candidate(
    const struct core *core, uint64_t job_id, uint32_t index, struct planner_candidate *candidate)
{
    const struct job *job = find(core, job_id);

    return job != NULL && job->figures.planning != NULL && !job->figures.planning->dropped &&
           planning_candidate(job->figures.planning, index, candidate);
}

bool core_rank_info(
    const struct core *core, uint64_t job_id, uint32_t index, struct rank_info *info)
{
    const struct job *job = find(core, job_id);

    return job != NULL && roster_local(job, index, info);
}

const struct node_ranks *core_roster(const struct core *core, uint64_t job_id, uint32_t index)
{
    const struct job *job = find(core, job_id);

    return job != NULL ? roster_node(job, index) : NULL;
}

bool core_tensor_info(
    const struct core *core, uint64_t job_id, uint32_t number, struct tensor_info *info)
{
    const struct job *job = find(core, job_id);
    const struct tensor *tensor;
    const struct plan_tensor *planned;
    const struct tensor_policy *policy;

    if (job == NULL || number >= job->tensors || job->plan->rounds == 0) {
        return false;
    }
    tensor = &job->tensor[number];
    planned = &job->plan->tensor[number];
    policy = &planned->policy;
    *info = (struct tensor_info){
        .spec = tensor->spec,
        .numel = tensor->numel,
        .sparsifier = planned->dense ? "dense" : policy->sparsifier->name,
        .collective = (planned->dense || planned->known ? policy->dense_collective
                                                        : policy->sparse_collective)
                          ->name,
        .density = planned->dense ? 1.0 : policy->params.density,
        .scope = policy_scope_name(planned->by_rank ? SCOPE_RANK : SCOPE_NODE),
        .values = policy_value_name(planned->dense ? policy->dense_values : policy->values),
        .indices = planned->dense ? "none" : policy_index_name(policy->indices),
        .bucket = planned->bucket,
        .turn = tensor->at_rest.turn,
        .bytes = tensor->bytes,
        .count = planned->dense ? 0 : planned->count,
        .choice = planned->choice,
        .allowed = planned->allowed,
        .lookahead = (double)tensor->lookahead,
        .lookahead_policy = planned->dense ? 0 : policy->lookahead,
        .arrival_us =
            job->figures.measure != NULL ? job->figures.measure->own.arrival_us[number] : -1,
        .verified = tensor->verified,
        .read = tensor->read,
    };
    (void)memcpy(info->input, tensor->at_rest.input, sizeof(info->input));
    (void)memcpy(info->applied, store_applied(&tensor->at_rest), sizeof(info->applied));
    (void)memcpy(info->lost, tensor->at_rest.lost, sizeof(info->lost));
    return true;
}

struct recorded *core_read_records(const struct core *core, uint64_t job_id)
{
    const struct job *job = find(core, job_id);

    return job != NULL ? recorded_of(&job->figures.recorder, core->config.node, core->now_us)
                       : NULL;
}

uint32_t core_peer_count(const struct core *core)
{
    return core->peers;
}

bool core_peer_info(const struct core *core, uint32_t index, struct peer_info *info)
{
    if (index >= core->peers) {
        return false;
    }
    *info = (struct peer_info){
        .node = core->peer[index].node,
        .up = core->peer[index].up,
        .incarnation = links_incarnation(core->links, core->peer[index].node),
    };
    return links_stats(core->links, info->node, &info->link);
}

uint64_t core_peer_answers(const struct core *core, uint16_t node)
{
    return links_is_up(core->links, node) ? links_incarnation(core->links, node) : 0;
}

struct link_refused core_refused(const struct core *core)
{
    return links_refused(core->links);
}

const struct job_key *core_job_key(const struct core *core, uint64_t id)
{
    const struct job *job = find(core, id);

    return job != NULL ? &job->key : NULL;
}

const struct engine_memory *core_job_arenas(const struct core *core, uint64_t id)
{
    const struct job *job = find(core, id);

    return job != NULL ? &job->layout.arenas : NULL;
}

uint32_t core_jobs_beside(const struct core *core, const struct job_key *key)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < core->job_count; i++) {
        const struct job *job = core->job_at[i];
        if (core_same_job(&job->key, key) && !job_ended(job) && !job_is_left(job)) {
            return 0; /* the rank joins it */
        }
        count += job->key.owner == key->owner;
    }
    return count;
}

const struct job_key *core_session_key(const struct core *core, session_id session)
{
    const struct rank *rank = rank_find(core, session);

    return rank != NULL ? &rank->job->key : NULL;
}

uint64_t core_session_job(const struct core *core, session_id session)
{
    const struct rank *rank = rank_find(core, session);

    return rank != NULL ? rank->job->number : 0;
}
