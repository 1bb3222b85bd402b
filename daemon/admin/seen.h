/*
 * The jobs that a user may see, live ones and those that have ended. Every answer that names jobs
 * takes them from here.
 */
#ifndef ADTOPK_SEEN_H
#define ADTOPK_SEEN_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/admin/history.h"
#include "daemon/core/inspect.h"

struct seen {
    const struct core *core;
    const struct history *history;
    bool all;
    uint32_t uid; /* else the jobs of this user */
};

/* A walk through the jobs; zeroed at the start. */
struct seen_walk {
    uint32_t live, ended; /* so many were passed */
};

/** Whether jobs with this key are seen. */
static inline bool seen_has(const struct seen *seen, const struct job_key *key)
{
    return seen->all || seen->uid == key->owner;
}

/** The next of the core's jobs, and after them of those that have ended; false if there are no
 * more. *live: it is one of the core's. */
bool seen_next(const struct seen *seen, struct seen_walk *walk, struct job_info *info, bool *live);

#endif
