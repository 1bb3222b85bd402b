/*
 * Stores: a job's residuals and their state.
 *
 * Without a folder of stores their memory ends with the job or the daemon. Only the daemon writes
 * it. So the system gives it when the daemon's workers first touch it, which does not stop the
 * loop. The parts with residuals that ranks asked for have descriptors: ranks map them for reading.
 * The other parts are private, because the kernel has huge pages for those, and passes over them
 * are faster.
 *
 * With a folder they are files in memory, which the next daemon finds (folder.h). The keeper
 * reserves the space of large ones, because a write to a full file system would end the daemon. The
 * job waits for that before it touches them: see stores_filling().
 */
#ifndef ADTOPK_LOCAL_STORE_H
#define ADTOPK_LOCAL_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/local/folder.h"
#include "daemon/local/keeper.h"
#include "proto/error.h"

struct stores;

/** NULL without memory. The keeper gives back the memory of released parts. folder: of the stores;
 * NULL: none outlives the daemon. */
struct stores *stores_create(struct keeper *keeper, struct folder *folder);

/** Gives all memory back. NULL is allowed. */
void stores_destroy(struct stores *stores);

/**
 * Makes a part of a job's store, `size` bytes. *existing: it has what an earlier daemon left in the
 * folder. shown: stores_show() may be asked for it. `promised`: memory that the system must keep
 * for others. Errors: MEMORY with the numbers, STATE if the job has this part already.
 */
void *stores_get(struct stores *stores, uint64_t job, unsigned part, uint64_t size, bool shown,
    uint64_t promised, bool *existing, struct error *err);

/** Whether the keeper is still reserving a part of the job's store, or could not: then *failed
 * says why. */
bool stores_filling(const struct stores *stores, uint64_t job, struct error *failed);

/** The daemon ends, and nobody needs what the keeper has not reserved yet. */
void stores_stop_filling(struct stores *stores);

/** Returns a new descriptor of a shown part, for reading, which the caller closes, and its size: 0
 * if the job has no such part. -1: there is none, or an error. */
int stores_show(
    const struct stores *stores, uint64_t job, unsigned part, uint64_t *size, struct error *err);

/** Releases this part of the job's store, if the job has it. What an earlier daemon left of it
 * goes, even if no call got it. */
void stores_release(struct stores *stores, uint64_t job, unsigned part);

/** Bytes of all stores. */
uint64_t stores_bytes(const struct stores *stores);

/**
 * Bytes of all stores that were not yet taken from the system. To count them takes milliseconds per
 * GiB. So each call counts some strides only, and goes on where the last call stopped. Bytes that
 * were touched since the last count of their stride still count as untouched.
 */
uint64_t stores_untouched(struct stores *stores);

/** Does the same, but counts all strides. */
uint64_t stores_count(struct stores *stores);

#endif
