/*
 * plot: asks the daemon for a while, and draws what it said over that time.
 */
#ifndef ADTOPK_CTL_RUN_PLOT_H
#define ADTOPK_CTL_RUN_PLOT_H

#include "client/adtopkctl/run.h"

enum exit_code run_plot(const struct options *options);

#endif
