/*
 * The daemon's loop: it drives the core with sessions, a transport, worker threads and a clock.
 */
#ifndef ADTOPK_LOOP_H
#define ADTOPK_LOOP_H

#include <stdint.h>

#include "daemon/log.h"
#include "daemon/settings/config.h"
#include "proto/error.h"

struct loop;

/** Takes the descriptors that the service manager passed. Call it before anything takes others.
 * ARGUMENT: the sentence names one that is not the daemon's, which the next start would meet, too.
 */
enum adtopk_status loop_take_passed(const struct config *config, struct error *err);

/** Opens everything that the configuration names. `config` and `log` must outlive the loop, which
 * changes both when it reads the configuration again, on SIGHUP. incarnation: random, not zero.
 * NULL and err on failure: nothing is left open then. */
struct loop *loop_create(
    struct config *config, struct log *log, uint64_t incarnation, struct error *err);

/** Tries what else the configuration needs from this machine, for --check-config: the
 * devices and the folder of stores. */
void loop_check(const struct config *config, struct faults *faults);

/** Serves until SIGTERM or SIGINT, and then until all jobs have ended at a step boundary or
 * stop_timeout_ms has passed. After the first signal both have their default effect again, so that
 * a second one ends the process at once. */
void loop_run(struct loop *loop);

/** Tells the ranks that the daemon stops, closes and frees everything. */
void loop_destroy(struct loop *loop);

#endif
