/*
 * Operations of a carrier (daemon/collective/cargo.h), started in one order on all nodes.
 *
 * A device makes one operation at a time, and an operation ends only when all its members have
 * started it. So two nodes that start two operations in different orders wait for each other. The
 * order has to cover all jobs of a node, and each job may have other members.
 *
 * Happy path: the members of a round tell each other that they are ready, then propose a number
 * each. The highest proposal becomes the operation's number on all of them. A node starts
 * operations in the order of their numbers. It holds one back while another one, of which it knows
 * only its own proposal, may still get a lower number. A proposal is higher than all numbers that
 * the node has seen, and an agreed number is never below it, so nothing gets in before what was
 * started. Nobody has to number operations for nodes that it shares no job with.
 *
 * Failures:
 * - A node dies between its ready frame and its number: other operations wait behind this one until
 *   the view changes, or the job ends, and the round drops it.
 * - The view changes, or the job ends, while the carrier works: the operation is aborted and its
 *   group is broken. It keeps its memory until the carrier brings it back.
 * - The carrier fails, or does not end within round_timeout: the job ends with that sentence. While
 *   a member is lost, a failure is what was to be expected, and the round waits for the next view.
 *   The carrier may know of a loss before the links do, so they get their time first.
 */
#ifndef ADTOPK_COMPUTE_LAUNCH_H
#define ADTOPK_COMPUTE_LAUNCH_H

#include "daemon/job/model.h"

/** GPUs on which this node has the job's tensors, as its join tells (spread_devices()); 1 without
 * any. */
uint32_t launch_devices(const struct job *job);

/** Whether a carrier moves values between the members of the view: all have one, of the same
 * version, and the same number of GPUs, and the policy lets residuals be there. */
bool launch_carries(const struct job *job);

/** The exchange was set up: it has an operation to come if its collective is carried. */
void launch_begin(struct round *round);

/** Called when all frames of a phase are there. True: the round goes on. False: a carrier has yet
 * to do something for it, or the job has failed. */
bool launch_advance(struct round *round);

/** The exchange is about to be dropped: aborts the operation, or gives its place up. */
void launch_drop(struct round *round);

/** The carrier has brought an operation back: calls `advance` for each round that may go on, or
 * ends the job. */
void launch_returned(struct core *core, struct cargo *cargo, void (*advance)(struct round *round));

/** Ends the job if an operation of the round has failed some time ago or takes too long, and no
 * member is lost. To be called again and again. */
void launch_check(struct round *round);

/** Since when the engine owes the work's orders. A device makes operations and orders in turn, so
 * the engine is excused while an operation is before the orders: that has a limit of its own. */
uint64_t launch_orders_since(struct work *work);

/** The job has ended: aborts its operations at once. The engine may be busy with one of them, and
 * the job's memory stays until the engine is done with its computes. */
void launch_end(struct job *job);

/** The job is about to be freed. */
void launch_forget(struct job *job);

/** Frees operations that will not come back. No carrier works any more. */
void launch_free(struct core *core);

#endif
