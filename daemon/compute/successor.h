/*
 * Ranks whose process ended, under the policy on_rank_loss "wait": another process takes the place.
 */
#ifndef ADTOPK_COMPUTE_SUCCESSOR_H
#define ADTOPK_COMPUTE_SUCCESSOR_H

#include "daemon/job/model.h"

/* The rank's process has ended. True: its place is vacant from now on, and the job waits. */
bool successor_wait(struct rank *rank, const char *reason);

/* Whether an EVENT_RANK_OPEN is of a process that comes back, or must be. The job may be NULL. */
bool successor_is_meant(const struct job *job, const struct event_open *open);
/* Such a process opens the job. An error concerns that process alone. */
enum adtopk_status successor_open(
    struct core *core, struct job *job, const struct event *event, struct error *err);
/* A request of a process that is on its way to a place. It may free the rank. */
enum adtopk_status successor_event(struct rank *rank, const struct event *event, struct error *err);
/* One of them takes its place, or the gradients of an ended process are given back. True: the first
 * happened. */
bool successor_advance(struct job *job);
/* Whether the request repeats what counts already. If so, it is done. */
bool successor_repeats(struct rank *rank, const struct event *event);

/* Refuses to begin the step while others wait for the rank in an operation, which the process
 * before it did not call: they would wait for each other. Its place is then vacant again. */
enum adtopk_status successor_check_call(
    const struct rank *rank, const char *what, struct error *err);

/* A local rank whose place is vacant; NULL: none. */
const struct rank *successor_vacant(const struct job *job);
/* Whether all local ranks' places are, and no process is on its way. */
bool successor_all_ended(const struct job *job);

#endif
