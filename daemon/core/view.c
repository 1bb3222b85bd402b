/*
 * Views: which nodes take part, agreed by all of them.
 *
 * The happy path: every node whose ranks have committed sends a join to all peers. When the joins
 * that a node has seen name every rank, the lowest node among them, the coordinator, proposes a
 * view with a number higher than any before (prepare). The others stop starting rounds, finish
 * what they compute, and answer with what they have delivered (state). From all answers the
 * coordinator makes the commit: rounds that anybody delivered are completed everywhere from that
 * copy, all others are retried. A first view and one after a restart go the same way.
 *
 * What can go wrong:
 * - a daemon restarts: its join carries a new incarnation, so a new view is proposed; the link has
 *   dropped all that was under way to the old one;
 * - the coordinator restarts: it learns the highest view number from the joins and answers and
 *   begins anew with a higher one; a commit for a lower number is ignored;
 * - nodes disagree (world size, policy, tensors, a rank twice), or residuals are gone: the job
 *   fails everywhere with a sentence that names the tensor, rank or node;
 * - somebody never comes: the job's time limits end the wait.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/core/measure.h"
#include "daemon/core/plan.h"
#include "daemon/core/view.h"

/* Every restart of a daemon takes a few numbers: nobody can be further ahead than this. */
#define VIEW_JUMP (1u << 20)

int view_index(const struct job *job, uint16_t node)
{
    for (unsigned i = 0; i < job->view_nodes; i++) {
        if (job->view_node[i] == node) {
            return (int)i;
        }
    }
    return -1;
}

bool view_is_member(const struct job *job, uint16_t node)
{
    if (job->view_nodes > 0) {
        return view_index(job, node) >= 0;
    }
    for (unsigned i = 0; i < job->next_nodes; i++) {
        if (job->next_node[i] == node) {
            return true;
        }
    }
    return job->next_nodes == 0 && join_member(job, node) != NULL;
}

void view_fail(struct job *job, enum adtopk_status code, const char *format, ...)
{
    struct error error = {.code = code};
    va_list args;

    va_start(args, format);
    (void)vsnprintf(error.text, sizeof(error.text), format, args);
    va_end(args);
    job_fail(job, &error, true);
}

static void freeze(struct job *job)
{
    for (uint32_t r = 0; job->plan->round != NULL && r < job->plan->rounds; r++) {
        round_freeze(&job->plan->round[r]);
    }
    if (job->plan->round != NULL) {
        round_freeze(&job->op_round);
    }
}

/* Answers that a higher number is promised already. */
static void refuse(struct job *job, uint16_t from)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerState state = ADTOPK__PEER_STATE__INIT;

    state.view = job->promised;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_STATE;
    message.state = &state;
    peer_send(job, from, &message);
}

/* Remembers whom the proposal is about. */
static enum adtopk_status note_members(struct job *job, const Adtopk__PeerPrepare *prepare)
{
    uint16_t *node = malloc(prepare->n_members * sizeof(*node));
    uint64_t *incarnation = malloc(prepare->n_members * sizeof(*incarnation));
    uint64_t *number = malloc(prepare->n_members * sizeof(*number));

    if (node == NULL || incarnation == NULL || number == NULL) {
        free(node);
        free(incarnation);
        free(number);
        return ADTOPK_ERR_MEMORY;
    }
    for (size_t i = 0; i < prepare->n_members; i++) {
        node[i] = (uint16_t)prepare->members[i];
        incarnation[i] = prepare->incarnations[i];
        number[i] = prepare->jobs[i];
    }
    free(job->next_node);
    free(job->next_incarnation);
    free(job->next_job);
    job->next_node = node;
    job->next_incarnation = incarnation;
    job->next_job = number;
    job->next_nodes = (unsigned)prepare->n_members;
    return ADTOPK_OK;
}

/* Whether the run's number is this job's, or may become it. */
static bool prepare_names_run(const struct job *job, const Adtopk__PeerPrepare *prepare)
{
    const struct job *other = job_find_run(job->core, prepare->run);

    return prepare->run != 0 && (other == NULL || other == job) &&
           (job->run == 0 || job->run == prepare->run);
}

/* Only the lowest member proposes. */
static bool prepare_is_valid(
    const struct job *job, uint16_t from, const Adtopk__PeerPrepare *prepare)
{
    bool self = false;

    if (join_self(job) == NULL || prepare->view == 0 ||
        prepare->view - 1 > (uint64_t)job->promised + VIEW_JUMP || prepare->n_members == 0 ||
        prepare->n_members > CORE_MAX_NODES || prepare->n_members != prepare->n_incarnations ||
        prepare->n_members != prepare->n_jobs || prepare->members[0] != from ||
        !prepare_names_run(job, prepare)) {
        return false;
    }
    for (size_t i = 0; i < prepare->n_members; i++) {
        if (prepare->members[i] >= UINT16_MAX ||
            (i > 0 && prepare->members[i] <= prepare->members[i - 1])) {
            return false;
        }
        self = self ||
               (prepare->members[i] == job->core->config.node && prepare->jobs[i] == job->number);
    }
    return self;
}

