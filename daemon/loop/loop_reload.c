/*
 * SIGHUP: the configuration is read again and taken as a whole, or the old one stays and the log
 * says why. Everything is checked before anything changes. What can still fail then comes first:
 * memory for a peer, and listening under new keys. Peers that have been added by then stay, and so
 * do the new keys. The log says so, and the next SIGHUP does the rest.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/loop/loop_state.h"
#include "daemon/loop/notify.h"

/* A peer of an earlier configuration, or one that a seed has introduced. */
static bool loop_reload_is_known(const struct loop *loop, uint16_t node)
{
    return config_find_peer(loop->config, node) != NULL || seeds_has(loop->nodes.seeds, node);
}

static enum adtopk_status loop_reload_add_peers(
    struct loop *loop, const struct config *fresh, struct error *err)
{
    for (size_t i = 0; i < fresh->peer_count; i++) {
        const struct config_peer *peer = &fresh->peers[i];

        if (loop_reload_is_known(loop, peer->node)) {
            continue;
        }
        if (loop_add_peer(loop, peer, err) != ADTOPK_OK) {
            return err->code;
        }
        seeds_take(loop->nodes.seeds, peer);
        if (config_add_peer(loop->config, peer) != ADTOPK_OK) {
            return error_set(err, ADTOPK_ERR_MEMORY, "no memory to remember peer %u", peer->node);
        }
    }
    return ADTOPK_OK;
}

/* What may fail. The peers' keys come last: from then on the old configuration, from which seeds
 * take keys at any time, must not be in force. *begun: something may have changed. */
static enum adtopk_status loop_reload_try(
    struct loop *loop, const struct config *fresh, bool *begun, struct error *err)
{
    struct keyfile_pair pair;
    enum adtopk_status status = config_load_keys(fresh, &pair, err);

    if (status == ADTOPK_OK && loop->nodes.seeds != NULL) {
        status = seeds_check(loop->nodes.seeds, fresh, err);
    }
    *begun = status == ADTOPK_OK;
    if (*begun) {
        status = loop_reload_add_peers(loop, fresh, err);
    }
    if (status == ADTOPK_OK) {
        status = loop_reload_remote(loop, fresh, &pair, err);
    }
    if (status == ADTOPK_OK) {
        status = core_set_default_policy(loop->core, fresh->policy, err);
    }
    if (status == ADTOPK_OK && loop->transport != NULL) {
        status = loop_change_keys(loop, fresh, fresh->key_file[0] != '\0' ? &pair : NULL, err);
    }
    keyfile_wipe(&pair);
    return status;
}

static enum adtopk_status loop_reload_take(
    struct loop *loop, const struct config *fresh, bool *begun, struct error *err)
{
    const enum adtopk_status status = loop_reload_try(loop, fresh, begun, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    loop_configure_seeds(loop, fresh);
    core_set_stuck(loop->core, fresh->stuck_after_ms * 1000);
    loop->log->level = (enum log_level)fresh->log_level;
    loop->log->format = (enum log_format)fresh->log_format;
    loop_set_limits(loop, fresh);
    core_set_trace(loop->core, loop->log->level >= LEVEL_DEBUG ? loop_trace : NULL);
    return ADTOPK_OK;
}

static void loop_reload_tell_reloading(struct loop *loop)
{
    char state[64];

    (void)snprintf(state, sizeof(state), "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, loop_now_us());
    (void)notify_send(state, NULL);
    log_write(loop->log, LEVEL_INFO, LOG_LIFE, "reading the configuration again: SIGHUP");
}

void loop_reload(struct loop *loop)
{
    struct config fresh;
    struct error err = {.code = ADTOPK_OK};
    char changes[CONFIG_CHANGES_SIZE] = "";
    enum adtopk_status status;
    bool begun = false;

    if (loop->stop.stopping) {
        return;
    }
    loop_reload_tell_reloading(loop);
    status = config_reload(loop->config, &fresh, getenv, &err);
    if (status == ADTOPK_OK) {
        config_changes(loop->config, &fresh, changes);
        status = loop_reload_take(loop, &fresh, &begun, &err);
    }
    if (status == ADTOPK_OK) {
        struct config old = *loop->config;

        *loop->config = fresh;
        fresh = old;
        log_write(loop->log, LEVEL_INFO, LOG_LIFE, "the configuration has been taken; changed: %s",
            changes[0] != '\0' ? changes : "nothing");
    } else {
        log_write(loop->log, LEVEL_ERROR, LOG_LIFE, "%s: %.*s",
            begun ? "the new configuration is taken only in part, and SIGHUP tries again"
                  : "the old configuration stays",
            (int)strcspn(err.text, "\n"), err.text); /* without the line that it shows */
    }
    config_free(&fresh);
    (void)notify_send("READY=1", NULL);
}
