/*
 * A new configuration for a running daemon. All of it is read and checked before anything changes,
 * and it is taken as a whole or not at all: half of a new configuration is one that nobody wrote.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/config_option.h"

const struct config_peer *config_find_peer(const struct config *config, uint16_t node)
{
    for (size_t i = 0; i < config->peer_count; i++) {
        if (config->peers[i].node == node) {
            return &config->peers[i];
        }
    }
    return NULL;
}

enum adtopk_status config_add_peer(struct config *config, const struct config_peer *peer)
{
    struct config_peer *peers = realloc(config->peers, (config->peer_count + 1) * sizeof(*peers));

    if (peers == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    peers[config->peer_count++] = *peer;
    config->peers = peers;
    return ADTOPK_OK;
}

static const void *value_of(const struct config *config, const struct option *option)
{
    return (const char *)config + option->offset;
}

static bool peers_differ(const struct config *one, const struct config *other)
{
    if (one->peer_count != other->peer_count) {
        return true;
    }
    for (size_t i = 0; i < one->peer_count; i++) {
        if (one->peers[i].node != other->peers[i].node ||
            strcmp(one->peers[i].endpoint, other->peers[i].endpoint) != 0 ||
            memcmp(one->peers[i].keys, other->peers[i].keys, sizeof(one->peers[i].keys)) != 0) {
            return true;
        }
    }
    return false;
}

static bool differs(
    const struct option *option, const struct config *one, const struct config *other)
{
    const void *first = value_of(one, option);
    const void *second = value_of(other, option);

    switch (option->type) {
    case OPTION_NUMBER:
    case OPTION_USER:
    case OPTION_CHOICE: return *(const uint64_t *)first != *(const uint64_t *)second;
    case OPTION_TEXT: return strcmp(first, second) != 0;
    case OPTION_SWITCH: return *(const bool *)first != *(const bool *)second;
    case OPTION_POLICY:
        return strcmp(one->policy != NULL ? one->policy : "{}",
                   other->policy != NULL ? other->policy : "{}") != 0;
    case OPTION_PEERS: return peers_differ(one, other);
    case OPTION_TRAINERS: return trainers_differ(one, other);
    }
    return true;
}

/* Peers may be added: jobs under way do not involve them. */
static enum adtopk_status check_peers(
    const struct config *running, const struct config *fresh, struct error *err)
{
    char where[CONFIG_SOURCE_SIZE];

    config_where(fresh, "peers", where);
    for (size_t i = 0; i < running->peer_count; i++) {
        const struct config_peer *old = &running->peers[i];
        const struct config_peer *peer = config_find_peer(fresh, old->node);

        if (peer == NULL || strcmp(peer->endpoint, old->endpoint) != 0) {
            return error_set(err, ADTOPK_ERR_STATE, "%s: \"peers\": to %s node %u needs a restart",
                where, peer == NULL ? "remove" : "move", old->node);
        }
    }
    return ADTOPK_OK;
}

static enum adtopk_status check_changes(
    const struct config *running, const struct config *fresh, struct error *err)
{
    if (running->file[0] != '\0' && fresh->file[0] == '\0') {
        return error_set(err, ADTOPK_ERR_STATE, "%s has gone", running->file);
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
    return check_peers(running, fresh, err);
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

    config_load(fresh, running->argc, running->argv, environment, &action, &faults);
    if (faults.count == 0) {
        config_check_policy(fresh, &faults);
    }
    return faults.count == 0 ? check_changes(running, fresh, err) : faults_first(&faults, err);
}
