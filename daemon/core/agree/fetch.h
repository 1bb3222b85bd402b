/*
 * Copies of rounds that only some nodes delivered.
 */
#ifndef ADTOPK_CORE_FETCH_H
#define ADTOPK_CORE_FETCH_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

void fetch_drop(struct job *job);
void fetch_message(struct job *job, uint16_t from, const Adtopk__PeerFetch *message);
void fetch_delivered(struct job *job, const Adtopk__PeerCommit *commit);
void fetch_answer(struct job *job);

#endif
