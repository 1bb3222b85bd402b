/*
 * The jobs that ended last, as they were when their last rank left or when they failed: the core
 * forgets them at once, but people look after the training. One user's jobs do not push out those
 * of others.
 */
#ifndef ADTOPK_HISTORY_H
#define ADTOPK_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/inspect.h"

#define HISTORY_JOBS 64
#define HISTORY_JOBS_A_USER 16

struct history_job {
    struct job_info info;
    uint32_t changes; /* of its policy, the newest first */
    struct policy_change change[POLICY_CHANGES];
};

struct history {
    uint32_t count;
    struct history_job job[HISTORY_JOBS]; /* the oldest first */
};

/** Remembers how this session's job stands; to be called before a session leaves it. An older
 * memory of the same job is dropped. Where there is no room, the oldest job goes of the user who
 * has most. */
void history_record(struct history *history, const struct core *core, session_id session);

/** To be called with every move of the core's state machines (core_config.moved) and the id
 * that moved: remembers a job that fails, and why. The core forgets it before its ranks are told.
 * Returns true, with the job, if it has failed. */
bool history_moved(struct history *history, const struct core *core,
    const struct machine_table *table, uint64_t job, unsigned to, struct job_info *failed);

/** The index-th of the core's jobs, followed by the ended ones; false if there are no more.
 * *live: it is one of the core's. */
bool history_job(const struct history *history, const struct core *core, uint32_t index,
    struct job_info *info, bool *live);

/** The index-th of a job's last policy changes, the newest first, whether it lives or has ended. */
bool history_policy_change(const struct history *history, const struct core *core, uint64_t job,
    uint32_t index, struct policy_change *change);

#endif
