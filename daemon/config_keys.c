/*
 * Who has keys and who needs them. Traffic that leaves this machine needs them, unless `insecure`
 * says otherwise; a node that has keys expects them of every peer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/endpoint.h"
#include "daemon/privilege.h"

const char *const config_protection_names[PROTECTION_COUNT] = {
    [PROTECTION_CURVE] = "curve",
    [PROTECTION_NONE] = "none",
};

#define ALONE                                                                                      \
    "leads beyond this machine: key_file, and a key for every peer, protect what passes there; "   \
    "--insecure allows it in the clear"

static void check_exposure(const struct config *config, struct faults *faults)
{
    if (config->insecure || config->key_file[0] != '\0') {
        return;
    }
    if (config->listen[0] != '\0' && !endpoint_is_loopback(config->listen)) {
        config_fault(config, "listen", faults, "listen: %.100s " ALONE, config->listen);
        return;
    }
    for (size_t i = 0; i < config->peer_count; i++) {
        const struct config_peer *peer = &config->peers[i];

        if (!endpoint_is_loopback(peer->endpoint)) {
            config_peer_fault(
                config, peer, faults, "peer %u: %.100s " ALONE, peer->node, peer->endpoint);
            return; /* the others will be the same */
        }
    }
}

/* The peer before number `at` that has this key too, or NULL. */
static const struct config_peer *find_twin(const struct config *config, size_t at, const char *key)
{
    for (size_t i = 0; i < at; i++) {
        for (size_t k = 0; k < CONFIG_PEER_KEYS; k++) {
            if (strcmp(config->peers[i].keys[k], key) == 0) {
                return &config->peers[i];
            }
        }
    }
    return NULL;
}

static void check_peer(const struct config *config, size_t at, struct faults *faults)
{
    const struct config_peer *peer = &config->peers[at];
    bool keyed = config->key_file[0] != '\0';

    if (keyed != (peer->keys[0][0] != '\0')) {
        config_peer_fault(config, peer, faults,
            keyed ? "peer %u: it has no \"key\", which it needs because key_file is set"
                  : "peer %u: it has a \"key\", but this node has none: key_file is missing",
            peer->node);
    }
    if (peer->keys[1][0] != '\0' && strcmp(peer->keys[0], peer->keys[1]) == 0) {
        config_peer_fault(config, peer, faults, "peer %u: its two keys are the same", peer->node);
    }
    for (size_t k = 0; k < CONFIG_PEER_KEYS && peer->keys[k][0] != '\0'; k++) {
        const struct config_peer *twin = find_twin(config, at, peer->keys[k]);

        if (twin != NULL) {
            config_peer_fault(
                config, peer, faults, "peer %u: it has the key of peer %u", peer->node, twin->node);
        }
    }
}

static void check_bulk(const struct config *config, struct faults *faults)
{
    const char *key = config->bulk_listen[0] != '\0' ? "bulk_listen" : "data_protection";
    char endpoint[CONFIG_ENDPOINT_SIZE];
    struct error err;

    if (config->data_protection != PROTECTION_NONE) {
        if (config->bulk_listen[0] != '\0') {
            config_fault(config, key, faults,
                "bulk_listen: only with data_protection none does bulk come in there");
        }
    } else if (config->key_file[0] == '\0') {
        config_fault(config, key, faults,
            "data_protection none: without key_file control is not protected either");
    } else if (config->listen[0] != '\0' && !config_bulk_endpoint(config, endpoint)) {
        config_fault(
            config, key, faults, "bulk_listen is needed: there is no port behind that of listen");
    } else if (config->listen[0] != '\0' &&
               endpoint_check(endpoint, "bulk_listen", &err) != ADTOPK_OK) {
        config_fault(config, key, faults, "%s", err.text);
    }
}

void config_check_keys(const struct config *config, struct faults *faults)
{
    check_exposure(config, faults);
    if (config->key_file[0] != '\0' && config->key_file[0] != '/') {
        config_fault(config, "key_file", faults, "key_file: \"%.100s\" is not an absolute path",
            config->key_file);
    }
    for (size_t i = 0; i < config->peer_count; i++) {
        check_peer(config, i, faults);
    }
    check_bulk(config, faults);
}

enum adtopk_status config_load_keys(
    const struct config *config, struct keyfile_pair *pair, struct error *err)
{
    char where[CONFIG_SOURCE_SIZE];
    struct error plain = {.code = ADTOPK_OK};

    memset(pair, 0, sizeof(*pair));
    if (config->key_file[0] == '\0') {
        return ADTOPK_OK;
    }
    if (privilege_hide_memory(err) != ADTOPK_OK) {
        return err->code;
    }
    config_where(config, "key_file", where);
    if (keyfile_load(config->key_file, pair, &plain) != ADTOPK_OK) {
        return error_set(err, plain.code, "%.60s: key_file: %s", where, plain.text);
    }
    for (size_t i = 0; i < config->peer_count; i++) {
        for (size_t k = 0; k < CONFIG_PEER_KEYS; k++) {
            if (strcmp(config->peers[i].keys[k], pair->public_key) == 0) {
                keyfile_wipe(pair);
                return error_set(err, ADTOPK_ERR_ARGUMENT,
                    "peer %u: it has this node's own key, that of %.100s", config->peers[i].node,
                    config->key_file);
            }
        }
    }
    return ADTOPK_OK;
}

bool config_bulk_endpoint(const struct config *config, char endpoint[CONFIG_ENDPOINT_SIZE])
{
    const char *colon = strrchr(config->listen, ':');
    unsigned long port;

    if (config->data_protection != PROTECTION_NONE || colon == NULL) {
        return false;
    }
    if (config->bulk_listen[0] != '\0') {
        (void)snprintf(endpoint, CONFIG_ENDPOINT_SIZE, "%s", config->bulk_listen);
        return true;
    }
    port = strtoul(colon + 1, NULL, 10) + 1;
    return port <= UINT16_MAX &&
           snprintf(endpoint, CONFIG_ENDPOINT_SIZE, "%.*s:%lu", (int)(colon - config->listen),
               config->listen, port) < CONFIG_ENDPOINT_SIZE;
}

const char *config_unprotected(const struct config *config)
{
    if (config->key_file[0] == '\0') {
        return config->insecure ? "insecure: traffic is neither encrypted nor authenticated" : NULL;
    }
    return config->data_protection == PROTECTION_NONE
               ? "data_protection none: bulk between nodes is not encrypted; control is"
               : NULL;
}
