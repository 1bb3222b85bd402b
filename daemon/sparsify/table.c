/* The sparsifiers that a policy may name. */
#include <string.h>

#include "daemon/sparsify/sparsifier.h"

/* A new one gets a line here; adtopkctl lists them in this order. */
#define SPARSIFIERS(entry)                                                                         \
    entry(dense) entry(topk) entry(adtopk) entry(dgc) entry(gaussiank) entry(redsync)              \
        entry(redsync_trim) entry(sidco) entry(threshold) entry(randomk)

#define SPARSIFIER_DECLARE(name) extern const struct sparsifier_ops sparsifier_##name;
#define SPARSIFIER_ROW(name) &sparsifier_##name,

SPARSIFIERS(SPARSIFIER_DECLARE)

const struct sparsifier_ops *const sparsifier_table[] = {SPARSIFIERS(SPARSIFIER_ROW) NULL};

const char *const sparsifier_common[] = {"density", "warmup_epochs", "epoch_turns", "beta", "gamma",
    "momentum", "nesterov", "momentum_masking", "clip", NULL};

const struct sparsifier_ops *sparsifier_find(const char *name)
{
    for (size_t i = 0; sparsifier_table[i] != NULL; i++) {
        if (strcmp(sparsifier_table[i]->name, name) == 0) {
            return sparsifier_table[i];
        }
    }
    return NULL;
}
