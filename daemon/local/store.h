/*
 * Stores: a job's residuals and their state. A store may be kept after its job's run has ended,
 * for a run that continues it; it expires.
 *
 * Here they are reserved anonymous memory, which ends with the daemon.
 */
#ifndef ADTOPK_LOCAL_STORE_H
#define ADTOPK_LOCAL_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/error.h"

struct stores;

/** NULL without memory. `ttl_ms`: how long a kept store waits. */
struct stores *stores_create(uint64_t ttl_ms);

/** Gives everything back. NULL is allowed. */
void stores_destroy(struct stores *stores);

/**
 * The store of a job, `size` bytes; *existing: it was kept and has what it had. A kept store of
 * another size is of no use and is dropped. Errors: MEMORY with the numbers, STATE if the job has
 * its store already.
 */
void *stores_get(
    struct stores *stores, uint64_t job, uint64_t size, bool *existing, struct error *err);

/** The job no longer uses its store. keep: hold it until `now_ms` plus the time to live. */
void stores_release(struct stores *stores, uint64_t job, bool keep, uint64_t now_ms);

/** Drops kept stores whose time is over; true if others still wait. */
bool stores_expire(struct stores *stores, uint64_t now_ms);

/** Bytes reserved. */
uint64_t stores_bytes(const struct stores *stores);

#endif
