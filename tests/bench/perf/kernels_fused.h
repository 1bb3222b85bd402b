/*
 * The fused pass as rows of the table of kernels: with journal, progress, hints and ledger as the
 * daemon has them, in one range.
 */
#ifndef PERF_KERNELS_FUSED_H
#define PERF_KERNELS_FUSED_H

#include "tests/bench/perf/kernels.h"

/** prepare() for the whole tensor, and for every fibre. */
void *kernels_fused_top(const struct turn *turn);
void *kernels_fused_fibres(const struct turn *turn);

/** The others, for both. */
void kernels_fused_begin(void *state);
void kernels_fused_run(struct turn *turn, void *state);
void kernels_fused_drop(void *state);

#endif
