#include "daemon/collective/cargo.h"

#include <stdlib.h>

struct cargo *cargo_create(enum cargo_kind kind, uint64_t bytes, unsigned members)
{
    struct cargo *cargo = calloc(1, sizeof(*cargo));

    if (cargo == NULL) {
        return NULL;
    }
    cargo->kind = kind;
    cargo->bytes = bytes;
    cargo->input = calloc(bytes + 1, 1);
    cargo->output = kind == CARGO_GATHER ? calloc((size_t)members * bytes + 1, 1) : NULL;
    if (cargo->input == NULL || (kind == CARGO_GATHER && cargo->output == NULL)) {
        cargo_free(cargo);
        return NULL;
    }
    return cargo;
}

void cargo_free(struct cargo *cargo)
{
    if (cargo != NULL) {
        free(cargo->input);
        free(cargo->output);
        free(cargo);
    }
}
