/*
 * The local ranks of a job: what they are told, and their memory.
 */
#ifndef ADTOPK_JOB_RANKS_H
#define ADTOPK_JOB_RANKS_H

#include "daemon/job/model.h"

/* From now on pushes are also noted for the tensors of the batch that the rank committed last. */
void rank_take_pushed(struct rank *rank);
/* Tells the rank that its batch is in force. */
void rank_make_ready(struct rank *rank);

/* Whether the rank's process pushed something in the open step, or ended it. */
bool rank_has_begun(const struct rank *rank);

/* The engine's number of the arena with a local rank's gradient of a tensor in the open step. */
uint32_t rank_arena(const struct job *job, unsigned rank, uint32_t t);

/* The driver frees the gradients of the rank, and of processes before and after it. */
void rank_release(const struct rank *rank);
void rank_free(struct rank *rank);

#endif
