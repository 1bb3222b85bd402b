/*
 * A place in a queue of a far engine. What waits there brings its places along, so that waiting
 * takes no memory and cannot fail.
 */
#ifndef ADTOPK_ENGINE_WAIT_H
#define ADTOPK_ENGINE_WAIT_H

struct engine_batch;
struct cargo;

/* Of the engine, from the submission of what waits until it comes back. */
struct engine_wait {
    struct engine_wait *next;
    struct engine_batch *batch; /* what waits is this */
    struct cargo *cargo;        /* or this operation; else NULL */
    unsigned shard;             /* whose orders, or which device's part of the operation */
};

#endif
