/*
 * The memory of a core with one job: an arena for each rank's gradients, the results, and a store.
 * New memory is all zero. A wrong request of the core aborts the test.
 */
#ifndef ADTOPK_TESTS_HOST_MEMORY_H
#define ADTOPK_TESTS_HOST_MEMORY_H

#include "daemon/core/core.h"

/* One per session 1 to 8; session 9 takes the arena of session 1, and so on. */
#define HOST_ARENAS 8u

struct host_area {
    uint8_t *bytes; /* NULL: none */
    uint64_t size;
    bool old;   /* an earlier core used it */
    bool shown; /* of a store: ranks may map it */
};

struct host_memory {
    /* Options: */
    bool outlives; /* a core finds the results and stores that the core before it left */
    bool keeps;    /* memory that the core gives back stays until host_memory_free() */
    bool shared;   /* forked processes see each other's writes */
    bool marks;    /* what the core may write of the results is marked in `reserved` */
    /* Memory that runs out: */
    bool no_rank_store; /* there is no memory for part 1 of the store */
    bool no_results;    /* no piece of the results can be reserved */
    struct host_area arena[HOST_ARENAS];
    /* The arenas of later batches of tensors. */
    struct host_area later[HOST_ARENAS][CORE_MAX_BATCHES];
    session_id owner[HOST_ARENAS]; /* the session that has each arena */
    uint64_t job;                  /* that has the store; 0: none has */
    struct host_area results, store[CORE_STORE_PARTS];
    struct host_area later_results[CORE_MAX_BATCHES];
    /* One byte for each byte of the first batch's results: 1 if the core may write it. With the
     * option `marks`. */
    struct host_area reserved;
};

/** The operations over this memory. The test must not move the memory afterwards. */
struct core_memory host_memory_ops(struct host_memory *memory);

/** The arena of a session, or NULL. */
uint8_t *host_memory_arena(const struct host_memory *memory, session_id session);

/** For a forked process: from now on it does not see what other processes write to results and
 * stores. */
void host_memory_unshare(struct host_memory *memory);

void host_memory_free(struct host_memory *memory);

#endif
