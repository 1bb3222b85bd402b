/*
 * The document of a trace, which clients ask for and the loop writes to files.
 */
#ifndef ADTOPK_REPORT_TRACE_H
#define ADTOPK_REPORT_TRACE_H

#include "daemon/core/inspect.h"

/** What nodes have recorded of a job; `node` is this one. reason: why it was traced without a
 * request, otherwise "". To be freed; NULL without memory. */
char *report_trace(
    uint16_t node, const struct job_info *job, const char *reason, const struct recorded *records);

#endif
