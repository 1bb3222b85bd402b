/* The collectives that a policy may name. */
#include <string.h>

#include "daemon/collective/collective.h"

#define COLLECTIVE_ROW(name) &collective_##name,
const struct collective_ops *const collective_table[] = {COLLECTIVES(COLLECTIVE_ROW) NULL};

const struct collective_ops *collective_find(const char *name)
{
    for (unsigned i = 0; collective_table[i] != NULL; i++) {
        if (strcmp(collective_table[i]->name, name) == 0) {
            return collective_table[i];
        }
    }
    return NULL;
}
