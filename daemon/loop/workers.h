/*
 * Worker threads: they run computes and hand them back in the order in which they finish. A
 * compute's class decides which one is next (share.h): jobs share the workers' time by weight, and
 * within a job the lowest place goes first, but no compute waits for ever.
 *
 * The owner's thread submits and takes. A worker's thread calls `notify` after it has queued a
 * compute for taking; `notify` must be safe there (uv_async_send is). Notifications may coalesce,
 * so on each one the owner takes until nothing is left.
 *
 * A compute can spread a loop over idle workers (workers_parallel). Happy path: the loop is
 * announced, idle workers wake up, and they and the caller claim one part after the other from one
 * counter. When no part is left the caller withdraws the loop and waits for the parts that others
 * still run. What could go wrong:
 *   - All workers are busy, or wake too late: the caller runs every part itself. It only waits for
 *     workers that are inside a part, so there is no circle of waiting, also not where parts run
 *     loops of their own.
 *   - A worker that helps could leave computes waiting: it looks for one after every part.
 *   - The workers are being destroyed: none claims another part, and callers finish alone.
 */
#ifndef ADTOPK_WORKERS_H
#define ADTOPK_WORKERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/core.h"
#include "daemon/settings/config.h"
#include "kernels/base/parallel.h"
#include "proto/error.h"

struct workers;

/** Starts `count` threads (1 to CONFIG_WORKERS_MAX); NULL and err on failure. */
struct workers *workers_create(
    unsigned count, void (*notify)(void *context), void *context, struct error *err);

/** How computes spread a loop over these workers, for core_config.parallel: the threads are the
 * owner's, number 0, and the workers', 1 to `count`. A worker sets compute->thread accordingly. */
struct parallel workers_parallel(struct workers *workers);

/** Queues a compute. False without memory: then the caller runs it itself. */
bool workers_submit(struct workers *workers, struct compute *compute);

/** A compute that has been run, or NULL. */
struct compute *workers_take(struct workers *workers);

/** Cheap, approximate: there may be something to take. */
bool workers_finished(const struct workers *workers);

/** For how many microseconds the compute that has been running longest has been; 0: none runs. */
uint64_t workers_longest_us(const struct workers *workers);

/** How many threads there are. */
unsigned workers_count(const struct workers *workers);

/** The time that all workers together spent in computes and in parts of loops that are over. */
uint64_t workers_busy_us(struct workers *workers);

/** Waits for the running computes, drops the waiting ones, ends the threads. */
void workers_destroy(struct workers *workers);

#endif
