/*
 * Who wants another policy: an operator, at any node, or the planner, at the coordinator. The whole
 * story is in switch.c.
 *
 * The happy path: the operator's node asks the coordinator, which proposes the change at once. Some
 * nodes may still be putting the one before in force, although it is done where somebody asks: then
 * it waits its turn. What can go wrong: another one is under way, or waits already, and this one is
 * refused; a new view is formed, which ends all that wait.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/model.h"
#include "daemon/core/view.h"

/* Whether the last change is done on every node. */
static bool all_have(const struct job *job)
{
    for (unsigned i = 0; i < job->view_nodes; i++) {
        if (join_member(job, job->view_node[i])->has != job->plan->change.version) {
            return false;
        }
    }
    return true;
}

/* Whether the last change is decided, but not done on every node. */
static bool is_ending(const struct job *job)
{
    return job->policy_switch.state == SWITCH_MOVING ||
           (job->policy_switch.state == SWITCH_NONE && !all_have(job));
}

/* As the coordinator. */
static enum adtopk_status check_ask(
    const struct job *job, const Adtopk__PeerPolicy *policy, struct error *err)
{
    bool moving = job->policy_switch.state == SWITCH_MOVING;
    uint32_t version = moving ? job->next_plan->change.version : job->plan->change.version;

    if (job->turn != NULL || (job->policy_switch.state != SWITCH_NONE && !moving)) {
        return error_set(err, ADTOPK_ERR_STATE,
            "another change of the policy of job '%s' is under way", job->key.name);
    }
    if (policy->version == UINT32_MAX - 1) {
        return error_set(
            err, ADTOPK_ERR_STATE, "the policy of job '%s' cannot change any more", job->key.name);
    }
    if (policy->version != version) {
        return error_set(err, ADTOPK_ERR_STATE,
            "the policy of job '%s' has version %u by now, not %u", job->key.name, version,
            policy->version);
    }
    return ADTOPK_OK;
}

static void propose(struct job *job, const Adtopk__PeerPolicy *asked)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPolicyPropose proposal = ADTOPK__PEER_POLICY_PROPOSE__INIT;
    Adtopk__PeerPolicy policy = *asked;

    for (unsigned i = 0; i < job->members; i++) {
        job->member[i]->held = false;
    }
    job->asker = (uint16_t)asked->node;
    policy.version = job->plan->change.version + 1;
    policy.step = step_number(job) + 2; /* others may have opened the one after ours */
    proposal.policy = &policy;
    proposal.attempt = job->attempt = ++job->attempts;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_POLICY_PROPOSE;
    message.policy_propose = &proposal;
    peer_send_all(job, &message);
    switch_propose(job, job->core->config.node, &proposal);
}

#define SWITCH_LATE_MAX 3u

/* What was asked for while the last change was ending. */
struct turn {
    struct policy_change change;
    char *text;
};

void switch_drop_turn(struct job *job)
{
    if (job->turn != NULL) {
        free(job->turn->text);
        free(job->turn);
        job->turn = NULL;
    }
}

static enum adtopk_status wait_turn(
    struct job *job, const Adtopk__PeerPolicy *policy, struct error *err)
{
    job->turn = malloc(sizeof(*job->turn));
    if (job->turn != NULL) {
        job->turn->change = switch_change(policy);
        job->turn->text = strdup(policy->text);
    }
    if (job->turn == NULL || job->turn->text == NULL) {
        switch_drop_turn(job);
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory to change the policy");
    }
    return ADTOPK_OK;
}

void switch_take_turn(struct job *job)
{
    struct turn *turn = job->turn;
    Adtopk__PeerPolicy policy;

    if (turn != NULL && !is_ending(job)) {
        switch_fill_change(&turn->change, turn->text, &policy);
        propose(job, &policy);
        switch_drop_turn(job);
    }
}

bool switch_again(struct job *job, uint32_t version)
{
    struct error ignored;
    Adtopk__PeerPolicy policy;

    if (job->next_plan == NULL || job->turn != NULL || job->late == SWITCH_LATE_MAX) {
        return false;
    }
    switch_fill(job->next_plan, &policy);
    if (wait_turn(job, &policy, &ignored) != ADTOPK_OK) {
        switch_drop_turn(job);
        return false;
    }
    job->late++;
    (void)error_set(&ignored, ADTOPK_ERR_STATE, "proposed again");
    switch_call_off(job, version, UINT16_MAX, &ignored); /* nobody is told: it goes on */
    switch_take_turn(job);
    return true;
}

