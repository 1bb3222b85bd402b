/*
 * Messages that a test sends in the place of another node: a message and room for its content. The
 * test owns the strings and lists in it.
 */
#ifndef ADTOPK_TESTS_WORDS_H
#define ADTOPK_TESTS_WORDS_H

#include "peer.pb-c.h"

struct words {
    Adtopk__PeerMessage message; /* points into this structure, so do not copy the structure */
    union {
        Adtopk__PeerJoin join;
        Adtopk__PeerPrepare prepare;
        Adtopk__PeerState state;
        Adtopk__PeerCommit commit;
        Adtopk__PeerFetch fetch;
        Adtopk__PeerSplit split;
        Adtopk__PeerFail fail;
        Adtopk__PeerLeave leave;
        Adtopk__PeerPolicyAsk policy_ask;
        Adtopk__PeerCheckpointAsk checkpoint_ask;
        Adtopk__PeerPolicyPropose policy_propose;
        Adtopk__PeerPolicyAnswer policy_answer;
        Adtopk__PeerPolicyEnd policy_end;
        Adtopk__PeerEstimates estimates;
        Adtopk__PeerWaiting waiting;
        Adtopk__PeerResidual residual;
        Adtopk__PeerRecordsAsk records_ask;
        Adtopk__PeerRecords records;
        Adtopk__PeerRanksAsk ranks_ask;
        Adtopk__PeerRanks ranks;
    } said;
};

/** Makes an empty message of this kind and returns its content: an Adtopk__PeerJoin and so on. */
void *words_begin(struct words *words, Adtopk__PeerMessage__KindCase kind);

/* The fields of the messages about a change of the policy. */
struct words_of_policy {
    unsigned part;              /* 0: asks for it; 1: proposes it; 2: answers; 3: calls it off */
    Adtopk__PeerPolicy *policy; /* may be NULL */
    uint32_t version, attempt, status, node;
    char *text; /* for parts 2 and 3 */
};

/** Makes a message of one of the four parts from the fields of `of` that this part has. */
void words_policy(struct words *words, const struct words_of_policy *of);

#endif
