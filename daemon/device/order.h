/*
 * The places of an order: which of them a worker has mapped, and which are copied for it.
 *
 * Residuals, the progress of passes and velocities lie in device memory. Everything else that an
 * order names lies in memory of the daemon: gradients, lists, bits, the ledger. Inputs of these are
 * copied to the device before the order runs, outputs are copied back behind it. Hints are not
 * copied: a residual on a device has its own there (pool.h).
 */
#ifndef ADTOPK_DEVICE_ORDER_H
#define ADTOPK_DEVICE_ORDER_H

#include "daemon/device/page.h"

enum order_way {
    ORDER_STAYS = 0, /* the place is in device memory */
    ORDER_IN = 1,
    ORDER_OUT = 2
};

struct order_kind {
    const char *name;
    bool here; /* the daemon carries all of them out, because all lies in its memory */
};

/** By enum engine_kind. */
extern const struct order_kind order_kinds[ENGINE_KINDS];

/** Called for each place of an order that is not nowhere; `size` is 0 where it stays. */
typedef void (*order_visit)(
    void *context, struct engine_place *place, uint64_t size, enum order_way way);

/** Visits the places of an order that a worker carries out, in a fixed order. */
void order_places(
    struct engine_order *order, struct engine_part *part, order_visit visit, void *context);

/** The turn of an ADD that selects. It points into `add`. */
struct sparsifier_turn order_turn(const struct engine_add *add);

/** What the order selects: DENSE if it selects nothing. */
struct sparsifier_choice order_choice(const struct engine_order *order);

/** Whether the daemon carries the order out, or has it done by copies alone. */
bool order_is_here(const struct engine_order *order);

/** Whether the order changes the residual's velocity. */
bool order_moves(const struct engine_order *order);

/** Whether kernels can be launched for both orders together, which are for different tensors. */
bool order_goes_with(const struct engine_order *order, const struct engine_part *part,
    const struct engine_order *next, const struct engine_part *next_part);

/** Lists the positions that all nodes know, where an ADD reads those, in memory of the daemon. */
void order_prepare(const struct engine_memory *memory, const struct engine_order *order);

/** Whether a selection is one: no more entries than there is room for, at ascending positions of
 * the tensor. A worker whose memory is spoilt may bring anything. */
bool order_has_selected(const struct engine_memory *memory, const struct engine_order *order,
    const struct engine_result *result);

/** The sums of an order's ledger, and those of what decay took. NULL: it has none. */
struct order_ledger {
    double *sums, *lost;
};

/** Makes the result of an order, and its ledger, of what its kernels have found. */
void order_result(const struct engine_order *order, const union page_result *found,
    struct engine_result *result, const struct order_ledger *ledger);

#endif
