/*
 * Jobs of other nodes that took part in jobs that ended here.
 *
 * A message of a job that never had a view names no run. Only the numbers of the jobs tell whether
 * it is of that attempt or of the next one with the same key. Numbers rise on every node, so the
 * latest of each node and key is enough. The last FORMER_JOBS of these are remembered. A message of
 * an older attempt counts as one of the job that forms now.
 */
#ifndef ADTOPK_JOB_FORMER_H
#define ADTOPK_JOB_FORMER_H

#include "daemon/job/model.h"

/** Remembers the members' jobs when the job ends. ended: they have ended, or will. */
void former_note(const struct job *job, bool ended);

/** Remembers the jobs of members that are not kept: the job goes on without them. */
void former_leave_out(const struct job *job, const struct membership *kept);

/** Remembers why the run ended here. */
void former_note_why(const struct job *job, const char *why);

/** That reason, behind ": "; "" if it is not known. */
const char *former_why(const struct core *core, uint64_t run);

/** A rank that returns to a run needs this node's store of it, and a run that has not ended here: a
 * connection over a network may break while the daemon lives. Errors: STATE, LOST with the reason.
 */
enum adtopk_status former_check_return(
    const struct core *core, const struct event *event, struct error *err);

/** Whether a job with this key went on here without the node's job of this number. It may have
 * ended since. */
bool former_is_left_out(
    const struct core *core, const struct job_key *key, uint16_t node, uint64_t number);

/** Whether the node's job of this number took part in an earlier job with the job's key. */
bool former_had(const struct job *job, uint16_t node, uint64_t number);

/** Whether, besides, that job of the node has ended there, or is about to. */
bool former_ended(const struct job *job, uint16_t node, uint64_t number);

#endif
