/*
 * Switching a job to another policy: on all nodes, before one step.
 *
 * The happy path: a node is asked, and passes it on to the coordinator, the lowest node of the
 * view. That names a step that no rank can have opened yet, and proposes the policy. Every node
 * makes its plan, trains on up to that step, holds there, and says so. When all hold, the
 * coordinator forms a new view (view.c) whose commit carries the policy; every node makes its
 * residuals fit and opens the step under the new plan. Ranks notice nothing but a short wait: what
 * they push meanwhile is remembered.
 *
 * What can go wrong:
 * - a node cannot (memory, a policy that does not fit its tensors): it says so, and the coordinator
 *   calls the change off; who holds goes on under the old plan;
 * - a node restarts, the coordinator too: that makes a new view in any case. If all hold, its
 *   commit decides for the change; if not, the change is off, and who asked is told;
 * - a commit reaches some nodes, and then the coordinator is gone: those answer the next prepare
 *   with the newer version, and its commit carries it. Nobody else can have opened the step
 *   meanwhile, because everybody held;
 * - two ask at once: the second is told that a change is under way; if that is decided and only not
 *   in force everywhere yet, it waits its turn (switch_ask.c);
 * - several refuse: the first refusal calls the change off, and the others may come when the next
 *   one is proposed. Proposals are numbered, and an answer counts for its own only.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/handover.h"
#include "daemon/core/measure.h"
#include "daemon/core/plan.h"
#include "daemon/core/residual.h"
#include "daemon/core/view.h"

#define TO(state) (1u << (state))

const struct machine_table switch_machine = {
    .name = "switch",
    .states = SWITCH_STATES,
    .events = SWITCH_EVENTS,
    .state_name = {"none", "proposed", "held", "moving"},
    .event_name = {"propose", "hold", "commit", "abort", "done"},
    .next =
        {
            [SWITCH_NONE] =
                {
                    [SWITCH_ON_PROPOSE] = TO(SWITCH_PROPOSED),
                    [SWITCH_ON_COMMIT] = TO(SWITCH_MOVING),
                },
            [SWITCH_PROPOSED] =
                {
                    [SWITCH_ON_HOLD] = TO(SWITCH_HELD),
                    [SWITCH_ON_ABORT] = TO(SWITCH_NONE),
                },
            [SWITCH_HELD] =
                {
                    [SWITCH_ON_COMMIT] = TO(SWITCH_MOVING),
                    [SWITCH_ON_ABORT] = TO(SWITCH_NONE),
                },
            [SWITCH_MOVING] = {[SWITCH_ON_DONE] = TO(SWITCH_NONE)},
        },
};

static void answer_asked(struct job *job, const struct error *error)
{
    ticket_answer(job, &job->asked,
        &(struct action){.type = ACTION_POLICY,
            .operation = job->plan->change.version,
            .number = job->plan->change.step},
        error);
}

/* ------------------------------------------------------------------ messages */

void switch_fill_change(
    const struct policy_change *change, const char *text, Adtopk__PeerPolicy *policy)
{
    adtopk__peer_policy__init(policy);
    policy->version = change->version;
    policy->step = change->step;
    policy->node = change->node;
    policy->uid = change->uid;
    policy->pid = change->pid;
    policy->text = (char *)(uintptr_t)text;
}

void switch_fill(const struct plan *plan, Adtopk__PeerPolicy *policy)
{
    switch_fill_change(&plan->change, plan->text, policy);
}

struct policy_change switch_change(const Adtopk__PeerPolicy *policy)
{
    return (struct policy_change){.version = policy->version,
        .step = policy->step,
        .node = (uint16_t)policy->node,
        .uid = policy->uid,
        .pid = policy->pid};
}

bool switch_coordinates(const struct job *job)
{
    return job->view_node[0] == job->core->config.node;
}

