/*
 * Requests for another policy: from an operator at any node, or from the planner at the
 * coordinator. switch.c tells the whole story.
 *
 * The happy path: the operator's node asks the coordinator, which proposes the change at once. Some
 * nodes may still be putting the change before in force, although it is done where the operator
 * asks. Then the new one waits. What can go wrong: another change is under way, or waits already,
 * and this one is refused. Or a new view is formed, which ends all waiting changes.
 */
#include "daemon/core/agree/switch_ask.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/core/agree/switch.h"
#include "daemon/core/waiting.h"
#include "daemon/job/job_index.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/members.h"
#include "daemon/job/peer.h"
#include "daemon/job/ticket.h"

static bool switch_is_behind(const struct job *job, const struct member *member)
{
    return member->policy != job->plan->change.version;
}

/* A request that came while the last change was ending. */
struct postponed {
    struct policy_change change;
    char text[];
};

/* Refuses a change because of the one that is under way. */
static enum adtopk_status switch_ask_busy(const struct job *job, struct error *err)
{
    const struct switching *switching = &job->switching;
    const struct policy_change *change = switching->postponed != NULL
                                             ? &switching->postponed->change
                                         : switching->next != NULL ? &switching->next->change
                                                                   : NULL;

    if (change == NULL || change->uid >= POLICY_TENSORS) {
        return error_set(err, ADTOPK_ERR_STATE,
            "another change of the policy of job '%s' is under way", job->key.name);
    }
    return error_set(err, ADTOPK_ERR_STATE,
        "another change of the policy of job '%s' is under way, for which uid %u, pid %u on node "
        "%u asked: it waits for all ranks to begin a step",
        job->key.name, change->uid, change->pid, change->node);
}

/* Whether the last change is done on every node. */
static bool switch_is_everywhere(const struct job *job)
{
    return members_first(job, switch_is_behind) == NULL;
}

/* Whether the last change is decided, but not done on every node. */
static bool is_ending(const struct job *job)
{
    return job->switching.machine.state == SWITCH_MOVING ||
           (job->switching.machine.state == SWITCH_NONE && !switch_is_everywhere(job));
}