void switch_asked(struct job *job, uint16_t from, const Adtopk__PeerPolicyAsk *ask)
{
    struct error error;

    if (job->view == 0 || ask->policy == NULL || view_index(job, from) < 0 ||
        ask->policy->node != from) {
        job->core->bad_messages++;
        return;
    }
    if (job->machine.state != JOB_ACTIVE || !switch_coordinates(job)) {
        return; /* the commit of the view that is being formed ends it */
    }
    if (check_ask(job, ask->policy, &error) != ADTOPK_OK ||
        (is_ending(job) && wait_turn(job, ask->policy, &error) != ADTOPK_OK)) {
        switch_call_off(job, 0, from, &error);
    } else if (job->turn == NULL) {
        job->late = 0;
        propose(job, ask->policy);
    }
}

static enum adtopk_status check_request(
    const struct job *job, const struct event *event, struct error *err)
{
    uint32_t version;

    if (job == NULL || job->view == 0) {
        return error_set(
            err, ADTOPK_ERR_STATE, "the job is not running: there is nothing to change");
    }
    version = job->plan->change.version;
    if (job->policy_switch.state == SWITCH_MOVING) {
        return error_set(err, ADTOPK_ERR_STATE,
            "the last change of the policy of job '%s' is just being put in force; try again",
            job->key.name);
    }
    if (job->asked != NULL || job->policy_switch.state != SWITCH_NONE) {
        return error_set(err, ADTOPK_ERR_STATE,
            "another change of the policy of job '%s' is under way", job->key.name);
    }
    if (job->machine.state != JOB_ACTIVE) {
        return error_set(err, ADTOPK_ERR_STATE,
            "the nodes of job '%s' are just agreeing on a view; try again", job->key.name);
    }
    if (event->policy.if_version != UINT32_MAX && event->policy.if_version != version) {
        return error_set(err, ADTOPK_ERR_STATE, "the policy of job '%s' has version %u, not %u",
            job->key.name, version, event->policy.if_version);
    }
    return ADTOPK_OK;
}

static enum adtopk_status send_ask(
    struct job *job, const struct event *event, const struct policy *policy, struct error *err)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPolicyAsk ask = ADTOPK__PEER_POLICY_ASK__INIT;
    Adtopk__PeerPolicy asked;
    struct policy_change change = {.version = job->plan->change.version,
        .node = job->core->config.node,
        .uid = event->policy.uid,
        .pid = event->policy.pid};
    char *text = malloc(POLICY_TEXT_SIZE);

    job->asked = text != NULL ? ticket_create(event->policy.ticket) : NULL;
    if (job->asked == NULL) {
        free(text);
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory to change the policy");
    }
    policy_print(policy, text);
    switch_fill_change(&change, text, &asked);
    ask.policy = &asked;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_POLICY_ASK;
    message.policy_ask = &ask;
    if (switch_coordinates(job)) {
        switch_asked(job, job->core->config.node, &ask);
    } else {
        peer_send(job, job->view_node[0], &message);
    }
    free(text);
    return ADTOPK_OK;
}

/* A plan is for the choices that a policy leaves: it stays if they do, and if nobody asks for
 * another. */
static void keep_plan(const struct job *job, const char *text, struct policy *policy)
{
    const struct policy *old = &job->plan->policy;

    if (policy_names(text, "plan")) {
        return;
    }
    if (policy_same_choices(old, policy)) {
        (void)strcpy(policy->plan, old->plan);
    } else {
        policy->plan[0] = '\0';
    }
}

enum adtopk_status switch_request(struct core *core, const struct event *event, struct error *err)
{
    struct job *job = job_by_number(core, event->policy.job);
    struct policy *policy;
    enum adtopk_status status = check_request(job, event, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    policy = malloc(sizeof(*policy));
    if (policy == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a policy");
    }
    *policy = event->policy.merge ? job->plan->policy : core->policy;
    status = policy_parse(policy, event->policy.text, err);
    if (status == ADTOPK_OK) {
        keep_plan(job, event->policy.text, policy);
        status = send_ask(job, event, policy, err);
    }
    free(policy);
    return status;
}

enum adtopk_status switch_replan(struct job *job, const struct policy *policy, struct error *err)
{
    Adtopk__PeerPolicy asked;
    struct policy_change change = {.version = job->plan->change.version,
        .node = job->core->config.node,
        .uid = POLICY_PLANNER};
    char *text = malloc(POLICY_TEXT_SIZE);

    if (text == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory to change the policy");
    }
    policy_print(policy, text);
    switch_fill_change(&change, text, &asked);
    propose(job, &asked);
    free(text);
    return ADTOPK_OK;
}

bool switch_is_quiet(const struct job *job)
{
    return job->machine.state == JOB_ACTIVE && switch_coordinates(job) && job->asked == NULL &&
           job->policy_switch.state == SWITCH_NONE && all_have(job) &&
           job->plan->change.version < UINT32_MAX - 1;
}
