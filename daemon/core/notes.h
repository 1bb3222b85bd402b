/*
 * Lines for whoever watches: traces for tests, notes and warnings for the log.
 */
#ifndef ADTOPK_CORE_NOTES_H
#define ADTOPK_CORE_NOTES_H

#include "daemon/core/model.h"

void core_trace(struct core *core, const char *format, ...) __attribute__((format(printf, 2, 3)));
void core_note(struct core *core, const char *format, ...) __attribute__((format(printf, 2, 3)));
void core_warn(struct core *core, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
