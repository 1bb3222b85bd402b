/*
 * The places of what a plan keeps in the store.
 */
#ifndef ADTOPK_COMPUTE_LAYOUT_PLAN_H
#define ADTOPK_COMPUTE_LAYOUT_PLAN_H

#include "daemon/job/model.h"

/* Computes how much of the store the plan takes, for plan->nodes nodes. Uses no other state of the
 * job. */
void layout_measure(const struct job *job, struct plan *plan);
/* Opens the plan's STORE_PLAN and STORE_VELOCITIES, and points its tensors' kept lists and
 * velocities to them. `switches`: the number of switches made when the plan is in force. */
enum adtopk_status layout_kept(
    struct job *job, struct plan *plan, uint32_t switches, struct error *err);
/* Frees the parts that the plan in force does not use. */
void layout_drop_kept(struct job *job);

#endif
