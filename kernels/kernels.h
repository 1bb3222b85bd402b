/*
 * The interface of the CPU kernels. Each header below documents its functions. Read `plain.h`
 * first; `fused.h` is the pass that the daemon runs at every step.
 *
 * Lengths count elements. Arrays do not overlap unless a function says so. All functions are
 * reentrant; two threads may work on disjoint arrays.
 */
#ifndef ADTOPK_KERNELS_H
#define ADTOPK_KERNELS_H

#include "kernels/cpu/direct.h"
#include "kernels/cpu/fused.h"
#include "kernels/cpu/journal.h"
#include "kernels/cpu/leave.h"
#include "kernels/cpu/merge.h"
#include "kernels/cpu/narrow.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/rest.h"
#include "kernels/cpu/rounded.h"
#include "kernels/cpu/scatter.h"
#include "kernels/cpu/survey.h"

#endif
