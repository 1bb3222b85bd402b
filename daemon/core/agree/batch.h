/*
 * Another batch of tensors: committed by all ranks between two steps, in force on all nodes at
 * once.
 */
#ifndef ADTOPK_CORE_BATCH_H
#define ADTOPK_CORE_BATCH_H

#include "daemon/job/model.h"
#include "proto/peer.pb-c.h"

/* Batches that all local ranks have mapped. */
unsigned batch_mapped(const struct job *job);
/* Whether every member has joined with the next batch, so that a view must put it in force. */
bool batch_is_ready(const struct job *job);
/* Whether some node has the batch in force, because it heard the commit of an earlier view. */
bool batch_is_known(const struct job *job);
/* The policy in the commit of a view, if the batch comes with it. It is the given policy, whose
 * plan, if it has one, is for other tensors. It gets a new version, unless some nodes have it in
 * force with the batch. `text` has room for POLICY_TEXT_SIZE. Errors: MEMORY, POLICY. */
enum adtopk_status batch_policy(
    const struct job *job, Adtopk__PeerPolicy *policy, char *text, struct error *err);
/* A first view is in force: other ranks have yet to commit what some returned with. */
void batch_expect(struct job *job);
/* Lays out the batch of the commit, which the switch to its policy puts in force. False, and the
 * job has failed, if that is impossible. */
bool batch_take(struct job *job, const Adtopk__PeerCommit *commit);
/* Tells the ranks that the plan for the batch is in force. */
void batch_begin(struct job *job);

#endif