/* `attempt` 0: this node has switched. */
static void send_answer(
    struct job *job, uint32_t version, uint32_t attempt, const struct error *error)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPolicyAnswer answer = ADTOPK__PEER_POLICY_ANSWER__INIT;

    answer.version = version;
    answer.attempt = attempt;
    answer.status = error != NULL ? (uint32_t)error->code : ADTOPK_OK;
    if (error != NULL) {
        answer.text = (char *)(uintptr_t)error->text;
    }
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_POLICY_ANSWER;
    message.policy_answer = &answer;
    if (switch_coordinates(job)) {
        switch_answer(job, job->core->config.node, &answer);
    } else {
        peer_send(job, job->view_node[0], &message);
    }
}

/* ------------------------------------------------------------------ calling it off */

static void drop_next(struct job *job)
{
    plan_free(job->next_plan);
    job->next_plan = NULL;
    layout_drop_more(job);
    layout_drop_kept(job);
    residual_drop_other(job);
}

/* The change is off on this node; a step that was held is not opened here. */
static void drop(struct job *job)
{
    if (job->policy_switch.state == SWITCH_PROPOSED || job->policy_switch.state == SWITCH_HELD) {
        machine_fire(&job->policy_switch, SWITCH_ON_ABORT, SWITCH_NONE);
        drop_next(job);
    }
}

void switch_call_off(struct job *job, uint32_t version, uint16_t asker, const struct error *error)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPolicyEnd end = ADTOPK__PEER_POLICY_END__INIT;

    end.version = version;
    end.node = asker;
    end.status = (uint32_t)error->code;
    end.text = (char *)(uintptr_t)error->text;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_POLICY_END;
    message.policy_end = &end;
    if (version != 0) {
        job->attempt = 0;
        peer_send_all(job, &message);
    } else if (asker != job->core->config.node) {
        peer_send(job, asker, &message);
    }
    if (version != 0 || asker == job->core->config.node) {
        switch_end(job, job->core->config.node, &end);
    }
}

void switch_end(struct job *job, uint16_t from, const Adtopk__PeerPolicyEnd *end)
{
    bool held = job->policy_switch.state == SWITCH_HELD;
    struct error error;

    if (job->machine.state != JOB_ACTIVE || from != job->view_node[0]) {
        return; /* the view that is being formed decides */
    }
    (void)error_set(&error,
        end->status > ADTOPK_NONFINITE && end->status < ADTOPK_STATUS_COUNT
            ? (enum adtopk_status)end->status
            : ADTOPK_ERR_PROTOCOL,
        "%s", end->text);
    if (end->node == job->core->config.node) {
        answer_asked(job, &error);
    }
    if (job->next_plan != NULL && end->version == job->next_plan->change.version) {
        drop(job);
        if (held) {
            step_open(job, false);
            view_opened(job);
        }
    }
}

/* ------------------------------------------------------------------ agreeing */

/* Puts this node's name before why it cannot. */
static void refuse(struct job *job, uint32_t version, uint32_t attempt, const struct error *reason)
{
    struct error error;

    (void)error_set(&error, reason->code, "node %u: %.200s", job->core->config.node, reason->text);
    send_answer(job, version, attempt, &error);
}

static void moved(struct work *work);

/* What the held or agreed plan waited for is there, or never will be. */
static void switch_reserved(struct job *job, const struct error *error)
{
    struct plan *next = job->next_plan;

    if (next == NULL) {
        return; /* called off meanwhile */
    }
    next->unreserved = error != NULL;
    if (job->policy_switch.state == SWITCH_MOVING) {
        if (error != NULL) {
            job_fail(job, error, true);
        } else {
            core_compute(&job->settle, work_switch, moved, handover_bytes(job));
        }
    } else if (job->machine.state == JOB_ACTIVE && error != NULL) {
        refuse(job, next->change.version, job->accepted, error);
    } else if (job->machine.state == JOB_ACTIVE && job->policy_switch.state == SWITCH_HELD) {
        send_answer(job, next->change.version, job->accepted, NULL);
    }
}

/* The plan of a policy that others sent. NULL and an error if it cannot be made: parts of the store
 * may be left then. */
