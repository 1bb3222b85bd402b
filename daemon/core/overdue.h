/*
 * A live node that owes its part of a round, and an engine that owes its results, for the files of
 * this folder.
 *
 * The happy path: this node has sent its part of a round, and the frame of another node does not
 * come. If nothing excuses that node the job ends after the policy's round_timeout. A node is
 * excused while bytes of this job's frames move between the two nodes. It is also excused while it
 * says that it waits for something itself, and while it is not up. Afterwards it has the whole time
 * again.
 *
 * What could go wrong: a node may hang in one job and go on in another, so frames of other jobs
 * excuse no node. This daemon may have been stopped, so that it has heard nothing for a while:
 * overdue_forgive().
 */
#ifndef ADTOPK_CORE_OVERDUE_H
#define ADTOPK_CORE_OVERDUE_H

#include "daemon/job/model.h"

/** Fails the job if a live node is overdue. Call it several times per round_timeout. */
void overdue_check(struct job *job);

/** Gives every member the whole time again. */
void overdue_forgive(struct job *job);

#endif
