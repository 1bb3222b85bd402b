/*
 * Which job an operator means: NAME, NAME/RUN, OWNER:NAME or OWNER:NAME/RUN, the owner as a
 * numeric uid.
 */
#ifndef ADTOPK_JOBNAME_H
#define ADTOPK_JOBNAME_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/admin/history.h"
#include "daemon/core/inspect.h"
#include "proto/error.h"

#define JOBNAME_SIZE (12 + 2 * CORE_KEY_SIZE)

/** OWNER:NAME/RUN, which means no other job. */
void jobname_print(const struct job_key *key, char text[JOBNAME_SIZE]);

bool jobname_fits(const struct job_key *key, const char *text);

/**
 * The one live job that `text` fits. Errors: ARGUMENT if it fits none, or several, which are
 * listed; STATE if it fits only one that has ended.
 */
enum adtopk_status jobname_find(const struct core *core, const struct history *history,
    const char *text, struct job_info *info, struct error *err);

/** The live job with this id. */
bool jobname_find_id(const struct core *core, uint64_t id, struct job_info *info);

#endif
