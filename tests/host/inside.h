/*
 * What only tests read of a core: residuals, ledgers, and where a session's memory lies. On the
 * core's thread, while no compute runs on another one. Each function returns false or NULL if there
 * is no such thing.
 */
#ifndef ADTOPK_TESTS_INSIDE_H
#define ADTOPK_TESTS_INSIDE_H

#include "daemon/core/core.h"

/** The ledger of a tensor, also within a step. */
bool inside_ledger(const struct core *core, uint64_t job, uint32_t tensor, double input[2],
    double applied[2], double lost[2]);

/** The residual of a tensor: the node's (slot 0), or with scope rank that of the slot-th local
 * rank. It has numel elements in memory order. NULL also if it is not in f32. */
const float *inside_residual(const struct core *core, uint64_t job, uint32_t tensor, uint32_t slot);

/** Copies it, in f32 whatever its type. In bf16 some elements get the rounding errors of others:
 * the ledger's sums are the residual's. */
bool inside_residual_copy(
    const struct core *core, uint64_t job, uint32_t tensor, uint32_t slot, float *out);

/** Where a tensor of a committed session lies in its arenas. */
bool inside_layout(
    const struct core *core, session_id session, uint32_t tensor, struct tensor_layout *layout);

/** Offset of the operation area (CORE_OP_SIZE bytes) in the gradient and the result arena. */
bool inside_op_layout(const struct core *core, session_id session, uint64_t *gradient_offset,
    uint64_t *result_offset);

#endif
