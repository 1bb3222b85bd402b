/*
 * select on a GPU: the pass over one tensor, or over all of a model's in one batch, against r += g
 * on the device, and that against a copy there.
 *
 * Happy path, one turn: new gradients are copied to the device. Then four things are timed there. A
 * copy moves as many bytes as r += g does. r += g has memory of its own. The pass selects, and is
 * launched as adtopk-device launches it. What was selected leaves the residual. The next turn goes
 * on from there.
 */
#ifndef PERF_SELECT_GPU_H
#define PERF_SELECT_GPU_H

#include "tests/bench/perf/gpu.h"
#include "tests/bench/perf/group.h"

/** What --device cannot measure is an error (ARGUMENT). */
enum adtopk_status select_gpu_check(const struct options *options, struct error *err);

/** Measures an open group and adds three rows: the copy, r += g, and the pass. Errors: those of the
 * driver, MEMORY. */
enum adtopk_status select_gpu_group(
    struct perf *perf, struct group *group, struct gpu *gpu, struct error *err);

#endif
