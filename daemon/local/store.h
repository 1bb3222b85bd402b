/*
 * Stores: a job's residuals and their state.
 *
 * Here they are private anonymous memory, which ends with the job or the daemon. Nobody else maps
 * it, so it is taken from the system when the daemon's workers first touch it, not on the loop.
 */
#ifndef ADTOPK_LOCAL_STORE_H
#define ADTOPK_LOCAL_STORE_H

#include <stdint.h>

#include "daemon/local/keeper.h"
#include "proto/error.h"

struct stores;

/** NULL without memory. The keeper gives back the memory of parts that are released. */
struct stores *stores_create(struct keeper *keeper);

/** Gives everything back. NULL is allowed. */
void stores_destroy(struct stores *stores);

/**
 * A new part of a job's store, `size` bytes. `promised`: memory that the system must keep for
 * others. Errors: MEMORY with the numbers, STATE if the job has this part already.
 */
void *stores_get(struct stores *stores, uint64_t job, unsigned part, uint64_t size,
    uint64_t promised, struct error *err);

/** The job no longer uses this part of its store, if it has it. */
void stores_release(struct stores *stores, uint64_t job, unsigned part);

/** Bytes of all stores. */
uint64_t stores_bytes(const struct stores *stores);

/** ... that were not taken from the system yet. */
uint64_t stores_untouched(const struct stores *stores);

#endif
