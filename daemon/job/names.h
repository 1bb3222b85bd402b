/*
 * Names of phases and of reasons for waiting, for reports.
 */
#ifndef ADTOPK_JOB_NAMES_H
#define ADTOPK_JOB_NAMES_H

#include "daemon/job/info.h"

const char *phase_name(enum phase phase);

/** A word for programs, such as "push". */
const char *wait_kind_name(enum wait_kind kind);

#endif
