#include "daemon/loop/watch.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/admin/jobname.h"
#include "daemon/session/session.h"

#define STRANGERS_EVERY_MS 60000
#define SILENT_MS 30000 /* after which a peer that never answered is worth a line */
#define SESSION_NAME_SIZE (JOBNAME_SIZE + 40)

struct watch {
    struct log *log;
    uint16_t node;
    uint64_t strangers; /* when they were logged last; 0: never */
    uint64_t strangers_ms;
    bool up[CORE_MAX_NODES];              /* as last logged, in the core's order */
    uint64_t incarnation[CORE_MAX_NODES]; /* 0: it was never up */
    uint64_t first_ms;                    /* when peers were looked at first */
    bool silent[CORE_MAX_NODES];          /* that was logged */
};

#define NOBODY UINT32_MAX /* the session's owner, once the core has forgotten the job */

struct watch *watch_create(uint16_t node, struct log *log)
{
    struct watch *watch = calloc(1, sizeof(*watch));

    if (watch != NULL) {
        watch->log = log;
        watch->node = node;
    }
    return watch;
}

/* Wrong node ids would otherwise only show as peers that stay down. */
static void watch_look_at_strangers(struct watch *watch, const struct core *core, uint64_t now_ms)
{
    struct link_refused refused = core_refused(core);

    if (refused.strangers == watch->strangers ||
        (watch->strangers > 0 && now_ms - watch->strangers_ms < STRANGERS_EVERY_MS)) {
        return;
    }
    watch->strangers = refused.strangers;
    watch->strangers_ms = now_ms;
    if (refused.destination != watch->node) {
        log_write(watch->log, LEVEL_WARNING, LOG_PEER,
            "a packet for node %u came to this node %u, from node %u: `node` or `peers` is "
            "wrong on one side",
            refused.destination, watch->node, refused.source);
    } else {
        log_write(watch->log, LEVEL_WARNING, LOG_PEER,
            "a packet from node %u, which is not among the peers: `node` or `peers` is wrong "
            "on one side",
            refused.source);
    }
}

/* A daemon that is back at once was never down. */
static void watch_look_at_peer(
    struct watch *watch, const struct peer_info *peer, bool *up, uint64_t *incarnation)
{
    if (peer->up != *up) {
        log_write(watch->log, peer->up ? LEVEL_INFO : LEVEL_WARNING, LOG_PEER, "node %u is %s",
            peer->node, peer->up ? "up" : "down");
    } else if (peer->up && peer->incarnation != *incarnation) {
        log_write(
            watch->log, LEVEL_INFO, LOG_PEER, "node %u: its daemon was started again", peer->node);
    }
    *up = peer->up;
    *incarnation = peer->incarnation;
}

/* A peer that was never up cannot go down: an address where nobody is would never show in the log.
 */
static void watch_look_at_silence(struct watch *watch, const struct peer_info *peer, uint32_t i)
{
    if (watch->incarnation[i] == 0 && !watch->silent[i]) {
        watch->silent[i] = true;
        log_write(watch->log, LEVEL_WARNING, LOG_PEER,
            "node %u has not answered since this daemon began: does its daemon run, and is its "
            "address right?",
            peer->node);
    }
}

void watch_look(struct watch *watch, const struct core *core, uint64_t now_ms)
{
    struct peer_info peer;

    watch->first_ms = watch->first_ms == 0 ? now_ms : watch->first_ms;
    for (uint32_t i = 0; i < CORE_MAX_NODES && core_peer_info(core, i, &peer); i++) {
        watch_look_at_peer(watch, &peer, &watch->up[i], &watch->incarnation[i]);
        if (now_ms - watch->first_ms >= SILENT_MS) {
            watch_look_at_silence(watch, &peer, i);
        }
    }
    watch_look_at_strangers(watch, core, now_ms);
}

/* "session 7 of job 0:digits/0"; without the job if the session is closed. The core may have
 * forgotten it. Fills `owner` with the job's user, NOBODY without a job. */
static const char *watch_session_name(
    const struct doors *doors, session_id session, char *text, size_t size, uint32_t *owner)
{
    const struct session *known = door_find(doors, session);
    char job[JOBNAME_SIZE] = "";

    *owner = NOBODY;
    if (known != NULL && known->key.name[0] != '\0') {
        jobname_print(&known->key, job);
        *owner = known->key.owner;
    }
    (void)snprintf(text, size, "session %llu%s%s", (unsigned long long)session,
        job[0] != '\0' ? " of job " : "", job);
    return text;
}

void watch_log_lost(
    struct log *log, const struct doors *doors, session_id session, const char *reason)
{
    char name[SESSION_NAME_SIZE];
    uint32_t owner;

    (void)watch_session_name(doors, session, name, sizeof(name), &owner);
    log_write_by(log, LEVEL_WARNING, LOG_SESSION, owner, "%s is lost: %s", name, reason);
}

void watch_log_failed(struct log *log, const struct job_info *job)
{
    char name[JOBNAME_SIZE];

    jobname_print(&job->key, name);
    log_write_by(
        log, LEVEL_WARNING, LOG_CHANGE, job->key.owner, "job %s has failed: %s", name, job->reason);
}

void watch_log_action(struct log *log, const struct doors *doors, const struct action *action)
{
    char name[SESSION_NAME_SIZE];
    uint32_t owner;

    if (action->type != ACTION_FAILED && action->type != ACTION_READY &&
        action->type != ACTION_CLOSED) {
        return; /* most actions are part of a step */
    }
    (void)watch_session_name(doors, action->session, name, sizeof(name), &owner);
    if (action->type == ACTION_FAILED) {
        log_write_by(
            log, LEVEL_WARNING, LOG_SESSION, owner, "%s has failed: %s", name, action->error->text);
    } else if (action->type == ACTION_READY) {
        log_write_by(log, LEVEL_INFO, LOG_SESSION, owner, "%s is ready, next step %llu", name,
            (unsigned long long)action->number);
    } else {
        log_write_by(log, LEVEL_INFO, LOG_SESSION, owner, "%s has left", name);
    }
}
