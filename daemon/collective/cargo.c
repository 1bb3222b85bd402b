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
    cargo->group.members = members;
    cargo->group.devices = 1;
    cargo->input = calloc(cargo_given(cargo) + 1, 1);
    cargo->output = cargo_has_pieces(cargo) ? calloc(cargo_got(cargo) + 1, 1) : NULL;
    if (cargo->input == NULL || (cargo_has_pieces(cargo) && cargo->output == NULL)) {
        cargo_free(cargo);
        return NULL;
    }
    return cargo;
}

struct cargo *cargo_create_on_devices(unsigned members)
{
    struct cargo *cargo = calloc(1, sizeof(*cargo));

    if (cargo != NULL) {
        cargo->kind = CARGO_SUM;
        cargo->group.members = members;
        cargo->group.devices = 1;
    }
    return cargo;
}

void cargo_free(struct cargo *cargo)
{
    if (cargo != NULL) {
        if (cargo->orders != NULL) {
            cargo->drop_orders(cargo->orders);
        }
        free(cargo->input);
        free(cargo->output);
        free(cargo);
    }
}
