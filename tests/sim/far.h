/*
 * A far engine: what a GPU's worker process is to the core, with host.c doing the arithmetic. It
 * has the residuals and the progress of their passes in memory of its own; the core's copy of the
 * residuals is filled with NaN, so that reading them past the engine shows.
 *
 * Orders wait for random times, and those of different tensors overtake each other. The engine dies
 * between orders and comes back with its memory; then it carries out from the start what it had not
 * finished. If the test wants it, some of these times the memory has lost its content.
 */
#ifndef ADTOPK_SIM_FAR_H
#define ADTOPK_SIM_FAR_H

#include "daemon/engine/engine.h"

struct node;
struct node_job;
struct sim_event;

/** Its context is the struct node. */
extern const struct engine_ops far_engine;

/** Whether a node of this scenario has a far engine: some do, in every third scenario. */
bool far_is_chosen(uint64_t seed, unsigned node);

/** SIM_ORDER: carries one order out. */
void far_turn(struct node *node, const struct sim_event *event);

/** All of the engine's memory is zeros, as it has gone with the daemon. */
void far_clear(struct node *node);

/** The engine dies, comes back with empty memory and says so. */
void far_lose(struct node *node);

/** Whether the core has yet to hear of a residual that was lost: that comes with its next order. */
bool far_has_untold(const struct node_job *memory);

/** Whether orders are under way. */
bool far_is_busy(const struct node *node);

/** The daemon has died; the engine drops its orders and keeps its memory. */
void far_forget(struct node *node);

/** A part of a job's store is new, or gone if `size` is 0. */
void far_part(struct node *node, struct node_job *memory, unsigned part, uint64_t size);

/** Images of such parts, as core_memory has them: they outlive the core. */
void *far_keep(void *context, uint64_t number, unsigned part, uint64_t size, bool *existing,
    struct error *err);
void far_drop_keep(void *context, uint64_t number, unsigned part);

/** The job's residuals are in such memory, and the engine has nothing of it. When a part with
 * residuals comes, it has the others again, which are new. */
void far_leave(void *context, uint64_t number);
void far_join(struct node *node, struct node_job *memory, unsigned part);

#endif
