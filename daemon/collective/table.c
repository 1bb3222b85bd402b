/* The collectives that a policy may name. */
#include <string.h>

#include "daemon/collective/collective.h"

const struct collective_ops *const collective_table[] = {
    &collective_allreduce,
    &collective_oneshot,
    &collective_pairwise,
    &collective_ring,
    &collective_halving,
    &collective_allgather,
    &collective_balanced,
    &collective_hierarchical,
    &collective_oktopk,
    &collective_exclusive,
    NULL,
};

const struct collective_ops *collective_find(const char *name)
{
    for (unsigned i = 0; collective_table[i] != NULL; i++) {
        if (strcmp(collective_table[i]->name, name) == 0) {
            return collective_table[i];
        }
    }
    return NULL;
}
