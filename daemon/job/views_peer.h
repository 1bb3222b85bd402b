/*
 * What nodes tell each other of the views that they know.
 */
#ifndef ADTOPK_JOB_VIEWS_PEER_H
#define ADTOPK_JOB_VIEWS_PEER_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

/* Fills in the known view; views_drop_message() frees its arrays. False without memory. */
bool views_fill_known(const struct views *views, Adtopk__PeerView *message);
void views_drop_message(Adtopk__PeerView *message);

/* Answers a proposal that the job's views do not allow, with all that this node knows of them. */
void views_refuse(struct job *job, uint16_t node, uint32_t view);

/* Learns from a message; NULL has nothing. True: it had news. A view that cannot be is ignored. */
bool views_hear_known(struct views *views, const Adtopk__PeerView *message);
bool views_hear_refusal(struct views *views, const Adtopk__PeerState *state);
/* Learns the known view of a proposer, on which it depends who has a vote. False: this node knows a
 * later one, or it joins the job and this cannot be a view. */
bool views_hear_proposer(const struct job *job, const Adtopk__PeerPrepare *prepare);

/* Whether the node may make this proposal, and it makes sense for this job. */
bool views_prepare_is_valid(
    const struct job *job, uint16_t from, const Adtopk__PeerPrepare *prepare);

/* The others went on without this node: the job fails here. */
void views_left_out(struct job *job);

#endif
