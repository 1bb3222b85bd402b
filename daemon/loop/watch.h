/*
 * Logs events of other nodes and of ranks: peers that come up, go down or never answered, packets
 * that show wrongly configured node ids, sessions that become ready, are lost, fail or leave.
 */
#ifndef ADTOPK_WATCH_H
#define ADTOPK_WATCH_H

#include <stdint.h>

#include "daemon/core/inspect.h"
#include "daemon/log.h"
#include "daemon/session/door.h"

struct watch;

/** For a node with this id; `log` must outlive it. Free it with free(). NULL if memory runs out. */
struct watch *watch_create(uint16_t node, struct log *log);

/** Logs the changes since the last call; packets of unknown nodes at most once a minute. */
void watch_look(struct watch *watch, const struct core *core, uint64_t now_ms);

/** Logs that a session's process is gone. */
void watch_log_lost(
    struct log *log, const struct doors *doors, session_id session, const char *reason);

/** Logs why a job has failed. */
void watch_log_failed(struct log *log, const struct job_info *job);

/** Logs the meaning of an action for its session, if it is worth a line. */
void watch_log_action(struct log *log, const struct doors *doors, const struct action *action);

#endif
