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
/* Whether every member has joined with the batch behind those in force here: a view is to put it in
 * force. */
bool batch_is_ready(const struct job *job);
/* What the commit of a view says of the policy if the batch comes with it: the one given, whose
 * plan, if it has one, is for other tensors. A new version, unless some nodes have it in force with
 * the batch. `text` has room for POLICY_TEXT_SIZE. Errors: MEMORY, POLICY. */
enum adtopk_status batch_policy(
    const struct job *job, Adtopk__PeerPolicy *policy, char *text, struct error *err);
/* Lays out the batch of the commit, which the switch to its policy puts in force. False, and the
 * job has failed, if it cannot be. */
bool batch_take(struct job *job, const Adtopk__PeerCommit *commit);
/* The plan for it is in force: tells the ranks. */
void batch_begin(struct job *job);

#endif
