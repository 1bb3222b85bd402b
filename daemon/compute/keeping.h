/*
 * What a checkpoint keeps of a job on this node: a rank reads it piece by piece between two steps,
 * or writes it before the first one.
 *
 * The client library makes files of it (client/src/checkpoint.c) and takes it out of files. The
 * daemon opens no file for that. Ranks of all nodes do so together, and none of them pushes
 * meanwhile.
 */
#ifndef ADTOPK_COMPUTE_KEEPING_H
#define ADTOPK_COMPUTE_KEEPING_H

#include "daemon/job/model.h"

/** Handles an EVENT_RANK_KEEP. Only the first rank of a node may write. It begins with KEEP_JOB:
 * from then until KEEP_END no rank of this node can push. A piece may be written again. A rank
 * that reads KEEP_END says by it that all ranks have saved what was read last.
 *
 * Errors:
 *
 * - ARGUMENT: a piece, or values, that cannot be.
 * - MISMATCH: names a tensor that is another one here.
 * - STATE: not between two steps. Writing: not before the first step, not in order, another
 *   checkpoint than the one that has begun, or another policy than before.
 * - MEMORY, and PENDING: a compute, or a far engine, uses the residuals. */
enum adtopk_status keeping_take(
    const struct rank *rank, struct event_keep *keep, struct error *err);

/** Whether a rank may push, or end a step. Errors: STATE (a checkpoint is being loaded). */
enum adtopk_status keeping_check_push(const struct rank *rank, const char *what, struct error *err);

#endif
