/*
 * Joins: the nodes that have ranks of a job, and whether they agree on the job.
 */
#ifndef ADTOPK_CORE_JOIN_H
#define ADTOPK_CORE_JOIN_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

void join_announce(struct job *job); /* a local rank has mapped its arena */
void join_peer_up(struct core *core, uint16_t node);
void join_message(
    struct job *job, uint16_t from, const Adtopk__PeerAbout *about, const Adtopk__PeerJoin *join);

#endif
