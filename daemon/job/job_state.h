/*
 * Queries about a job, and the note that an event concerns it.
 */
#ifndef ADTOPK_JOB_JOB_STATE_H
#define ADTOPK_JOB_JOB_STATE_H

#include "daemon/job/model.h"

void job_touch(struct job *job); /* core/advance.c looks at it when the event is handled */
/* There may be reason for a view with other nodes. */
void job_regroup(struct job *job);

/* Something that lasts has begun, or is known to have begun: notes the time, if none is noted. */
void job_note_since(const struct job *job, uint64_t *since_us);

struct rank *job_rank(const struct job *job, uint32_t number);
bool job_is_left(const struct job *job); /* all its ranks on this node have left */
/* Whether the ranks of that node have left after steps that are done here too: no work under way
 * needs the node any more. */
bool job_is_done_with(const struct job *job, uint16_t node);

bool job_peer_is_up(const struct job *job, uint16_t node); /* also true for this node itself */

uint64_t step_number(const struct job *job);
/* The first this many rounds of the plan may be active; the others are idle. */
uint32_t step_rounds(const struct job *job);
bool step_round_active(const struct job *job, const struct round *round);
struct round *step_round(struct job *job, uint32_t tensor); /* the round that now sends it */
bool step_begun(const struct job *job); /* some local rank began it, so it must be ended */

/* Whether no compute has the residuals, and they are not lent. */
bool residuals_are_free(const struct job *job);

uint64_t round_number(const struct round *round);
bool round_delivered(const struct round *round); /* what the store says of the open step */
/* The node for whose frame the round waits; -1: none. */
int round_late_node(const struct round *round);
/* Whether that node may itself wait for other nodes. */
bool round_relays(const struct round *round);

/* "forming", ... "done" or "failed": job_info.state. */
const char *job_state_name(const struct job *job);

#endif
