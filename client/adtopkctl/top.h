/* top: the daemon's jobs, ranks, tensors and peers, asked for again and again. */
#ifndef ADTOPK_TOP_H
#define ADTOPK_TOP_H

#include "client/adtopkctl/run.h"

/** Until `q`, a signal or the last interval. Without a terminal it prints plain tables. */
enum exit_code top_run(const struct options *options);

#endif
