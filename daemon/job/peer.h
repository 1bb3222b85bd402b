/*
 * Messages to other nodes.
 */
#ifndef ADTOPK_JOB_PEER_H
#define ADTOPK_JOB_PEER_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

/* Sends this node's join. reply: the node is to send its own back. */
void peer_send_join(struct job *job, uint16_t node, bool reply);
void peer_send_split(struct job *job, uint64_t step, uint32_t bucket);
void peer_send_fail(struct job *job, const struct error *error);
void peer_send_leave(struct job *job);
void peer_send_fetch(struct job *job, uint16_t holder, uint64_t number, uint32_t bucket, bool op);
void peer_send(struct job *job, uint16_t node, Adtopk__PeerMessage *message);
/* Sends to the coordinator of these members. False: this node is the coordinator. */
bool peer_send_coordinator(
    struct job *job, const struct membership *members, Adtopk__PeerMessage *message);
/* Whose part of a job ends by a refusal: the job's on all nodes that hear of it; the sender's,
 * whose daemon has lost it; the receiver's, without which the others go on. */
enum peer_refusal { REFUSE_JOB, REFUSE_SENDER, REFUSE_RECEIVER };

/* Answers one node, whose message was about `asked`, that it has no part in such a job on this
 * node. */
void peer_refuse(struct core *core, uint16_t node, const Adtopk__PeerAbout *asked,
    const struct error *error, enum peer_refusal whose);
/* Answers a message of a node without which its job went on here, even if that has ended since. */
void peer_tell_left_out(struct core *core, const struct job_key *key, uint16_t node,
    const Adtopk__PeerMessage *message);
/* Sends a message that may be lost for want of memory. */
void peer_offer(struct job *job, uint16_t node, Adtopk__PeerMessage *message);
/* The same to every other node of the view in force. */
void peer_offer_all(struct job *job, Adtopk__PeerMessage *message);
void peer_send_all(struct job *job, Adtopk__PeerMessage *message);

#endif
