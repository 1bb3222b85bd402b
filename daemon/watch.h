/*
 * What the log says of the other nodes and of the ranks: peers that come up and go down, packets
 * that show that node ids are configured wrongly, sessions that are ready, are lost, have failed or
 * left.
 */
#ifndef ADTOPK_WATCH_H
#define ADTOPK_WATCH_H

#include <stdint.h>

#include "daemon/core/inspect.h"
#include "daemon/log.h"

struct watch;

/** For a node with this id; `log` must outlive it. To be freed with free(); NULL
 * without memory. */
struct watch *watch_create(uint16_t node, struct log *log);

/** Logs what has changed since the last look; of strangers at most once a minute. */
void watch_look(struct watch *watch, const struct core *core, uint64_t now_ms);

/** Logs that a session's process is gone; before the core hears of it and forgets the session. */
void watch_log_lost(
    struct log *log, const struct core *core, session_id session, const char *reason);

/** Logs why a job has failed. */
void watch_log_failed(struct log *log, const struct job_info *job);

/** Logs what an action means for its session, if it is worth a line. */
void watch_log_action(struct log *log, const struct core *core, const struct action *action);

#endif