void view_prepare(struct job *job, uint16_t from, const Adtopk__PeerPrepare *prepare)
{
    struct error error;

    if (!prepare_is_valid(job, from, prepare)) {
        job->core->bad_messages++;
        return;
    }
    if (job->store == NULL) {
        if (note_members(job, prepare) != ADTOPK_OK) {
            view_fail(job, ADTOPK_ERR_MEMORY, "no memory for view %u", prepare->view);
            return;
        }
        if (layout_store(job, &error) != ADTOPK_OK || plan_begin(job, &error) != ADTOPK_OK) {
            job_fail(job, &error, true);
            return;
        }
        job->promised = job->store->view > job->promised ? job->store->view : job->promised;
    }
    if (prepare->view <= job->promised) {
        if (from == job->core->config.node) {
            coordinate_above(
                job, job->promised); /* a restarted coordinator finds more in its store */
        } else {
            refuse(job, from);
        }
        return;
    }
    if (note_members(job, prepare) != ADTOPK_OK) {
        view_fail(job, ADTOPK_ERR_MEMORY, "no memory for view %u", prepare->view);
        return;
    }
    job->promised = prepare->view;
    job->store->view = prepare->view;
    job->coordinator = from;
    job->owes_state = true;
    fetch_drop(job);
    job->next_run = prepare->run;
    if (job->machine.state == JOB_ACTIVE) {
        job->forming_since_us = job->core->now_us;
    }
    machine_fire(&job->machine, JOB_ON_PREPARE, JOB_PREPARED);
    freeze(job);
    if (job->view == 0 && job->results != NULL && layout_results(job, &error) != ADTOPK_OK) {
        job_fail(job, &error, true);
        return;
    }
    view_try_answer(job);
}

/* The open step's rounds that are delivered here. Returns their number. */
static uint32_t delivered_rounds(const struct job *job, uint32_t *list)
{
    uint32_t count = 0;

    for (uint32_t r = 0; r < job->plan->rounds; r++) {
        if (step_round_active(job, &job->plan->round[r]) && round_delivered(&job->plan->round[r])) {
            list[count++] = r;
        }
    }
    return count;
}

/* Sends this node's state to the coordinator, which may be itself. */
static void answer(struct job *job)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerState state = ADTOPK__PEER_STATE__INIT;
    Adtopk__PeerPolicy policy;
    uint32_t *list = malloc((job->plan->rounds + 2 * job->plan->buckets) * sizeof(*list));
    uint64_t *step = malloc(job->plan->buckets * sizeof(*step));

    job->owes_state = false;
    if (list == NULL || step == NULL) {
        free(list);
        free(step);
        view_fail(job, ADTOPK_ERR_MEMORY, "no memory for the state of job '%s'", job->key.name);
        return;
    }
    state.view = job->promised;
    state.steps_done = job->store->steps_done;
    state.ops_done = job->store->ops_done;
    state.fresh = job->store_fresh;
    state.delivered = list;
    state.n_delivered = delivered_rounds(job, list);
    if (job->plan->change.version > 0) {
        switch_fill(job->plan, &policy);
        state.policy = &policy;
    }
    state.held = job->policy_switch.state == SWITCH_HELD && !job->next_plan->unreserved
                     ? job->next_plan->change.version
                     : 0;
    state.split = list + job->plan->rounds;
    state.split_step = step;
    for (uint32_t b = 0; b < job->plan->buckets; b++) {
        if (job->plan->round[b].split_step != UINT64_MAX) {
            state.split[state.n_split++] = b;
            step[state.n_split_step++] = job->plan->round[b].split_step;
        }
    }
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_STATE;
    message.state = &state;
    if (job->coordinator == job->core->config.node) {
        coordinate_state(job, job->coordinator, &state);
    } else {
        peer_send(job, job->coordinator, &message);
    }
    free(list);
    free(step);
}

/* Nothing is computed any more, so that the state stands; and this node has heard the join of every
 * member from the same start of its daemon as the coordinator has, so that no frame of the view
 * goes to an old one or comes from a stranger. */
static bool can_answer(const struct job *job)
{
    if (job->computing > 0) {
        return false;
    }
    for (unsigned i = 0; i < job->next_nodes; i++) {
        const struct member *member = join_member(job, job->next_node[i]);
        if (member == NULL || member->incarnation != job->next_incarnation[i] ||
            member->job != job->next_job[i]) {
            return false;
        }
    }
    return true;
}

