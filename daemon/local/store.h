/*
 * Stores: a job's residuals and their state.
 *
 * They are memory that ends with the job or the daemon. Only the daemon writes it, so it is taken
 * from the system when the daemon's workers first touch it, not on the loop. The parts that hold
 * residuals have descriptors: ranks that look ahead map them for reading. The others are private.
 */
#ifndef ADTOPK_LOCAL_STORE_H
#define ADTOPK_LOCAL_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/local/keeper.h"
#include "proto/error.h"

struct stores;

/** NULL without memory. The keeper gives back the memory of parts that are released. */
struct stores *stores_create(struct keeper *keeper);

/** Gives everything back. NULL is allowed. */
void stores_destroy(struct stores *stores);

/**
 * A new part of a job's store, `size` bytes. shown: stores_show() may be asked for it. `promised`:
 * memory that the system must keep for others. Errors: MEMORY with the numbers, STATE if the job
 * has this part already.
 */
void *stores_get(struct stores *stores, uint64_t job, unsigned part, uint64_t size, bool shown,
    uint64_t promised, struct error *err);

/** A new descriptor of a shown part, for reading, which the caller closes; and its size, 0 where
 * the job has no such part. -1: there is none, or an error. */
int stores_show(
    const struct stores *stores, uint64_t job, unsigned part, uint64_t *size, struct error *err);

/** The job no longer uses this part of its store, if it has it. */
void stores_release(struct stores *stores, uint64_t job, unsigned part);

/** Bytes of all stores. */
uint64_t stores_bytes(const struct stores *stores);

/**
 * Bytes of all stores that were not taken from the system yet. A look at them takes milliseconds a
 * GiB, so each call looks at a part only, and goes on where the last one stopped: what was touched
 * since the last look at it still counts as untouched.
 */
uint64_t stores_untouched(struct stores *stores);

/** The same after a look at all. */
uint64_t stores_count(struct stores *stores);

#endif
