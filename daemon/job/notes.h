/*
 * Lines for observers: traces for tests, notes and warnings for the log.
 */
#ifndef ADTOPK_JOB_NOTES_H
#define ADTOPK_JOB_NOTES_H

#include "daemon/job/model.h"

void core_trace(struct core *core, const char *format, ...) __attribute__((format(printf, 2, 3)));
void core_note(struct core *core, const char *format, ...) __attribute__((format(printf, 2, 3)));
void core_warn(struct core *core, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
