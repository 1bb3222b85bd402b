/*
 * The memory of a core with one job: an arena for each rank's gradients, the results, and a store.
 * All of it is zero when new. What a core asks for wrongly aborts the test.
 */
#ifndef ADTOPK_TESTS_HOST_MEMORY_H
#define ADTOPK_TESTS_HOST_MEMORY_H

#include "daemon/core/core.h"

#define HOST_ARENAS 8u /* of sessions 1 to 8; session 9 takes the place of session 1, and so on */

struct host_area {
    uint8_t *bytes; /* NULL: none */
    uint64_t size;
    bool old; /* a core had it before */
};

struct host_memory {
    /* Options: */
    bool outlives; /* a core finds the results and stores that the one before it left */
    bool keeps;    /* what the core gives back stays until host_memory_free() */
    bool shared;   /* forked processes see what the others write */
    /* What there is no memory for: */
    bool no_rank_store; /* part 1 of the store */
    bool no_results;    /* nothing of the results may be reserved */
    struct host_area arena[HOST_ARENAS];
    struct host_area later[HOST_ARENAS][CORE_MAX_BATCHES]; /* of later batches of tensors */
    session_id owner[HOST_ARENAS];                         /* of the arenas */
    struct host_area results, store[CORE_STORE_PARTS];
    struct host_area later_results[CORE_MAX_BATCHES];
    struct host_area reserved; /* 1 for each byte of the first results that may be written */
};

/** The operations over this memory, which must not move. */
struct core_memory host_memory_ops(struct host_memory *memory);

/** The arena of a session, or NULL. */
uint8_t *host_memory_arena(const struct host_memory *memory, session_id session);

/** In a forked process: what the others do to results and stores is not seen any more. */
void host_memory_unshare(struct host_memory *memory);

void host_memory_free(struct host_memory *memory);

#endif