void view_try_answer(struct job *job)
{
    if (job->owes_state && can_answer(job)) {
        answer(job);
    }
}

/* A split that some node knows of holds for all. */
void view_learn_splits(
    struct job *job, const uint32_t *bucket, size_t buckets, const uint64_t *step, size_t steps)
{
    for (size_t i = 0; i < buckets && i < steps; i++) {
        if (bucket[i] < job->plan->buckets) {
            round_split(&job->plan->round[bucket[i]], step[i]);
        }
    }
}

/* Takes over the members that were prepared. False, and the job has failed, if they cannot be. */
static bool take_members(struct job *job)
{
    bool same = job->view_nodes == job->next_nodes;

    if (job->view_nodes == 0) {
        job->view_node = job->next_node;
        job->view_nodes = job->next_nodes;
        job->next_node = NULL;
        job->next_nodes = 0;
        job->self = (unsigned)view_index(job, job->core->config.node);
        return true;
    }
    for (unsigned i = 0; same && i < job->next_nodes; i++) {
        same = job->view_node[i] == job->next_node[i];
    }
    job->next_nodes = 0;
    if (!same) {
        view_fail(
            job, ADTOPK_ERR_MISMATCH, "the ranks of job '%s' moved to other nodes", job->key.name);
    }
    return same;
}

/* The commit lacks those of a plan that its coordinator had not yet. */
static void repeat_splits(struct job *job)
{
    for (uint32_t b = 0; b < job->plan->buckets; b++) {
        if (job->plan->round[b].split_step != UINT64_MAX &&
            job->plan->round[b].split_step >= job->store->steps_done) {
            peer_send_split(job, job->plan->round[b].split_step, b);
        }
    }
}

/* Splits of this plan's buckets that came before the plan was in force. */
static void take_early_splits(struct job *job)
{
    struct split **link = &job->early_splits;

    while (*link != NULL && !job_ended(job)) {
        struct split *split = *link;
        if (split->policy > job->plan->change.version) {
            link = &split->next;
            continue;
        }
        *link = split->next;
        if (split->policy == job->plan->change.version && split->bucket < job->plan->buckets) {
            round_split(&job->plan->round[split->bucket], split->step);
        }
        free(split);
    }
}

void view_opened(struct job *job)
{
    take_early_splits(job);
    if (!job_ended(job) && job->machine.state == JOB_ACTIVE) {
        frame_release_early(job);
    }
    for (unsigned r = 0; r < job->ranks && !job_ended(job); r++) {
        rank_split(job->rank[r]);
    }
    if (!job_ended(job)) {
        repeat_splits(job);
        round_try(&job->op_round);
    }
    if (!job_ended(job)) {
        step_start(job);
    }
    if (!job_ended(job)) {
        job_try_leave(job);
    }
}

/* The view is in force: opens the step, unless that has to wait for a switch of the policy. */
static void begin(struct job *job, const Adtopk__PeerCommit *commit)
{
    bool moving = switch_commit(job, commit->policy);

    if (job_ended(job)) {
        return;
    }
    if (!moving && job->step.state == STEP_IDLE) {
        step_open(job, true);
    }
    fetch_answer(job);
    fetch_delivered(job, commit);
    if (moving) {
        round_try(&job->op_round);
    } else {
        view_opened(job);
    }
}

void view_commit(struct job *job, uint16_t from, const Adtopk__PeerCommit *commit)
{
    bool first = job->view == 0;
    struct error error;

    if (job->machine.state != JOB_PREPARED || from != job->coordinator ||
        commit->view != job->promised || job->owes_state || job->next_nodes == 0) {
        return; /* a proposal that a higher one has replaced */
    }
    if (!take_members(job)) {
        return;
    }
    if (first && plan_check(job, &error) != ADTOPK_OK) {
        job_fail(job, &error, true);
        return;
    }
    job->view = commit->view;
    job->run = job->next_run;
    store_publish64(&job->store->run, job->run);
    job->store_fresh = false;
    for (unsigned i = 0; i < job->members; i++) {
        job->member[i]->anew = false;
    }
    for (uint32_t r = 0; r < job->plan->rounds; r++) {
        frame_drop_parked(&job->plan->round[r], job->view, 0);
    }
    frame_drop_parked(&job->op_round, job->view, 0);
    if (commit->split_policy == job->plan->change.version) {
        view_learn_splits(
            job, commit->split, commit->n_split, commit->split_step, commit->n_split_step);
    }
    machine_fire(&job->machine, JOB_ON_COMMIT, JOB_ACTIVE);
    if (first) {
        for (unsigned r = 0; r < job->ranks; r++) {
            rank_ready(job->rank[r]);
        }
        round_open(&job->op_round);
        measure_begin(job);
    }
    begin(job, commit);
}
