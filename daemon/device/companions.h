/*
 * Which batches are fed together.
 *
 * A batch of small tensors takes about as long as the way to the worker and back. So batches that
 * have come meanwhile share that way: their orders of one kind become one run. A batch has to wait
 * for those that go with it, hence the limits.
 */
#ifndef ADTOPK_DEVICE_COMPANIONS_H
#define ADTOPK_DEVICE_COMPANIONS_H

#include "daemon/device/state.h"

/* Batches that follow one another by `next`. */
struct companions {
    unsigned batches;
    unsigned orders;   /* of all shards */
    uint64_t elements; /* of all shards */
};

/** Counts them. */
struct companions companions_of(const struct engine_wait *first);

/** The part of some time that is for this batch, by its elements. */
uint64_t companions_share(
    const struct companions *all, const struct engine_wait *waiting, uint64_t time_us);

/** Takes an operation, or a batch and those right behind it that go with it: of the same job and
 * shard, and for other tensors. NULL: the queue is empty. */
struct engine_wait *companions_take(struct queue *queue);

#endif
