/* trace: asks for one or reads those that daemons wrote, and prints it as trace events. */
#ifndef ADTOPK_RUN_TRACE_H
#define ADTOPK_RUN_TRACE_H

#include "client/adtopkctl/run.h"

enum exit_code run_trace(const struct options *options);

#endif
