/*
 * The core: every decision of the daemon, and no I/O.
 *
 * Events go in through core_event(), actions come out of core_next_action(). The daemon drives it
 * with libuv, ZeroMQ and worker threads; the simulator drives the same code with a virtual
 * network, clock and memory. README.md beside this file follows one round from push to accept.
 *
 * A core is used by one thread. Only a compute's run() may be called on another, and until the
 * core gets it back as EVENT_COMPUTE_DONE nobody else touches what it works on.
 */
#ifndef ADTOPK_CORE_H
#define ADTOPK_CORE_H

#include "daemon/job/config.h"

struct core;

/** NULL and an error if the configuration is wrong or memory is short. */
struct core *core_create(const struct core_config *config, struct error *err);

/** Drops everything at once, as a crash would: stores and results keep what they hold. Computes
 * must not be running. */
void core_destroy(struct core *core);

/* What may change while the core runs. */

/** The default policy of jobs that are opened from now on; JSON, NULL for the built-in one. On an
 * error the old one stays. */
enum adtopk_status core_set_default_policy(struct core *core, const char *json, struct error *err);

/** After how long a job that waits for one thing is stuck; 0: CORE_STUCK_US. */
void core_set_stuck(struct core *core, uint64_t stuck_us);

/** Where trace lines go from now on, with core_config's context; NULL: nowhere. */
void core_set_trace(struct core *core, void (*trace)(void *context, const char *line));

enum adtopk_status core_add_peer(struct core *core, uint16_t node, uint64_t now_us);

/**
 * Takes one event. Returns an error where a rank's request is refused (err names what is wrong);
 * such a request changes nothing. Packets never fail: what is wrong with them is counted.
 */
enum adtopk_status core_event(struct core *core, const struct event *event, struct error *err);

/** Takes the oldest action out of the queue; false if there is none. */
bool core_next_action(struct core *core, struct action *action);

/** When EVENT_TIMER is due; UINT64_MAX if never. */
uint64_t core_deadline(struct core *core);

#endif
