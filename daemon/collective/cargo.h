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
 * Members of an operation form a *group*. The carrier makes it with the first operation that names
 * it. Its name comes from the carrier of the leader, which is the lowest node of the view.
 */
#ifndef ADTOPK_CARGO_H
#define ADTOPK_CARGO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"

#define CARGO_NAME_SIZE 128u

enum cargo_kind {
    CARGO_NAME,  /* no operation: the carrier is asked for the name of a new group */
    CARGO_SUM,   /* the vectors of f32 of all members are added up; all get the same bits */
    CARGO_GATHER /* all get the pieces of all members, in the order of the members */
};

struct cargo_group {
    uint64_t number; /* the leader counts them from 1 on, in each job */
    uint8_t name[CARGO_NAME_SIZE];
    unsigned members, self;
    bool made; /* an earlier operation made it, so it must still be there */
};

struct cargo {
    enum cargo_kind kind;
    uint64_t job;    /* the job's number on this node */
    uint64_t number; /* its place in the order, the same on all members */
    struct cargo_group group;
    uint64_t bytes;     /* of the vector, or of one member's piece */
    uint8_t *input;     /* so many bytes; the carrier writes a sum into the same place */
    uint8_t *output;    /* GATHER: so many bytes per member; else NULL */
    struct error error; /* set by the carrier: code OK, or why it failed */

    _Atomic bool aborted; /* for the carrier */

    /* For the core. */
    struct cargo *next; /* the next one that the carrier has */
    void *waits;        /* who waits for it; NULL: nobody does any more */
    uint64_t started_us;
};

/** An operation, with memory that is not filled in. NULL without memory. */
struct cargo *cargo_create(enum cargo_kind kind, uint64_t bytes, unsigned members);

void cargo_free(struct cargo *cargo); /* NULL is allowed */

/* All functions are called on the core's thread, and none blocks. */
struct carrier_ops {
    const char *name;
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
