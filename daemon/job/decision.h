/*
 * What a coordinator decides from its members' answers: which rounds of the open step are completed
 * everywhere, from whose copy. All others are made again.
 */
#ifndef ADTOPK_JOB_DECISION_H
#define ADTOPK_JOB_DECISION_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

#define ALL_ROUNDS UINT32_MAX /* in a commit: every round of the step */

/* Rounds, as a commit has them. */
struct decision {
    Adtopk__PeerRound *round; /* has room for `capacity` */
    Adtopk__PeerRound **list;
    size_t count;
    size_t capacity;
};

/* Whether the answers go together. If so, tells the steps and plain operations of the furthest
 * member. If not, the job has failed, or drops a member and regroups. */
bool decision_is_possible(struct job *job, uint64_t *steps, uint64_t *ops);

/* Lists every round that some member delivered and another may lack, each once: the first member
 * that has it is its holder. decision_free() frees it, also after an error. Errors: MEMORY. */
enum adtopk_status decision_make(
    const struct job *job, uint64_t steps, uint64_t ops, struct decision *decision);
void decision_free(struct decision *decision);

#endif
