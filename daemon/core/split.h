/*
 * Splitting buckets: their tensors are sent alone, because a rank waits for one of them.
 */
#ifndef ADTOPK_CORE_SPLIT_H
#define ADTOPK_CORE_SPLIT_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

/* The rank blocks on a tensor. If it has not pushed all of its bucket, splits the bucket. While the
 * view changes, or the step is held, this has to wait: the second function makes up for it. */
void split_for_wait(struct rank *rank, uint32_t tensor);
void split_catch_up(struct rank *rank);
void split_message(struct job *job, const Adtopk__PeerSplit *split);
void split_learn(
    struct job *job, const uint32_t *bucket, size_t buckets, const uint64_t *step, size_t steps);
/* Keeps splits until this newcomer has their policy. False: the job has failed. */
bool split_learn_later(struct job *job, const Adtopk__PeerCommit *commit);
/* Lists all splits of the plan in force, at most one per bucket, and returns their number. */
uint32_t split_list(const struct job *job, uint32_t *bucket, uint64_t *step);
void split_repeat(struct job *job);     /* repeats to the others the splits that still hold */
void split_take_early(struct job *job); /* takes splits that came before the plan was in force */
void split_free(struct job *job);       /* frees the early ones */

#endif
