/* The answers that the peer gives correctly by itself. */
#include <stdio.h>

#include "tests/fuzz/peer_host.h"
#include "tests/host/words.h"

static void offer(struct pair *pair, const Adtopk__PeerPolicy *policy)
{
    pair->offer = *policy;
    pair->offer.text = pair->offer_text;
    (void)snprintf(pair->offer_text, sizeof(pair->offer_text), "%s", policy->text);
}

/* `attempt` 0: the peer has switched to its offer. */
static void send_answer(struct pair *pair, uint32_t attempt)
{
    struct words words;
    Adtopk__PeerPolicyAnswer *answer =
        words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_POLICY_ANSWER);

    answer->version = pair->offer.version;
    answer->attempt = attempt;
    pair_send_message(pair, &words.message);
}

/* As the coordinator: two steps on, as it should be. */
static void send_proposal(struct pair *pair, const Adtopk__PeerPolicy *asked)
{
    struct words words;
    Adtopk__PeerPolicyPropose *propose =
        words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_POLICY_PROPOSE);

    offer(pair, asked);
    pair->offer.version = asked->version + 1;
    pair->offer.step = pair->step + 2;
    propose->policy = &pair->offer;
    propose->attempt = ++pair->attempt;
    pair_send_message(pair, &words.message);
}

/* As the coordinator: the core holds. */
static void send_prepare(struct pair *pair)
{
    struct words words;
    Adtopk__PeerPrepare *prepare = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_PREPARE);
    uint32_t members[2] = {PEER, pair->node};
    uint64_t incarnations[2] = {pair->peer_incarnation, links_incarnation(pair->peer, pair->node)};
    uint64_t jobs[2] = {pair->peer_job, pair->core_job};
    uint32_t ranks[2] = {1, 1};
    uint64_t since[2] = {0, 0};
    Adtopk__PeerView known = ADTOPK__PEER_VIEW__INIT;

    known.view = pair->view;
    known.members = members;
    known.ranks = ranks;
    known.since = since;
    known.n_members = known.n_ranks = known.n_since = known.founders = 2;
    prepare->known = known.view > 0 ? &known : NULL;
    prepare->view = pair->view + 1;
    prepare->members = members;
    prepare->incarnations = incarnations;
    prepare->jobs = jobs;
    prepare->ranks = ranks;
    prepare->run = pair->run;
    prepare->n_members = prepare->n_incarnations = prepare->n_jobs = prepare->n_ranks = 2;
    pair_send_message(pair, &words.message);
}

/* The peer takes part in changes of the policy, and coordinates them if it is the lower node. */
static void reflex_policy(struct pair *pair, const Adtopk__PeerMessage *heard)
{
    if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_POLICY_PROPOSE) {
        offer(pair, heard->policy_propose->policy);
        pair->attempt = heard->policy_propose->attempt;
        send_answer(pair, pair->attempt);
    } else if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_COMMIT &&
               heard->commit->policy != NULL &&
               heard->commit->policy->version > pair->policy_version) {
        offer(pair, heard->commit->policy);
        pair->policy_version = pair->offer.version;
        send_answer(pair, 0);
        pair->offer.version = 0;
    } else if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_POLICY_ASK) {
        send_proposal(pair, heard->policy_ask->policy);
    } else if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_POLICY_ANSWER &&
               heard->policy_answer->status == 0 && heard->policy_answer->attempt != 0) {
        send_prepare(pair);
    } else if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_POLICY_END) {
        pair->offer.version = 0;
    }
}

static void send_state(struct pair *pair, uint32_t view)
{
    struct words words;
    Adtopk__PeerState *state = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_STATE);
    Adtopk__PeerPolicy policy = ADTOPK__PEER_POLICY__INIT;

    state->view = view;
    state->steps_done = pair->step;
    state->ops_done = pair->operation;
    policy.version = pair->policy_version;
    state->policy = policy.version > 0 ? &policy : NULL;
    state->held = pair->offer.version;
    pair_send_message(pair, &words.message);
}

static void send_commit(struct pair *pair, const Adtopk__PeerState *state)
{
    struct words words;
    Adtopk__PeerCommit *commit = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_COMMIT);

    commit->view = state->view;
    if (pair->offer.version > 0 && state->held == pair->offer.version) {
        commit->policy = &pair->offer;
        pair->policy_version = pair->offer.version;
    }
    pair_send_message(pair, &words.message);
}

void pair_reflex(struct pair *pair, const Adtopk__PeerMessage *heard)
{
    if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_JOIN &&
        (pair->reflexes & REFLEX_JOIN) != 0 && heard->join->reply) {
        pair_send_join(pair, 0, false);
    } else if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_PREPARE &&
               (pair->reflexes & REFLEX_STATE) != 0) {
        send_state(pair, heard->prepare->view);
    } else if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_STATE &&
               (pair->reflexes & REFLEX_COMMIT) != 0) {
        send_commit(pair, heard->state);
    } else if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_FETCH &&
               (pair->reflexes & REFLEX_COPY) != 0) {
        pair_send_copy(pair, NULL, 0);
    }
    if ((pair->reflexes & REFLEX_POLICY) != 0) {
        reflex_policy(pair, heard);
    }
}
