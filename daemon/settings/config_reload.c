/*
 * A new configuration for a running daemon. The daemon reads and checks all of it before anything
 * changes. loop/loop_reload.c has what may still fail then.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/settings/config_option.h"

/* The value as --print-config has it; NULL without memory. */
static char *value_text(const struct option *option, const struct config *config)
{
    cJSON *value = option_json(option, config);
    char *text = cJSON_PrintUnformatted(value);

    cJSON_Delete(value);
    return text;
}

static bool differs(
    const struct option *option, const struct config *one, const struct config *other)
{
    char *first = value_text(option, one), *second = value_text(option, other);
    const bool same = first != NULL && second != NULL && strcmp(first, second) == 0;

    free(first);
    free(second);
    return !same;
}

/* Peers may be added: running jobs do not involve them. */
static enum adtopk_status check_moves(
    const struct config *running, const struct config *fresh, struct error *err)
{
    for (size_t i = 0; i < running->peer_count; i++) {
        const struct config_peer *old = &running->peers[i];
        const struct config_peer *peer = config_find_peer(fresh, old->node);

        if (peer == NULL || strcmp(peer->endpoint, old->endpoint) != 0) {
            const char *list = old->seed ? "seeds" : "peers";
            char where[CONFIG_SOURCE_SIZE];

            config_where(fresh, list, where);
            return error_set(err, ADTOPK_ERR_STATE, "%s: \"%s\": to %s node %u needs a restart",
                where, list, peer == NULL ? "remove" : "move", old->node);
        }
    }
    return ADTOPK_OK;
}

static enum adtopk_status check_changes(
    const struct config *running, const struct config *fresh, struct error *err)
{
    if (running->origin.file[0] != '\0' && fresh->origin.file[0] == '\0') {
        return error_set(err, ADTOPK_ERR_STATE, "%s is missing", running->origin.file);
    }
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct option *option = &option_table[i];
        char where[CONFIG_SOURCE_SIZE];

        if (option->live || !differs(option, running, fresh)) {
            continue;
        }
        config_where(fresh, option->key, where);
        return error_set(
            err, ADTOPK_ERR_STATE, "%s: \"%s\" needs a restart to change", where, option->key);
    }
    return check_moves(running, fresh, err);
}

void config_changes(
    const struct config *running, const struct config *fresh, char text[CONFIG_CHANGES_SIZE])
{
    size_t size = 0;

    text[0] = '\0';
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (differs(&option_table[i], running, fresh) && size < CONFIG_CHANGES_SIZE) {
            size += (size_t)snprintf(text + size, CONFIG_CHANGES_SIZE - size, "%s%s",
                size > 0 ? ", " : "", option_table[i].key);
        }
    }
}

enum adtopk_status config_reload(const struct config *running, struct config *fresh,
    char *(*environment)(const char *name), struct error *err)
{
    struct faults faults = {.first_only = true};
    enum config_action action;

    config_load(fresh, running->origin.argc, running->origin.argv, environment, &action, &faults);
    if (faults.count == 0) {
        config_check_policy(fresh, &faults);
    }
    return faults.count == 0 ? check_changes(running, fresh, err) : faults_first(&faults, err);
}
