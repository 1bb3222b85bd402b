/*
 * The jobs that ended last, as they were when their last rank left or when they failed. The core
 * forgets them at once, but users look at them after the training. One user's jobs do not push out
 * those of others.
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
    uint64_t ended_us;
    uint32_t changes; /* of its policy, the newest first */
    struct policy_past past[POLICY_CHANGES];
};

struct history {
    uint32_t count;
    struct history_job job[HISTORY_JOBS]; /* the oldest first */
};

/** Records the state of this session's job; call it before a session leaves the job. An older
 * record of the same job is dropped. If there is no room, the oldest job of the user with most jobs
 * is dropped. */
void history_record(struct history *history, const struct core *core, session_id session);

/** Records a job that fails (core_config.failed), and why, because the core forgets it before its
 * ranks get the error. Fills in `failed`. Returns false if the core has no such job. */
bool history_failed(
    struct history *history, const struct core *core, uint64_t job, struct job_info *failed);

/** The index-th of a job's last policy changes, the newest first, whether it lives or has ended. */
bool history_policy_change(const struct history *history, const struct core *core, uint64_t job,
    uint32_t index, struct policy_past *past);

#endif
