/*
 * A job's tensors, spread over the devices of this node (daemon/engine/shards.h).
 */
#ifndef ADTOPK_COMPUTE_SPREAD_H
#define ADTOPK_COMPUTE_SPREAD_H

#include "daemon/job/model.h"

/* How many devices get the job's tensors: as many as it has ranks here, if there are so many; 0:
 * the node has none. Final when all its ranks have gradient arenas. */
unsigned spread_devices(const struct job *job);

/* Spreads the tensors of a batch, if the job has devices. */
enum adtopk_status spread_batch(struct job *job, const struct batch *batch, struct error *err);

#endif
