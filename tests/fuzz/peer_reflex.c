/* What the peer answers truly by itself. */
#include <stdio.h>

#include "tests/fuzz/peer_host.h"

static void offer(struct host *host, const Adtopk__PeerPolicy *policy)
{
    host->offer = *policy;
    host->offer.text = host->offer_text;
    (void)snprintf(host->offer_text, sizeof(host->offer_text), "%s", policy->text);
}

/* `attempt` 0: the peer has switched to its offer. */
static void send_answer(struct host *host, uint32_t attempt)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPolicyAnswer answer = ADTOPK__PEER_POLICY_ANSWER__INIT;

    answer.version = host->offer.version;
    answer.attempt = attempt;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_POLICY_ANSWER;
    message.policy_answer = &answer;
    host_send_message(host, &message);
}

/* As the coordinator: two steps on, as it should be. */
static void send_proposal(struct host *host, const Adtopk__PeerPolicy *asked)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPolicyPropose propose = ADTOPK__PEER_POLICY_PROPOSE__INIT;

    offer(host, asked);
    host->offer.version = asked->version + 1;
    host->offer.step = host->step + 2;
    propose.policy = &host->offer;
    propose.attempt = ++host->attempt;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_POLICY_PROPOSE;
    message.policy_propose = &propose;
    host_send_message(host, &message);
}

/* As the coordinator: the core holds. */
static void send_prepare(struct host *host)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerPrepare prepare = ADTOPK__PEER_PREPARE__INIT;
    uint32_t members[2] = {PEER, host->node};
    uint64_t incarnations[2] = {host->peer_incarnation, links_incarnation(host->peer, host->node)};
    uint64_t jobs[2] = {host->peer_job, host->core_job};

    prepare.view = host->view + 1;
    prepare.members = members;
    prepare.incarnations = incarnations;
    prepare.jobs = jobs;
    prepare.run = host->run;
    prepare.n_members = prepare.n_incarnations = prepare.n_jobs = 2;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_PREPARE;
    message.prepare = &prepare;
    host_send_message(host, &message);
}

/* The peer takes part in changes of the policy, and coordinates them if it is the lower node. */
static void reflex_policy(struct host *host, const Adtopk__PeerMessage *heard)
{
    if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_POLICY_PROPOSE) {
        offer(host, heard->policy_propose->policy);
        host->attempt = heard->policy_propose->attempt;
        send_answer(host, host->attempt);
    } else if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_COMMIT &&
               heard->commit->policy != NULL &&
               heard->commit->policy->version > host->policy_version) {
        offer(host, heard->commit->policy);
        host->policy_version = host->offer.version;
        send_answer(host, 0);
        host->offer.version = 0;
    } else if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_POLICY_ASK) {
        send_proposal(host, heard->policy_ask->policy);
    } else if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_POLICY_ANSWER &&
               heard->policy_answer->status == 0 && heard->policy_answer->attempt != 0) {
        send_prepare(host);
    } else if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_POLICY_END) {
        host->offer.version = 0;
    }
}

void host_reflex(struct host *host, const Adtopk__PeerMessage *heard)
{
    Adtopk__PeerPolicy policy = ADTOPK__PEER_POLICY__INIT;
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerState state = ADTOPK__PEER_STATE__INIT;
    Adtopk__PeerCommit commit = ADTOPK__PEER_COMMIT__INIT;

    if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_JOIN &&
        (host->reflexes & REFLEX_JOIN) != 0 && heard->join->reply) {
        host_send_join(host, 0, false);
    } else if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_PREPARE &&
               (host->reflexes & REFLEX_STATE) != 0) {
        state.view = heard->prepare->view;
        state.steps_done = host->step;
        state.ops_done = host->operation;
        policy.version = host->policy_version;
        state.policy = policy.version > 0 ? &policy : NULL;
        state.held = host->offer.version;
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_STATE;
        message.state = &state;
        host_send_message(host, &message);
    } else if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_STATE &&
               (host->reflexes & REFLEX_COMMIT) != 0) {
        commit.view = heard->state->view;
        if (host->offer.version > 0 && heard->state->held == host->offer.version) {
            commit.policy = &host->offer;
            host->policy_version = host->offer.version;
        }
        message.kind_case = ADTOPK__PEER_MESSAGE__KIND_COMMIT;
        message.commit = &commit;
        host_send_message(host, &message);
    } else if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_FETCH &&
               (host->reflexes & REFLEX_COPY) != 0) {
        host_send_copy(host, NULL, 0);
    }
    if ((host->reflexes & REFLEX_POLICY) != 0) {
        reflex_policy(host, heard);
    }
}
