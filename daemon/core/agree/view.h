/*
 * Every member's side of a view: prepare, answer, commit. view.c tells the whole story.
 */
#ifndef ADTOPK_CORE_VIEW_H
#define ADTOPK_CORE_VIEW_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

bool view_catch_up(struct job *job);   /* the step has opened: what waited for it goes on */
bool view_try_answer(struct job *job); /* if a prepare waits for it, and nothing computes */
/* Answers a proposal later, or refuses it now. True: this node promises to take part. */
bool view_prepare(struct job *job, uint16_t from, const Adtopk__PeerPrepare *prepare);
void view_commit(struct job *job, uint16_t from, const Adtopk__PeerCommit *commit);

/* The ranks of a node that has joined take part from now on. */
bool view_ready_newcomer(struct job *job);

#endif
