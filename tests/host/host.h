/*
 * A core that a test drives: the test hands events in, and the host carries out the actions that
 * the core asks for. README.md beside this file says which options a test needs.
 *
 * Happy path: host_start(), host_event() for each event, host_stop(). If the core breaks its
 * contract the host aborts the test. Unit tests, fuzzers and benchmarks can therefore all use it.
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
    /* The host fills in `memory`, `transmit` and, if they are 0, `links`. */
    struct core_config config;
    /* Time that passes with every event; 0: time stands still until the test moves it. */
    uint64_t tick_us;
    bool hold; /* computes wait in `held` until host_compute() */
    /* Gives a compute to another thread, which raises EVENT_COMPUTE_DONE itself. NULL: computes run
     * at once, on this thread, in the order in which the core asked. */
    bool (*submit)(void *context, struct compute *compute);
    void (*note)(void *context, const struct action *action); /* gets every other action */
    void *context; /* the first argument of submit and note */
    /* Packets from this node to each other node; NULL: the core must not send any there. */
    struct host_queue *to[HOST_NODES];
    struct host_memory memory;

    struct core *core;
    uint64_t now_us;
    struct error refused; /* why the core refused the last event, if it did */
    struct compute *held[HOST_HELD];
    unsigned helds;
};

/** Creates the core, with the next incarnation. The test must not move the host afterwards. */
void host_start(struct host *host);

/** Hands the core an event and carries out the actions that follow. Returns the core's result. */
enum adtopk_status host_event(struct host *host, struct event event);

/** Carries out the actions that the core asks for, except computes. */
void host_drain(struct host *host);

/** Runs the computes that the host holds. */
void host_compute(struct host *host);

/** Runs the oldest compute that the host holds. */
void host_compute_one(struct host *host);

/** Hands the core the first packet of a queue; false if there is none. */
bool host_receive(struct host *host, struct host_queue *queue);

/** Hands the core a timer event if its next deadline has come. */
void host_timer(struct host *host);

/** Destroys the core and keeps the memory for the next one. */
void host_kill(struct host *host);

/** Destroys the core and frees the memory. */
void host_stop(struct host *host);

#endif
