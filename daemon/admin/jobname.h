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
 * The one live job that `text` fits; if there is none and `ended` is set, the one that ended last
 * of those that it fits. Errors: ARGUMENT if it fits none, or several live ones, which are listed;
 * STATE if it fits only such as have ended.
 */
enum adtopk_status jobname_find(const struct core *core, const struct history *history,
    const char *text, bool ended, struct job_info *info, struct error *err);

#endif
