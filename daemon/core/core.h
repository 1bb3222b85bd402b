/*
 * The core: it makes every decision of the daemon, and does no I/O.
 *
 * core_event() takes events in, core_next_action() hands actions out. The daemon drives the core
 * with libuv, ZeroMQ and worker threads. The simulator drives the same code with a virtual network,
 * clock and memory. README.md beside this file follows one round from push to accept.
 *
 * One thread uses a core. Only a compute's run() may be called on another thread. Until the core
 * gets the compute back as EVENT_COMPUTE_DONE, nobody else touches the memory on which it works.
 */
#ifndef ADTOPK_CORE_H
#define ADTOPK_CORE_H

#include "daemon/job/config.h"

struct core;

/** NULL and an error if the configuration is wrong or memory is short. */
struct core *core_create(const struct core_config *config, struct error *err);

/** Drops everything, as a crash would: stores and results stay. No compute may run. */
void core_destroy(struct core *core);

/* Settings that may change while the core runs. */

/** Sets the default policy of jobs that are opened from now on; JSON, NULL for the built-in one.
 * After an error the old one stays. */
enum adtopk_status core_set_default_policy(struct core *core, const char *json, struct error *err);

/** Sets how long a job may wait for one thing before it is stuck; 0: CORE_STUCK_US. */
void core_set_stuck(struct core *core, uint64_t stuck_us);

/** Sets the receiver of trace lines, with core_config's context; NULL: none. */
void core_set_trace(struct core *core, void (*trace)(void *context, const char *line));

/** ARGUMENT if the node is a peer already, MEMORY: then nothing has changed. */
enum adtopk_status core_add_peer(struct core *core, uint16_t node, uint64_t now_us);

/**
 * Takes one event. Returns an error if the core refuses a rank's request (err names the fault); the
 * request then changes nothing. Packets never fail: the core counts bad ones.
 */
enum adtopk_status core_event(struct core *core, const struct event *event, struct error *err);

/** Takes the oldest action out of the queue; false if there is none. */
bool core_next_action(struct core *core, struct action *action);

/** When EVENT_TIMER is due; UINT64_MAX: never. */
uint64_t core_deadline(struct core *core);

#endif
