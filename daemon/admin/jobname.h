/*
 * Which job an operator means: NAME, NAME/RUN, OWNER:NAME or OWNER:NAME/RUN, the owner as a
 * numeric uid. Where no live job has that name, ".." in it stands for any characters, as adtopkctl
 * shortens names.
 */
#ifndef ADTOPK_JOBNAME_H
#define ADTOPK_JOBNAME_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/admin/seen.h"
#include "proto/error.h"

#define JOBNAME_SIZE (12 + 2 * CORE_KEY_SIZE)

/** OWNER:NAME/RUN, which means no other job. */
void jobname_print(const struct job_key *key, char text[JOBNAME_SIZE]);

bool jobname_fits(const struct job_key *key, const char *text);
/** The same, but ".." in the text stands for any characters. */
bool jobname_resembles(const struct job_key *key, const char *text);

/**
 * The one live job that `text` matches. If there is none and `ended` is set, the matching job that
 * ended last. Jobs that the user may not see do not exist. Errors: ARGUMENT if no job matches, or
 * several live ones, which are listed; STATE if only jobs that have ended match.
 */
enum adtopk_status jobname_find(const struct seen *seen, const char *text, bool ended,
    struct job_info *info, struct error *err);

#endif
