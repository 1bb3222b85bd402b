/*
 * What the store of an earlier daemon tells before the job's first view.
 */
#ifndef ADTOPK_COMPUTE_RECALL_H
#define ADTOPK_COMPUTE_RECALL_H

#include "daemon/job/model.h"

/* Adds the views in the store, if there is one, to those that this node knows. The store is opened
 * later, when all local ranks are there, and whatever is wrong with it is said then. */
void recall_views(struct job *job);

#endif
