/*
 * Buckets whose tensors travel alone, because a rank waits for one of them.
 */
#ifndef ADTOPK_CORE_SPLIT_H
#define ADTOPK_CORE_SPLIT_H

#include "daemon/job/model.h"
#include "peer.pb-c.h"

/* If the rank blocks on a tensor: splits its bucket if the rank has not pushed all of it. While the
 * view changes, or the step is held, it has to wait. */
void split_for_rank(struct rank *rank);
void split_message(struct job *job, const Adtopk__PeerSplit *split);
void split_learn(
    struct job *job, const uint32_t *bucket, size_t buckets, const uint64_t *step, size_t steps);
/* Lists all splits of the plan in force, at most one a bucket, and returns their number. */
uint32_t split_list(const struct job *job, uint32_t *bucket, uint64_t *step);
void split_repeat(struct job *job);     /* tells the others those that still hold */
void split_take_early(struct job *job); /* those that came before the plan was in force */
void split_free(struct job *job);       /* frees the early ones */

#endif
