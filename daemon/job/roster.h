/*
 * The ranks of all nodes of a job, for a client: the daemon that it asks, asks each member for its
 * own. Nothing is sent unless a client asks.
 *
 * The happy path: EVENT_RANKS, asks, answers, ACTION_RANKS; core_roster() then has the answers.
 * Failures: a member that is down, does not answer in ROSTER_WAIT_US, or is of a version that does
 * not know the message, is in the outcome as one that gave no answer. A client that asks while
 * another one waits gets the same outcome; one that comes when ROSTER_ASKING_MAX wait is refused.
 */
#ifndef ADTOPK_JOB_ROSTER_H
#define ADTOPK_JOB_ROSTER_H

#include "daemon/job/model.h"
#include "proto/peer.pb-c.h"

#define ROSTER_WAIT_US UINT64_C(2000000)
#define ROSTER_ASKING_MAX 64u /* requests that wait for a job's ranks at once */

/** What is known of the index-th local rank; false: there are fewer. */
bool roster_local(const struct job *job, uint32_t index, struct rank_info *info);

/** The index-th other node, as it answered last; NULL: there are no more. */
const struct node_ranks *roster_node(const struct job *job, uint32_t index);

/** A client asks. Errors: STATE, MEMORY. */
enum adtopk_status roster_request(struct core *core, const struct event *event, struct error *err);

/** A member asks; a member answers. */
void roster_asked(struct job *job, uint16_t from, const Adtopk__PeerRanksAsk *ask);
void roster_answered(struct job *job, uint16_t from, const Adtopk__PeerRanks *answer);

/** When roster_check_time() has something to do; UINT64_MAX: never. */
uint64_t roster_deadline(const struct job *job);
void roster_check_time(struct job *job);

void roster_drop(struct job *job);

#endif
