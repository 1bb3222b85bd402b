/*
 * The coordinator of a view: the lowest node that has ranks of the job.
 *
 * The happy path: propose (a number above all that were promised), collect every member's state,
 * and decide: rounds that somebody delivered are completed everywhere from that copy, all others
 * are retried; a bucket that somebody split is split for all. A member that restarts meanwhile, or
 * has promised a higher number, makes it begin again.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/hash.h"
#include "daemon/core/view.h"

/* The number of the run that a first view begins: no other daemon, and no other start of this one,
 * gives the same. A run to which some member returns keeps its number. */
static uint64_t coordinate_run(const struct job *job)
{
    uint64_t run = job->run;

    for (unsigned i = 0; run == 0 && i < job->members; i++) {
        run = join_in_view(job->member[i]) ? job->member[i]->run : 0;
    }
    if (run == 0) {
        run = hash_mix(job->core->config.incarnation ^ hash_mix(job->number));
    }
    return run != 0 ? run : 1;
}

static void propose(struct job *job, uint32_t view)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPrepare prepare = ADTOPK__PEER_PREPARE__INIT;

    prepare.view = view;
    prepare.members = malloc(job->members * sizeof(*prepare.members));
    prepare.incarnations = malloc(job->members * sizeof(*prepare.incarnations));
    prepare.jobs = malloc(job->members * sizeof(*prepare.jobs));
    prepare.run = coordinate_run(job);
    if (prepare.members == NULL || prepare.incarnations == NULL || prepare.jobs == NULL) {
        view_fail(job, ADTOPK_ERR_MEMORY, "no memory to propose view %u", view);
    } else {
        for (unsigned i = 0; i < job->members; i++) {
            struct member *member = job->member[i];
            if (join_in_view(member)) {
                prepare.members[prepare.n_members++] = member->node;
                prepare.incarnations[prepare.n_incarnations++] = member->incarnation;
                prepare.jobs[prepare.n_jobs++] = member->job;
                member->answered = false;
            }
        }
        job->proposed = view;
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_PREPARE;
        message.prepare = &prepare;
        peer_send_all(job, &message);
        view_prepare(job, job->core->config.node, &prepare);
    }
    free(prepare.members);
    free(prepare.incarnations);
    free(prepare.jobs);
}

/* Whether a proposal to exactly these members waits for answers. Another one would only throw the
 * answers away that are on their way. */
static bool coordinate_is_proposed(const struct job *job)
{
    unsigned at = 0;

    if (job->proposed == 0) {
        return false;
    }
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (!join_in_view(member)) {
            continue;
        }
        if (at == job->next_nodes || job->next_node[at] != member->node ||
            job->next_incarnation[at] != member->incarnation || job->next_job[at] != member->job) {
            return false;
        }
        at++;
    }
    return at == job->next_nodes;
}

/* Proposes a view if this node is to be its coordinator and there is reason for a new one. */
void coordinate(struct job *job)
{
    uint32_t highest = job->promised > job->proposed ? job->promised : job->proposed;
    bool reason = job->view == 0;

    if (!join_complete(job)) {
        return;
    }
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (!join_in_view(member)) {
            continue;
        }
        if (member->node < job->core->config.node) {
            return; /* somebody else's to propose */
        }
        highest = member->view > highest ? member->view : highest;
        reason = reason || member->anew;
    }
    if (reason && (highest > job->proposed || !coordinate_is_proposed(job))) {
        propose(job, highest + 1);
    }
}

void coordinate_above(struct job *job, uint32_t view)
{
    propose(job, view + 1);
}

/* What the coordinator puts together; `round` has room for `capacity` entries. */
struct decision {
    Adtopk__PeerRound *round;
    Adtopk__PeerRound **list;
    size_t count;
    size_t capacity;
};

static enum adtopk_status decide(
    struct decision *decision, uint64_t number, uint32_t bucket, bool op, uint16_t holder)
{
    if (decision->count == decision->capacity) {
        size_t capacity = decision->capacity * 2 + 16;
        Adtopk__PeerRound *grown = realloc(decision->round, capacity * sizeof(*grown));
        if (grown == NULL) {
            return ADTOPK_ERR_MEMORY;
        }
        decision->round = grown;
        decision->capacity = capacity;
    }
    adtopk__peer_round__init(&decision->round[decision->count]);
    decision->round[decision->count].number = number;
    decision->round[decision->count].bucket = bucket;
    decision->round[decision->count].operation = op;
    decision->round[decision->count].holder = holder;
    decision->count++;
    return ADTOPK_OK;
}

