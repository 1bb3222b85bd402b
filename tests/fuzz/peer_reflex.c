/* The answers that the peer gives correctly by itself. */
#include <stdio.h>
#include <stdlib.h>

#include "proto/codec.h"
#include "tests/fuzz/peer_host.h"
#include "tests/host/words.h"

#define RUN 7u /* of a job that trains before the core joins it */

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

/* As the coordinator: the core holds, or is taken in. */
static void send_prepare(struct pair *pair)
{
    struct words words;
    Adtopk__PeerPrepare *prepare = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_PREPARE);
    const unsigned self = pair->node < PEER ? 1 : 0; /* the peer's place */
    uint32_t members[2] = {pair->node, pair->node};
    uint64_t incarnations[2], jobs[2];
    uint32_t ranks[2] = {1, 1};
    uint64_t since[2] = {0, 0};
    Adtopk__PeerView known = ADTOPK__PEER_VIEW__INIT;

    members[self] = PEER;
    incarnations[self] = pair->peer_incarnation;
    incarnations[1 - self] = links_incarnation(pair->peer, pair->node);
    jobs[self] = pair->peer_job;
    jobs[1 - self] = pair->core_job;
    known.view = pair->view;
    known.members = pair->takes_in ? &members[self] : members;
    known.ranks = ranks;
    known.since = since;
    known.n_members = known.n_ranks = known.n_since = pair->takes_in ? 1 : 2;
    known.founders = 2;
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

/* What the core must know: as many steps as the fuzz target counts. */
static ProtobufCBinaryData pack_newcomer(const struct pair *pair)
{
    Adtopk__PeerNewcomer newcomer = ADTOPK__PEER_NEWCOMER__INIT;
    uint64_t turns[HOST_TENSORS];
    ProtobufCBinaryData packed = {0};

    for (unsigned t = 0; t < HOST_TENSORS; t++) {
        turns[t] = pair->step;
    }
    newcomer.steps_done = pair->step;
    newcomer.turns = turns;
    newcomer.n_turns = HOST_TENSORS;
    packed.data = codec_pack(&newcomer.base, &packed.len);
    if (packed.data == NULL) {
        abort();
    }
    return packed;
}

/* A core whose ranks begin hears that the job trains. */
static void take_in(struct pair *pair)
{
    pair->takes_in = true;
    pair->run = RUN;
    pair->view = pair->view > 0 ? pair->view : 1;
    pair_send_join(pair, pair->view, false);
    send_prepare(pair);
}

static void send_commit(struct pair *pair, const Adtopk__PeerState *state)
{
    struct words words;
    Adtopk__PeerCommit *commit = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_COMMIT);
    ProtobufCBinaryData newcomer = pack_newcomer(pair);

    commit->view = state->view;
    if (pair->takes_in) {
        commit->since = pair->step + 1;
        commit->ops_done = pair->operation;
        commit->newcomer = newcomer;
        pair->takes_in = false;
    }
    if (pair->offer.version > 0 && state->held == pair->offer.version) {
        commit->policy = &pair->offer;
        pair->policy_version = pair->offer.version;
    }
    pair_send_message(pair, &words.message);
    free(newcomer.data);
}

void pair_reflex(struct pair *pair, const Adtopk__PeerMessage *heard)
{
    if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_JOIN && heard->about->run == 0 &&
        (pair->reflexes & REFLEX_GROW) != 0 && !pair->anew) {
        take_in(pair);
    } else if (heard->kind_case == ADTOPK__PEER_MESSAGE__KIND_JOIN &&
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
