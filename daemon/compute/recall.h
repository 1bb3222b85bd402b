/*
 * What the store of an earlier daemon tells before the job's first view, and how long it stays.
 */
#ifndef ADTOPK_COMPUTE_RECALL_H
#define ADTOPK_COMPUTE_RECALL_H

#include "daemon/job/model.h"

/* Adds the views in the store, if there is one, to those that this node knows. The store is opened
 * later, when all local ranks are there, and whatever is wrong with it is said then. */
void recall_views(struct job *job);
/* Whether ranks return to a run, and the node was not in its last view that this node's store
 * knows. */
bool recall_has_no_part(const struct job *job, uint16_t node);
/* The job has ended, and its memory is given back. A store to which ranks may still return, or join
 * again with, stays. */
void recall_release(const struct job *job);

#endif
