/*
 * Operations that a *carrier* makes between all members of a view at once, instead of frames that
 * go from node to node. NCCL is one (daemon/device).
 *
 * Happy path: a collective makes the operation, with this node's data in it. The core starts the
 * operations of all jobs in an order that is the same on all nodes (daemon/compute/launch.h). The
 * carrier brings each back when it is done, and the collective reads the result.
 *
 * Failures: the carrier brings an operation back with an error, and its group is of no further use
 * on this node. An operation that does not end is aborted. It still comes back, when the carrier no
 * longer touches its memory.
 *
 * A member may have several devices. Then each moves a stretch of the vector, or of every piece.
 *
 * The values are in memory of the core, or on the devices. Then the operation brings orders for an
 * engine: those that leave the devices' values in its memory, and those that take the sum from
 * there. Each device has the vector of its own tensors.
 *
 * Members of an operation form a *group*. The carrier makes it with the first operation that names
 * it. Its name comes from the carrier of the leader, which is the lowest node of the view.
 */
#ifndef ADTOPK_CARGO_H
#define ADTOPK_CARGO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/engine/wait.h"
#include "proto/error.h"

#define CARGO_NAME_SIZE 128u
#define CARGO_DEVICES 8u /* most devices of a member that take part in an operation */

enum cargo_kind {
    CARGO_NAME,   /* no operation: the carrier is asked for the names of a new group's devices */
    CARGO_SUM,    /* the vectors of f32 of all members are added up; all get the same bits */
    CARGO_GATHER, /* all get the pieces of all members, in the order of the members */
    CARGO_DEAL /* each gives every member a piece, and gets theirs, in the order of the members */
};

struct cargo_group {
    uint64_t number; /* the leader counts them from 1 on, in each job */
    /* Each member takes part with so many devices. Those of one number move the same stretch of the
     * values, among themselves, and have a name of their own. */
    unsigned devices;
    uint8_t name[CARGO_DEVICES][CARGO_NAME_SIZE];
    unsigned members, self;
    bool made; /* an earlier operation made it, so it must still be there */
};

struct cargo {
    enum cargo_kind kind;
    uint64_t job;    /* the job's number on this node */
    uint64_t number; /* its place in the order, the same on all members */
    struct cargo_group group;
    uint64_t bytes;  /* of the vector, or of one piece */
    uint8_t *input;  /* cargo_given() bytes; the carrier writes a sum into the same place */
    uint8_t *output; /* GATHER, DEAL: a piece per member; else NULL */

    /* SUM: the values are on the devices, and input is NULL. The carrier carries out the orders:
     * READ before the operation, SUMMED behind it. NULL: the values are in memory of the core. */
    struct engine_batch *orders;
    void (*drop_orders)(struct engine_batch *orders);
    uint64_t share[CARGO_DEVICES]; /* bytes of each device's vector */

    struct error error; /* set by the carrier: code OK, or why it failed */

    /* For the carrier. */
    _Atomic bool aborted;
    unsigned pending; /* devices that are not done */
    struct engine_wait waiting[CARGO_DEVICES];

    /* For the core. */
    struct cargo *next; /* the next one that the carrier has */
    void *waits;        /* who waits for it; NULL: nobody does any more */
    uint64_t started_us;
};

/* A stretch of the vector, or of each piece. */
struct cargo_stretch {
    uint64_t first, size; /* bytes */
};

#define CARGO_ALIGNMENT 64u /* of stretches, and of tensors in a device's vector */

/** Bytes with the padding behind them. */
static inline uint64_t cargo_align(uint64_t bytes)
{
    return (bytes + CARGO_ALIGNMENT - 1) / CARGO_ALIGNMENT * CARGO_ALIGNMENT;
}

/** What the device of this number moves; it may be nothing. */
static inline struct cargo_stretch cargo_stretch(const struct cargo *cargo, unsigned device)
{
    const uint64_t blocks = (cargo->bytes + CARGO_ALIGNMENT - 1) / CARGO_ALIGNMENT;
    const uint64_t first = blocks * device / cargo->group.devices * CARGO_ALIGNMENT;
    const uint64_t end = blocks * (device + 1) / cargo->group.devices * CARGO_ALIGNMENT;

    if (cargo->orders != NULL) {
        return (struct cargo_stretch){0, cargo->share[device]};
    }
    return (struct cargo_stretch){first, (end < cargo->bytes ? end : cargo->bytes) - first};
}

static inline bool cargo_has_pieces(const struct cargo *cargo)
{
    return cargo->kind == CARGO_GATHER || cargo->kind == CARGO_DEAL;
}

/** Bytes that a member gives. */
static inline uint64_t cargo_given(const struct cargo *cargo)
{
    return cargo->kind == CARGO_DEAL ? cargo->group.members * cargo->bytes : cargo->bytes;
}

/** Bytes that it gets. */
static inline uint64_t cargo_got(const struct cargo *cargo)
{
    return cargo_has_pieces(cargo) ? cargo->group.members * cargo->bytes : cargo->bytes;
}

/** An operation, with memory that is not filled in. NULL without memory. */
struct cargo *cargo_create(enum cargo_kind kind, uint64_t bytes, unsigned members);

/** A sum of values that are on devices. The caller adds its orders. NULL without memory. */
struct cargo *cargo_create_on_devices(unsigned members);

void cargo_free(struct cargo *cargo); /* NULL is allowed */

/* All functions are called on the core's thread, and none blocks. */
struct carrier_ops {
    const char *name;
    bool on_devices; /* values may be on the devices of the job's engine */
    /** Takes an operation. It comes back as EVENT_CARRIED. Operations of one carrier are begun in
     * the order in which they are started. */
    void (*start)(void *context, struct cargo *cargo);
    /** Ends an operation that was started; it comes back soon, done or failed. */
    void (*abort)(void *context, struct cargo *cargo);
    /** Whether the carrier still has this group of the job. It does from the start of the first
     * operation in it, until that fails or the carrier's process ends. */
    bool (*has)(void *context, uint64_t job, uint64_t group);
};

#endif