/* Checks that the answers fit together; the job fails if they do not. A new store is in order as
 * long as nothing was delivered anywhere: then nothing that it should hold has been applied. */
static bool coherent(struct job *job, uint64_t *steps, uint64_t *ops)
{
    bool delivered = false;

    *steps = 0;
    *ops = 0;
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (join_in_view(member)) {
            *steps = member->steps_done > *steps ? member->steps_done : *steps;
            *ops = member->ops_done > *ops ? member->ops_done : *ops;
            delivered = delivered || member->delivered_count > 0;
        }
    }
    delivered = delivered || *steps > 0 || *ops > 0;
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (join_in_view(member) && member->fresh && delivered) {
            view_fail(job, ADTOPK_ERR_LOST,
                "node %u came back without its residuals; the job is at step %llu", member->node,
                (unsigned long long)*steps);
            return false;
        }
        if (join_in_view(member) &&
            (member->steps_done + 1 < *steps || member->ops_done + 1 < *ops)) {
            view_fail(job, ADTOPK_ERR_LOST, "node %u is at step %llu while others are at %llu",
                member->node, (unsigned long long)member->steps_done, (unsigned long long)*steps);
            return false;
        }
    }
    return true;
}

/* Lists every round that somebody delivered and somebody else may lack. */
static enum adtopk_status decide_rounds(
    const struct job *job, uint64_t steps, uint64_t ops, struct decision *decision)
{
    enum adtopk_status status = ADTOPK_OK;
    bool behind = false, ops_behind = false;

    for (unsigned i = 0; i < job->members; i++) {
        behind = behind || (join_in_view(job->member[i]) && job->member[i]->steps_done < steps);
        ops_behind = ops_behind || (join_in_view(job->member[i]) && job->member[i]->ops_done < ops);
    }
    for (unsigned i = 0; status == ADTOPK_OK && i < job->members; i++) {
        const struct member *member = job->member[i];
        if (!join_in_view(member)) {
            continue;
        }
        if (behind && member->steps_done == steps) {
            status = decide(decision, steps - 1, ALL_ROUNDS, false, member->node);
            behind = false;
        }
        if (status == ADTOPK_OK && ops_behind && member->ops_done == ops) {
            status = decide(decision, ops - 1, 0, true, member->node);
            ops_behind = false;
        }
        for (uint32_t d = 0;
             status == ADTOPK_OK && member->steps_done == steps && d < member->delivered_count;
             d++) {
            status = decide(decision, steps, member->delivered[d], false, member->node);
        }
    }
    return status;
}

/* Whether every member holds for the next policy. */
static bool all_hold(const struct job *job)
{
    if (job->next_plan == NULL) {
        return false;
    }
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (join_in_view(member) && member->holds != job->next_plan->change.version) {
            return false;
        }
    }
    return true;
}

/* The policy from now on: the next one if all hold for it; otherwise the newest that is in force
 * anywhere, because some nodes may have heard a commit that others did not. */
static void fill_policy(const struct job *job, Adtopk__PeerPolicy *policy)
{
    uint32_t newest = job->plan->change.version;

    switch_fill(all_hold(job) ? job->next_plan : job->plan, policy);
    for (unsigned i = 0; i < job->members; i++) {
        const struct store_policy *newer = job->member[i]->newer;
        if (newer != NULL && newer->change.version > newest) {
            newest = newer->change.version;
            switch_fill_change(&newer->change, newer->text, policy);
        }
    }
}