/* Checks a request, as the coordinator. */
static enum adtopk_status check_ask(
    const struct job *job, const Adtopk__PeerPolicy *policy, struct error *err)
{
    bool moving = job->switching.machine.state == SWITCH_MOVING;
    uint32_t version = moving ? job->switching.next->change.version : job->plan->change.version;

    if (job->switching.postponed != NULL ||
        (job->switching.machine.state != SWITCH_NONE && !moving)) {
        return switch_ask_busy(job, err);
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

static void switch_ask_propose(struct job *job, const Adtopk__PeerPolicy *asked)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPolicyPropose proposal = ADTOPK__PEER_POLICY_PROPOSE__INIT;
    Adtopk__PeerPolicy policy = *asked;

    for (unsigned i = 0; i < job->members; i++) {
        job->member[i]->holds = false;
    }
    job->switching.asker = (uint16_t)asked->node;
    policy.version = job->plan->change.version + 1;
    policy.step = step_number(job) + 2; /* others may have opened the step after this node's */
    proposal.policy = &policy;
    proposal.attempt = job->switching.attempt = ++job->switching.attempts;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_POLICY_PROPOSE;
    message.policy_propose = &proposal;
    peer_send_all(job, &message);
    switch_propose(job, job->core->config.node, &proposal);
}

#define SWITCH_LATE_MAX 3u

void switch_drop_postponed(struct job *job)
{
    free(job->switching.postponed);
    job->switching.postponed = NULL;
}

static enum adtopk_status switch_postpone(
    struct job *job, const Adtopk__PeerPolicy *policy, struct error *err)
{
    const size_t size = strlen(policy->text) + 1;
    struct postponed *postponed = malloc(sizeof(*postponed) + size);

    if (postponed == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory to change the policy");
    }
    postponed->change = switch_change(policy);
    (void)memcpy(postponed->text, policy->text, size);
    job->switching.postponed = postponed;
    return ADTOPK_OK;
}

bool switch_take_postponed(struct job *job)
{
    const struct postponed *postponed = job->switching.postponed;
    Adtopk__PeerPolicy policy;

    if (postponed == NULL || job->machine.state != JOB_ACTIVE ||
        job->switching.machine.state != SWITCH_NONE || !switch_is_everywhere(job)) {
        return false;
    }
    switch_fill_change(&postponed->change, postponed->text, &policy);
    switch_ask_propose(job, &policy);
    switch_drop_postponed(job);
    return true;
}

bool switch_again(struct job *job, uint32_t version)
{
    struct error ignored;
    Adtopk__PeerPolicy policy;

    if (job->switching.next == NULL || job->switching.postponed != NULL ||
        job->switching.late == SWITCH_LATE_MAX) {
        return false;
    }
    switch_fill(job->switching.next, &policy);
    if (switch_postpone(job, &policy, &ignored) != ADTOPK_OK) {
        return false;
    }
    job->switching.late++;
    (void)error_set(&ignored, ADTOPK_ERR_STATE, "proposed again");
    switch_call_off(job, version, UINT16_MAX, &ignored); /* the change goes on, so nobody is told */
    return true;
}

void switch_asked(struct job *job, uint16_t from, const Adtopk__PeerPolicyAsk *ask)
{
    struct error error;

    if (job->view == 0 || ask->policy == NULL || membership_index(&job->in_force, from) < 0 ||
        ask->policy->node != from) {
        job->core->bad_messages++;
        return;
    }
    if (job->machine.state != JOB_ACTIVE || !membership_coordinates(&job->in_force)) {
        return; /* the commit of the view that is being formed ends it */
    }
    if (check_ask(job, ask->policy, &error) != ADTOPK_OK ||
        (is_ending(job) && switch_postpone(job, ask->policy, &error) != ADTOPK_OK)) {
        switch_call_off(job, 0, from, &error);
        return;
    }
    job->switching.late = 0;
    if (job->switching.postponed == NULL) {
        switch_ask_propose(job, ask->policy);
    }
}

static enum adtopk_status check_request(
    const struct job *job, const struct event *event, struct error *err)
{
    char text[ERROR_TEXT_SIZE / 2];
    struct waiting waiting;
    uint32_t version;

    if (job == NULL || job->view == 0) {
        return error_set(
            err, ADTOPK_ERR_STATE, "the job is not running: there is nothing to change");
    }
    version = job->plan->change.version;
    if (job->switching.machine.state == SWITCH_MOVING) {
        return error_set(err, ADTOPK_ERR_STATE,
            "the last change of the policy of job '%s' is just being put in force; try again",
            job->key.name);
    }
    if (job->switching.asked != NULL || job->switching.machine.state != SWITCH_NONE) {
        return switch_ask_busy(job, err);
    }
    if (job->machine.state != JOB_ACTIVE) {
        waiting = waiting_find(job);
        return error_set(err, ADTOPK_ERR_STATE, "job '%s' waits for %s; try again", job->key.name,
            waiting_text(job, &waiting, text, sizeof(text)));
    }
    if (event->policy.if_version != UINT32_MAX && event->policy.if_version != version) {
        return error_set(err, ADTOPK_ERR_STATE, "the policy of job '%s' has version %u, not %u",
            job->key.name, version, event->policy.if_version);
    }
    return ADTOPK_OK;
}

/* Asks the coordinator, which may be this node. */
static enum adtopk_status send_ask(
    struct job *job, uint32_t uid, uint32_t pid, const struct policy *policy, struct error *err)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPolicyAsk ask = ADTOPK__PEER_POLICY_ASK__INIT;
    Adtopk__PeerPolicy asked;
    const struct policy_change change = {.version = job->plan->change.version,
        .node = job->core->config.node,
        .uid = uid,
        .pid = pid};
    char *text = malloc(POLICY_TEXT_SIZE);

    if (text == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory to change the policy");
    }
    policy_print(policy, text);
    switch_fill_change(&change, text, &asked);
    ask.policy = &asked;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_POLICY_ASK;
    message.policy_ask = &ask;
    if (!peer_send_coordinator(job, &job->in_force, &message)) {
        switch_asked(job, job->core->config.node, &ask);
    }
    free(text);
    return ADTOPK_OK;
}

/* A plan stays if the possible choices do, and if the request has no other plan. */
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
        job->switching.asked = ticket_create(event->policy.ticket);
        status = job->switching.asked != NULL
                     ? send_ask(job, event->policy.uid, event->policy.pid, policy, err)
                     : error_set(err, ADTOPK_ERR_MEMORY, "no memory to change the policy");
        job_touch(job);
    }
    if (status != ADTOPK_OK) {
        ticket_free(job->switching.asked);
        job->switching.asked = NULL;
    }
    free(policy);
    return status;
}

enum adtopk_status switch_replan(struct job *job, const struct policy *policy, struct error *err)
{
    return send_ask(job, POLICY_PLANNER, 0, policy, err);
}

bool switch_is_quiet(const struct job *job)
{
    return job->machine.state == JOB_ACTIVE && membership_coordinates(&job->in_force) &&
           job->switching.asked == NULL && job->switching.postponed == NULL &&
           job->switching.machine.state == SWITCH_NONE && switch_is_everywhere(job) &&
           job->plan->change.version < UINT32_MAX - 1;
}
