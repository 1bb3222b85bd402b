#include "daemon/watch.h"

#include <stdbool.h>
#include <stdlib.h>

#define STRANGERS_EVERY_MS 60000

struct watch {
    struct log *log;
    uint16_t node;
    uint64_t strangers; /* when they were logged last; 0: never */
    uint64_t strangers_ms;
    bool up[CORE_MAX_NODES]; /* as last logged, in the core's order */
};

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
static void look_at_strangers(struct watch *watch, const struct core *core, uint64_t now_ms)
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
            "a packet for node %u came to this node %u, from node %u", refused.destination,
            watch->node, refused.source);
    } else {
        log_write(watch->log, LEVEL_WARNING, LOG_PEER,
            "a packet from node %u, which is not among the peers", refused.source);
    }
}

void watch_look(struct watch *watch, const struct core *core, uint64_t now_ms)
{
    struct peer_info peer;

    for (uint32_t i = 0; i < CORE_MAX_NODES && core_peer_info(core, i, &peer); i++) {
        if (peer.up != watch->up[i]) {
            watch->up[i] = peer.up;
            log_write(watch->log, peer.up ? LEVEL_INFO : LEVEL_WARNING, LOG_PEER, "node %u is %s",
                peer.node, peer.up ? "up" : "down");
        }
    }
    look_at_strangers(watch, core, now_ms);
}

void watch_log_action(struct log *log, const struct action *action)
{
    unsigned long long session = action->session;

    if (action->type == ACTION_FAILED) {
        log_write(log, LEVEL_WARNING, LOG_SESSION, "session %llu has failed: %s", session,
            action->error->text);
    } else if (action->type == ACTION_READY) {
        log_write(log, LEVEL_INFO, LOG_SESSION, "session %llu is ready, next step %llu", session,
            (unsigned long long)action->number);
    } else if (action->type == ACTION_CLOSED) {
        log_write(log, LEVEL_INFO, LOG_SESSION, "session %llu has left", session);
    }
}
