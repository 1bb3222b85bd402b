/*
 * The limits of one user on this node: memory and jobs. The system does not count the daemon's own
 * memory to its users, so the daemon has to. (Sessions are limited where they are accepted, and
 * requests of operators by admin/.)
 *
 * Root may have everything. Other users may have `user_memory` percent of the machine's memory
 * each, and leave a twentieth of it to root.
 */
#ifndef ADTOPK_QUOTA_H
#define ADTOPK_QUOTA_H

#include <stdint.h>

#include "daemon/core/core.h"
#include "proto/error.h"

struct quota_limits {
    uint64_t memory_percent; /* of the machine's memory, a user */
    uint64_t jobs;           /* a user */
};

struct quota;

/** NULL without memory. `limits` may change at any time. */
struct quota *quota_create(const struct quota_limits *limits);

void quota_destroy(struct quota *quota);

/** The core's memory operations: they count for each user the memory that `inner` gives, and refuse
 * requests above the limit. Set the core that uses them with quota_watch(). */
struct core_memory quota_memory(struct quota *quota, const struct core_memory *inner);

/** A reservation of the job's results has ended later: EVENT_RESERVED. One that failed is not
 * charged any more, unless there were several at a time. */
void quota_reserved(struct quota *quota, uint64_t job, bool ok);

/** The owner of these sessions and jobs. */
void quota_watch(struct quota *quota, const struct core *core);

/** ADTOPK_ERR_MEMORY, with the numbers, unless the user may have so many bytes more. */
enum adtopk_status quota_afford(
    const struct quota *quota, uint32_t uid, uint64_t bytes, struct error *err);

/** The same for a session that registers one more tensor, which it is charged for. */
enum adtopk_status quota_register(struct quota *quota, session_id session, struct error *err);

/** ADTOPK_ERR_DENIED if a session of this job would be of one job too many. */
enum adtopk_status quota_open(
    const struct quota *quota, const struct job_key *key, struct error *err);

/** The bytes that this node's memory holds for the job and its sessions: gradients, residuals and
 * updates. 0: there is no such job. */
uint64_t quota_job_bytes(const struct quota *quota, uint64_t job);

#endif