static void send_commit(struct job *job, struct decision *decision)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerCommit commit = ADTOPK__PEER_COMMIT__INIT;
    Adtopk__PeerPolicy policy;
    uint32_t *bucket = malloc(job->plan->buckets * sizeof(*bucket));
    uint64_t *step = malloc(job->plan->buckets * sizeof(*step));

    decision->list = malloc((decision->count + 1) * sizeof(*decision->list));
    if (bucket == NULL || step == NULL || decision->list == NULL) {
        view_fail(job, ADTOPK_ERR_MEMORY, "no memory for view %u", job->promised);
    } else {
        for (size_t i = 0; i < decision->count; i++) {
            decision->list[i] = &decision->round[i];
        }
        fill_policy(job, &policy);
        commit.policy = policy.version > 0 ? &policy : NULL;
        commit.split_policy = job->plan->change.version;
        commit.view = job->proposed;
        commit.delivered = decision->list;
        commit.n_delivered = decision->count;
        commit.split = bucket;
        commit.split_step = step;
        for (uint32_t b = 0; b < job->plan->buckets; b++) {
            if (job->plan->round[b].split_step != UINT64_MAX) {
                bucket[commit.n_split++] = b;
                step[commit.n_split_step++] = job->plan->round[b].split_step;
            }
        }
        job->proposed = 0;
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_COMMIT;
        message.commit = &commit;
        peer_send_all(job, &message);
        view_commit(job, job->core->config.node, &commit);
    }
    free(bucket);
    free(step);
    free(decision->list);
}

/* All answers are in. */
static void conclude(struct job *job)
{
    struct decision decision = {0};
    uint64_t steps, ops;

    if (coherent(job, &steps, &ops)) {
        if (decide_rounds(job, steps, ops, &decision) != ADTOPK_OK) {
            view_fail(job, ADTOPK_ERR_MEMORY, "no memory for view %u", job->proposed);
        } else {
            send_commit(job, &decision);
        }
    }
    free(decision.round);
}

/* Keeps the policy of an answer if it is newer than ours. */
static enum adtopk_status note_policy(
    const struct job *job, struct member *member, const Adtopk__PeerPolicy *policy)
{
    free(member->newer);
    member->newer = NULL;
    if (policy == NULL || policy->version <= job->plan->change.version) {
        return ADTOPK_OK;
    }
    member->newer = calloc(1, sizeof(*member->newer));
    if (member->newer == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    member->newer->change = switch_change(policy);
    (void)strcpy(member->newer->text, policy->text);
    return ADTOPK_OK;
}

static enum adtopk_status note_state(struct member *member, const Adtopk__PeerState *state)
{
    uint32_t *delivered = malloc(state->n_delivered * sizeof(*delivered) + 1);

    if (delivered == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    if (state->n_delivered > 0) {
        (void)memcpy(delivered, state->delivered, state->n_delivered * sizeof(*delivered));
    }
    free(member->delivered);
    member->delivered = delivered;
    member->delivered_count = (uint32_t)state->n_delivered;
    member->answered = true;
    member->fresh = state->fresh;
    member->holds = state->held;
    member->has = state->policy != NULL ? state->policy->version : 0;
    member->steps_done = state->steps_done;
    member->ops_done = state->ops_done;
    return ADTOPK_OK;
}

static bool state_is_valid(const struct job *job, const Adtopk__PeerState *state)
{
    bool valid = state->n_delivered <= job->plan->rounds &&
                 (state->policy == NULL || (strlen(state->policy->text) < POLICY_TEXT_SIZE &&
                                               state->policy->version < UINT32_MAX));

    for (size_t i = 0; valid && i < state->n_delivered; i++) {
        valid = state->delivered[i] < job->plan->rounds;
    }
    return valid;
}

void coordinate_state(struct job *job, uint16_t from, const Adtopk__PeerState *state)
{
    struct member *member = join_member(job, from);

    if (job->proposed == 0 || member == NULL || !join_in_view(member) ||
        state->view < job->proposed) {
        return; /* the answer to a proposal that is over */
    }
    if (!state_is_valid(job, state)) {
        view_fail(job, ADTOPK_ERR_PROTOCOL,
            "node %u answered with rounds or a policy that cannot be", from);
        return;
    }
    if (state->view > job->proposed) {
        member->view = state->view;
        member->anew = true;
        coordinate(job);
        return;
    }
    if (note_state(member, state) != ADTOPK_OK ||
        note_policy(job, member, state->policy) != ADTOPK_OK) {
        view_fail(job, ADTOPK_ERR_MEMORY, "no memory for the state of node %u", from);
        return;
    }
    if ((state->policy != NULL ? state->policy->version : 0) == job->plan->change.version) {
        view_learn_splits(
            job, state->split, state->n_split, state->split_step, state->n_split_step);
    }
    for (unsigned i = 0; i < job->members; i++) {
        if (join_in_view(job->member[i]) && !job->member[i]->answered) {
            return;
        }
    }
    conclude(job);
}
