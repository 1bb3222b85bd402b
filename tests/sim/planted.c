/*
 * Functions of the core that the linker replaces in the simulator (--wrap): to know the test
 * collective, and to plant bugs that the checks must find.
 */
#include <string.h>

#include "daemon/core/model.h"
#include "tests/sim/world.h"

enum planted planted_bug = PLANTED_NONE;

const struct collective_ops *__real_collective_find(const char *name);
const struct collective_ops *__wrap_collective_find(const char *name);
void __real_sparsifier_settle(float *residual, const struct view *view, const struct sparse *sent,
    const uint8_t *accepted, double sums[2]);
void __wrap_sparsifier_settle(float *residual, const struct view *view, const struct sparse *sent,
    const uint8_t *accepted, double sums[2]);
void __real_sparse_add(const struct sparse *a, const struct sparse *b, struct sparse *out);
void __wrap_sparse_add(const struct sparse *a, const struct sparse *b, struct sparse *out);
void __real_round_freeze(struct round *round);
void __wrap_round_freeze(struct round *round);

const struct collective_ops *__wrap_collective_find(const char *name)
{
    return strcmp(name, "half") == 0 ? &collective_half : __real_collective_find(name);
}

/* A dropped residual: one entry that was not sent is cleared as well. */
void __wrap_sparsifier_settle(float *residual, const struct view *view, const struct sparse *sent,
    const uint8_t *accepted, double sums[2])
{
    __real_sparsifier_settle(residual, view, sent, accepted, sums);
    if (planted_bug == PLANTED_RESIDUAL) {
        residual[view_size(view) - 1] = 0;
    }
}

/* A doubled message: a node's contribution is counted twice. */
void __wrap_sparse_add(const struct sparse *a, const struct sparse *b, struct sparse *out)
{
    __real_sparse_add(a, b, out);
    if (planted_bug == PLANTED_DOUBLE && a->count > 0 && b->count > 0) {
        out->value[0] += b->value[0];
    }
}

/* A stale view: rounds go on in the old view when a new one is proposed. */
void __wrap_round_freeze(struct round *round)
{
    if (planted_bug != PLANTED_VIEW) {
        __real_round_freeze(round);
    }
}
