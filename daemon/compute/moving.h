/*
 * A policy moves a job's residuals and velocities between this node's far engine and host memory.
 *
 * Where a job's residuals are is a function of its plan in force (plan_engine()): with the node's
 * engine, or in memory of the store, as if this node had no other engine than the host's. There the
 * parts have the numbers and offsets that they have on the far engine (core_memory.keep).
 *
 * Happy path: the next plan has another `engine`. When it is proposed, memory is made for it where
 * the plan in force has its own, as ever, and the same parts are opened on the other side, too. At
 * the switch the engine in force converts and joins (work_job.c). Then the far engine saves all of
 * it into host memory, or loads it from there. The record that puts the policy in force says where
 * residuals are from then on, and the other side's memory is given back.
 *
 * Failures: there is no memory on the other side, or a gradient lies on a GPU, where the host's
 * engine cannot read it. The change is refused. If it is called off, the other side's memory is
 * given back. If the daemon is killed before that record, the memory in force is unchanged, and the
 * next daemon drops the other. A far engine that dies repeats its orders.
 *
 * Progress stays where it is: between two steps no pass is under way, and all later ones have
 * higher stamps.
 */
#ifndef ADTOPK_COMPUTE_MOVING_H
#define ADTOPK_COMPUTE_MOVING_H

#include "daemon/job/model.h"

/* Opens a part with residuals or velocities where the engine in force has them. *existing: it was
 * there already. NULL with an error. */
uint8_t *moving_part(
    struct job *job, unsigned number, uint64_t size, bool shown, bool *existing, struct error *err);

/* Whether the engine of a plan can read all gradients of this node's ranks. */
enum adtopk_status moving_check(const struct job *job, const struct plan *plan, struct error *err);

/* Opens the next plan's parts on the other side, if its residuals move. They are open here. */
enum adtopk_status moving_open(struct job *job, struct plan *next, struct error *err);

/* The place on the other side of what the plan has here. */
void *moving_place_residual(const struct job *job, const struct plan *plan, uint32_t tensor);
void *moving_place_velocity(
    const struct job *job, const struct plan *plan, uint32_t tensor, unsigned rank);

/* A plan was put in force, or the next one dropped: if residuals were moved for it, they are on the
 * other side from now on. Gives back what the engine that is not in force has of the job. */
void moving_forget(struct job *job);

#endif
