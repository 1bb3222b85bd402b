/* completion: scripts for shells, and the words that they ask for. */
#ifndef ADTOPK_COMPLETE_H
#define ADTOPK_COMPLETE_H

#include "client/adtopkctl/run.h"

enum exit_code complete_run(const struct options *options);

#endif
