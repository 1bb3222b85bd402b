/*
 * The queue of actions for the driver, with the computes among them.
 */
#ifndef ADTOPK_JOB_ACTIONS_H
#define ADTOPK_JOB_ACTIONS_H

#include "daemon/job/model.h"

/* Room for the actions of jobs that have ended but were not told yet. */
#define ACTIONS_MIN 1024u

/* How many actions one rank of the job may have waiting. */
uint64_t actions_of_rank(const struct job *job);

/* Makes room for what all jobs may do, and for so many actions more. */
enum adtopk_status core_reserve_actions(struct core *core, uint64_t more, struct error *err);
void core_act(struct core *core, const struct action *action);
void core_compute(
    struct work *work, void (*run)(struct compute *), void (*done)(struct work *), uint64_t bytes);

/* The urgency of a round's computes and frames; round NULL: of those of the whole job. */
struct share_class core_class_of(const struct job *job, const struct round *round);

#endif