static struct plan *plan_of(struct job *job, const Adtopk__PeerPolicy *policy, struct error *err)
{
    struct policy parsed;
    struct plan *plan;

    policy_default(&parsed);
    if (policy_parse(&parsed, policy->text, err) != ADTOPK_OK) {
        return NULL;
    }
    plan = plan_create(&parsed);
    if (plan == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a plan");
        return NULL;
    }
    plan->change = switch_change(policy);
    if (plan_make(job, plan, err) != ADTOPK_OK ||
        (plan_by_rank(plan) && layout_more(job, err) != ADTOPK_OK) ||
        layout_kept(job, plan, job->store->policies + 1, err) != ADTOPK_OK ||
        residual_open(job, plan, err) != ADTOPK_OK) {
        plan_free(plan);
        return NULL;
    }
    plan->unreserved = true;
    return plan;
}

void switch_propose(struct job *job, uint16_t from, const Adtopk__PeerPolicyPropose *proposal)
{
    const Adtopk__PeerPolicy *policy = proposal->policy;
    struct error error;

    if (job->machine.state != JOB_ACTIVE) {
        return; /* the view that is being formed decides without it */
    }
    if (policy == NULL || from != job->view_node[0] || policy->version == 0 ||
        job->policy_switch.state != SWITCH_NONE) {
        job->core->bad_messages++;
        return;
    }
    if (policy->version != job->plan->change.version + 1 || policy->step <= step_number(job) ||
        policy->step > step_number(job) + 3) {
        /* STATE: the proposal was overtaken by two steps' frames; it may be made again. */
        (void)error_set(&error,
            policy->step <= step_number(job) ? ADTOPK_ERR_STATE : ADTOPK_ERR_PROTOCOL,
            "version %u of the policy from step %llu cannot follow version %u at step %llu",
            policy->version, (unsigned long long)policy->step, job->plan->change.version,
            (unsigned long long)step_number(job));
        refuse(job, policy->version, proposal->attempt, &error);
        return;
    }
    job->next_plan = plan_of(job, policy, &error);
    if (job->next_plan == NULL) {
        drop_next(job);
        refuse(job, policy->version, proposal->attempt, &error);
        return;
    }
    job->accepted = proposal->attempt;
    machine_fire(&job->policy_switch, SWITCH_ON_PROPOSE, SWITCH_PROPOSED);
    if (layout_reserve(job, job->next_plan, switch_reserved, &error) != ADTOPK_OK) {
        drop(job);
        refuse(job, policy->version, proposal->attempt, &error);
    }
}

bool switch_hold(struct job *job)
{
    if (job->policy_switch.state != SWITCH_PROPOSED ||
        job->next_plan->change.step != step_number(job)) {
        return false;
    }
    machine_fire(&job->policy_switch, SWITCH_ON_HOLD, SWITCH_HELD);
    if (job->machine.state == JOB_ACTIVE && !job->next_plan->unreserved) {
        send_answer(job, job->next_plan->change.version, job->accepted, NULL);
    }
    return true; /* in a view that is being formed, its state says so */
}

void switch_answer(struct job *job, uint16_t from, const Adtopk__PeerPolicyAnswer *answer)
{
    struct member *member = join_member(job, from);
    struct error error;
    uint32_t version = answer->version;

    if (job->machine.state != JOB_ACTIVE || !switch_coordinates(job)) {
        return;
    }
    if (member == NULL || version < job->plan->change.version ||
        version > job->plan->change.version + 1) {
        job->core->bad_messages++;
        return;
    }
    if (answer->attempt == 0) {
        member->has = version;
        switch_take_turn(job);
        return;
    }
    if (answer->attempt != job->attempt) {
        return; /* that one was called off: another node had refused it already */
    }
    if (answer->status == ADTOPK_ERR_STATE && switch_again(job, version)) {
        return;
    }
    if (answer->status != ADTOPK_OK) {
        (void)error_set(&error,
            answer->status < ADTOPK_STATUS_COUNT ? (enum adtopk_status)answer->status
                                                 : ADTOPK_ERR_PROTOCOL,
            "%s", answer->text);
        switch_call_off(job, version, job->asker, &error);
        return;
    }
    member->held = true;
    for (unsigned i = 0; i < job->view_nodes; i++) {
        if (!join_member(job, job->view_node[i])->held) {
            return;
        }
    }
    if (join_complete(job)) { /* else one has restarted since, and a new view is on its way */
        coordinate_above(job, job->promised);
    }
}

