/*
 * What the store of an earlier daemon tells before the job's first view.
 */
#ifndef ADTOPK_COMPUTE_RECALL_H
#define ADTOPK_COMPUTE_RECALL_H

#include "daemon/job/model.h"

/* Adds the views in the store, if there is one, to those that this node knows. The store is opened
 * later, when all local ranks are there. */
enum adtopk_status recall_views(struct job *job, struct error *err);

#endif
