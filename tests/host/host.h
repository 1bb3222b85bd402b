/*
 * A core that a test drives: events go in, and what the core asks for is done. README.md beside
 * this file says which of the options a test needs.
 *
 * Happy path: host_start(), host_event() for whatever happens, host_stop(). A host aborts the test
 * where the core breaks its contract, so that unit tests, fuzzers and benchmarks can all use it.
 */
#ifndef ADTOPK_TESTS_HOST_H
#define ADTOPK_TESTS_HOST_H

#include "daemon/core/core.h"
#include "tests/host/memory.h"
#include "tests/host/queue.h"

#define HOST_NODES 4u
#define HOST_HELD 64u

/* Links with short messages and timeouts, for a core without peers. */
extern const struct links_config host_links;

struct host {
    /* Options: */
    struct core_config config; /* `memory` and `transmit` are filled in, `links` if they are not */
    uint64_t tick_us; /* that pass with every event; 0: time stands still until the test moves it */
    bool hold;        /* computes wait in `held` until host_compute() */
    /* Gives a compute to another thread, which raises EVENT_COMPUTE_DONE itself. NULL: computes run
     * at once, on this thread, in the order in which the core asked. */
    bool (*submit)(void *context, struct compute *compute);
    void (*note)(void *context, const struct action *action); /* hears of all others */
    void *context;                                            /* of both */
    struct host_queue *to[HOST_NODES]; /* the packets of this node to another; NULL: none may go */
    struct host_memory memory;

    struct core *core;
    uint64_t now_us;
    struct error refused; /* by the last event that was */
    struct compute *held[HOST_HELD];
    unsigned helds;
};

/** Creates the core, with the next incarnation. The host must not move. */
void host_start(struct host *host);

/** Hands the core an event, and does what it asks for. Its result. */
enum adtopk_status host_event(struct host *host, struct event event);

/** Does what the core asks for, but for computes. */
void host_drain(struct host *host);

/** Runs the computes that were held. */
void host_compute(struct host *host);

/** Runs the first of them. */
void host_compute_one(struct host *host);

/** Hands the core the first packet of a queue; false if there is none. */
bool host_receive(struct host *host, struct host_queue *queue);

/** Tells the core what time it is, if its next deadline has come. */
void host_timer(struct host *host);

/** Destroys the core. Memory stays, for the next one. */
void host_kill(struct host *host);

/** Destroys the core and frees the memory. */
void host_stop(struct host *host);

#endif