/* ------------------------------------------------------------------ switching */

static void remember(struct job *job, const struct plan *plan)
{
    struct store_header *store = job->store;
    struct store_policy *kept = &store->policy[(store->policies + 1) % 2];

    kept->change = plan->change;
    (void)strcpy(kept->text, plan->text);
    kept->residuals = plan->residuals;
    store_publish(&store->policies, store->policies + 1);
    job->change[(plan->change.version - 1) % POLICY_CHANGES] = plan->change;
    for (unsigned i = 0; i < job->members; i++) {
        free(job->member[i]->copied); /* the rounds are new ones */
        job->member[i]->copied = NULL;
    }
}

static void moved(struct work *work)
{
    struct job *job = work->job;
    struct plan *old = job->plan;

    machine_fire(&job->policy_switch, SWITCH_ON_DONE, SWITCH_NONE);
    remember(job, job->next_plan);
    job->plan = job->next_plan;
    job->next_plan = old;
    drop_next(job);
    core_trace(job->core, "job %llx: policy %u from step %llu", (unsigned long long)job->number,
        job->plan->change.version, (unsigned long long)step_number(job));
    measure_begin(job);
    answer_asked(job, NULL);
    if (job->machine.state == JOB_ACTIVE) {
        send_answer(job, job->plan->change.version, 0, NULL);
    }
    step_open(job, true);
    view_opened(job);
}

static bool is_next(const struct job *job, const Adtopk__PeerPolicy *policy)
{
    return job->next_plan != NULL && job->next_plan->change.version == policy->version;
}

bool switch_commit(struct job *job, const Adtopk__PeerPolicy *policy)
{
    struct error error;
    bool again;

    job->attempt = 0;
    switch_drop_turn(job); /* who asked for that drops it, too */
    if (policy == NULL || policy->version <= job->plan->change.version) {
        (void)error_set(&error, ADTOPK_ERR_PEER,
            "the nodes of job '%s' formed a new view before the change was agreed; it keeps "
            "version %u of its policy",
            job->key.name, job->plan->change.version);
        drop(job);
        answer_asked(job, &error);
        return false;
    }
    if (job->step.state != STEP_IDLE || policy->step != step_number(job) ||
        job->policy_switch.state == SWITCH_PROPOSED) {
        view_fail(job, ADTOPK_ERR_PROTOCOL,
            "node %u switches to version %u of the policy before step %llu, but this node, %u, "
            "is at step %llu",
            job->coordinator, policy->version, (unsigned long long)policy->step,
            job->core->config.node, (unsigned long long)step_number(job));
        return false;
    }
    again = !is_next(job, policy) || job->next_plan->unreserved;
    if (again) {
        drop_next(job);
        job->next_plan = plan_of(job, policy, &error);
        if (job->next_plan == NULL) {
            job_fail(job, &error, true);
            return false;
        }
    }
    if (job->asked != NULL && policy->node != job->core->config.node) {
        (void)error_set(&error, ADTOPK_ERR_STATE,
            "another change of the policy of job '%s' came first", job->key.name);
        answer_asked(job, &error);
    }
    machine_fire(&job->policy_switch, SWITCH_ON_COMMIT, SWITCH_MOVING);
    if (!again) {
        core_compute(&job->settle, work_switch, moved, handover_bytes(job));
    } else if (layout_reserve(job, job->next_plan, switch_reserved, &error) != ADTOPK_OK) {
        job_fail(job, &error, true);
        return false;
    }
    return true;
}

void switch_drop(struct job *job, const struct error *error)
{
    answer_asked(job, error);
}
