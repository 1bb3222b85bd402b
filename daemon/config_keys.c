/*
 * Who has keys and who needs them. Traffic that leaves this machine needs them, unless `insecure`
 * says otherwise; a node that has keys expects them of every peer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/endpoint.h"

const char *const config_protection_names[PROTECTION_COUNT] = {
    [PROTECTION_CURVE] = "curve",
    [PROTECTION_NONE] = "none",
};

/* The first peer, or this node if there is none, whose endpoint is not on this machine. */
static enum adtopk_status check_exposure(
    const struct config *config, const char **key, struct error *err)
{
    if (config->insecure || config->key_file[0] != '\0') {
        return ADTOPK_OK;
    }
    *key = "listen";
    if (config->listen[0] != '\0' && !endpoint_is_loopback(config->listen)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "listen: %.100s leads beyond this machine: key_file, and a key for every peer, protect "
            "what passes there; --insecure allows it in the clear",
            config->listen);
    }
    *key = "peers";
    for (size_t i = 0; i < config->peer_count; i++) {
        if (!endpoint_is_loopback(config->peers[i].endpoint)) {
            return error_set(err, ADTOPK_ERR_ARGUMENT,
                "peer %u: %.100s leads beyond this machine: key_file, and a key for every peer, "
                "protect what passes there; --insecure allows it in the clear",
                config->peers[i].node, config->peers[i].endpoint);
        }
    }
    return ADTOPK_OK;
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

static enum adtopk_status check_peer(const struct config *config, size_t at, struct error *err)
{
    const struct config_peer *peer = &config->peers[at];
    bool keyed = config->key_file[0] != '\0';

    if (keyed != (peer->keys[0][0] != '\0')) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            keyed ? "peer %u: it has no \"key\", which it needs because key_file is set"
                  : "peer %u: it has a \"key\", but this node has none: key_file is missing",
            peer->node);
    }
    if (peer->keys[1][0] != '\0' && strcmp(peer->keys[0], peer->keys[1]) == 0) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "peer %u: its two keys are the same", peer->node);
    }
    for (size_t k = 0; k < CONFIG_PEER_KEYS && peer->keys[k][0] != '\0'; k++) {
        const struct config_peer *twin = find_twin(config, at, peer->keys[k]);

        if (twin != NULL) {
            return error_set(err, ADTOPK_ERR_ARGUMENT, "peer %u: it has the key of peer %u",
                peer->node, twin->node);
        }
    }
    return ADTOPK_OK;
}

static enum adtopk_status check_bulk(const struct config *config, struct error *err)
{
    char endpoint[CONFIG_ENDPOINT_SIZE];

    if (config->data_protection != PROTECTION_NONE) {
        return config->bulk_listen[0] == '\0'
                   ? ADTOPK_OK
                   : error_set(err, ADTOPK_ERR_ARGUMENT,
                         "bulk_listen: only with data_protection none does bulk come in there");
    }
    if (config->key_file[0] == '\0') {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "data_protection none: without key_file control is not protected either");
    }
    if (config->listen[0] == '\0') {
        return ADTOPK_OK;
    }
    if (!config_bulk_endpoint(config, endpoint)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "bulk_listen is needed: there is no port behind that of listen");
    }
    if (strcmp(endpoint, config->listen) == 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "bulk_listen and listen are both %s", endpoint);
    }
    return endpoint_check(endpoint, "bulk_listen", err);
}

enum adtopk_status config_check_keys(
    const struct config *config, const char **key, struct error *err)
{
    enum adtopk_status status = check_exposure(config, key, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    if (config->key_file[0] != '\0' && config->key_file[0] != '/') {
        *key = "key_file";
        return error_set(err, ADTOPK_ERR_ARGUMENT, "key_file: \"%.100s\" is not an absolute path",
            config->key_file);
    }
    *key = "peers";
    for (size_t i = 0; i < config->peer_count && status == ADTOPK_OK; i++) {
        status = check_peer(config, i, err);
    }
    if (status == ADTOPK_OK) {
        *key = config->bulk_listen[0] != '\0' ? "bulk_listen" : "data_protection";
        status = check_bulk(config, err);
    }
    return status;
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
        return config->insecure
                   ? "insecure: traffic between nodes is neither encrypted nor authenticated"
                   : NULL;
    }
    return config->data_protection == PROTECTION_NONE
               ? "data_protection none: bulk between nodes is not encrypted; control is"
               : NULL;
}
