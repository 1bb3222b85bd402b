/*
 * Arrays of a checkpoint: the elements and carries of a residual, and its velocity.
 *
 * Pieces of an array are parts of a *stretch*, which the engine saves or loads at once. A near
 * engine's stretch is one piece. A far engine's is longer: what is read is saved ahead, and what is
 * written waits until the stretch is full, or another one begins. So what a rank wrote last goes
 * with a daemon that is killed.
 */
#ifndef ADTOPK_COMPUTE_KEEPING_ARRAY_H
#define ADTOPK_COMPUTE_KEEPING_ARRAY_H

#include "daemon/job/model.h"

/* Floats of a tensor's array, `section`, on this node; 0: it has no such array. */
uint64_t keeping_floats(const struct job *job, uint32_t tensor, enum keep_section section);

/* Reads a piece, or writes it; no compute uses the residuals. Errors: MEMORY; PENDING: the engine
 * is at work, and the piece is to come again; ARGUMENT: values that no residual may have; STATE:
 * the policy has changed since the stretch began. */
enum adtopk_status keeping_read_array(struct job *job, struct event_keep *keep, struct error *err);
enum adtopk_status keeping_write_array(
    struct job *job, const struct event_keep *keep, struct error *err);

/* Reads elements as a rank sees them between two steps: those in bf16 with their carries. Errors:
 * as above. The elements are at keep->bytes, and its section does not matter. */
enum adtopk_status keeping_read_elements(
    struct job *job, struct event_keep *keep, struct error *err);

/* Has what was written loaded. OK: all is. PENDING, STATE: as above. */
enum adtopk_status keeping_flush(struct job *job, struct error *err);

/* Gives the stretch's memory back. What was written is loaded, or not wanted. */
void keeping_free(struct job *job);

#endif
