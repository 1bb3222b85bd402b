/*
 * Peers and their keys. Seeds are peers whose word this node takes for who the others are. A peer
 * without an endpoint is one that takes this node as its seed, and tells its endpoint then. Traffic
 * that leaves this machine needs keys, unless `insecure` is set. A node that has keys expects them
 * of every peer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/core.h"
#include "daemon/settings/config_option.h"
#include "daemon/settings/endpoint.h"
#include "daemon/settings/privilege.h"

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

/* ------------------------------------------------------------------ the list */

/* The settings peers and seeds are two lists in one array. */
static void clear_list(struct config *config, bool seeds)
{
    size_t kept = 0;

    for (size_t i = 0; i < config->peer_count; i++) {
        if (config->peers[i].seed != seeds) {
            config->peers[kept++] = config->peers[i];
        }
    }
    config->peer_count = kept;
    if (kept == 0) {
        free(config->peers);
        config->peers = NULL;
    }
}

static void clear_peers(struct config *config)
{
    clear_list(config, false);
}

static void clear_seeds(struct config *config)
{
    clear_list(config, true);
}

static size_t count_list(const struct config *config, bool seeds)
{
    size_t count = 0;

    for (size_t i = 0; i < config->peer_count; i++) {
        count += config->peers[i].seed == seeds ? 1 : 0;
    }
    return count;
}

static size_t count_peers(const struct config *config)
{
    return count_list(config, false);
}

static size_t count_seeds(const struct config *config)
{
    return count_list(config, true);
}

static enum adtopk_status add_peer(
    struct config *config, bool seed, uint64_t node, const char *endpoint, struct error *err)
{
    struct config_peer peer = {.node = (uint16_t)node, .seed = seed};
    const size_t length = strlen(endpoint);

    if (node > CONFIG_NODE_MAX) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "node %llu is not from 0 to %d",
            (unsigned long long)node, CONFIG_NODE_MAX);
    }
    if ((length == 0 && seed) || length >= CONFIG_ENDPOINT_SIZE) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "the endpoint of node %llu has %zu bytes",
            (unsigned long long)node, length);
    }
    if (config->peer_count >= CORE_MAX_NODES) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "more than %d peers", CORE_MAX_NODES);
    }
    memcpy(peer.endpoint, endpoint, length);
    if (config_add_peer(config, &peer) != ADTOPK_OK) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the peers");
    }
    return ADTOPK_OK;
}

/* One more key of the peer that was added last. */
static enum adtopk_status config_peers_add_key(
    struct config *config, const char *key, struct error *err)
{
    struct config_peer *peer = &config->peers[config->peer_count - 1];
    size_t count = 0;

    while (count < CONFIG_PEER_KEYS && peer->keys[count][0] != '\0') {
        count++;
    }
    if (count == CONFIG_PEER_KEYS) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "node %u has more than %d keys", peer->node,
            CONFIG_PEER_KEYS);
    }
    if (!keyfile_is_key(key)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "the key of node %u has %zu bytes: a key is 40 characters of Z85", peer->node,
            strlen(key));
    }
    memcpy(peer->keys[count], key, KEYFILE_KEY_SIZE);
    return ADTOPK_OK;
}

/* N=ENDPOINT, N=ENDPOINT#KEY or N=ENDPOINT#KEY;KEY; ';' is none of Z85's characters, and '#' none
 * of an endpoint's. */
static enum adtopk_status add_text(struct config *config, bool seed, char *entry, struct error *err)
{
    char *end, *keys = entry;
    enum adtopk_status status;
    uint64_t node;

    if (!option_digits(entry, &node, &end) || *end != '=') {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "\"%.*s\" is not of the form N=ENDPOINT#KEY",
            (int)strcspn(entry, "#"), entry);
    }
    (void)strsep(&keys, "#");
    status = add_peer(config, seed, node, end + 1, err);
    while (status == ADTOPK_OK && keys != NULL) {
        status = config_peers_add_key(config, strsep(&keys, ";"), err);
    }
    return status;
}

static enum adtopk_status add_peer_text(struct config *config, char *entry, struct error *err)
{
    return add_text(config, false, entry, err);
}

static enum adtopk_status add_seed_text(struct config *config, char *entry, struct error *err)
{
    return add_text(config, true, entry, err);
}

/* A key, or an array of keys. */
static enum adtopk_status add_keys_json(
    struct config *config, const cJSON *value, struct error *err)
{
    const cJSON *key = cJSON_IsArray(value) ? value->child : value;
    enum adtopk_status status = ADTOPK_OK;

    if (key == NULL) {
        return option_wrong_type("a text, or an array of texts, as \"key\"", err);
    }
    for (; key != NULL && status == ADTOPK_OK; key = key == value ? NULL : key->next) {
        status = cJSON_IsString(key)
                     ? config_peers_add_key(config, key->valuestring, err)
                     : option_wrong_type("a text, or an array of texts, as \"key\"", err);
    }
    return status;
}

static enum adtopk_status add_json(struct config *config, bool seed, const struct option_json *in,
    const cJSON *item, const cJSON *const *found, const cJSON **culprit, struct error *err)
{
    const cJSON *node = found[0], *endpoint = found[1], *key = found[2];
    uint64_t number = 0;

    if (node == NULL || (seed && endpoint == NULL)) {
        return option_wrong_type("{\"node\": N, \"endpoint\": \"tcp://HOST:PORT\"}", err);
    }
    *culprit = node;
    if (!option_whole(node, &number) || number > CONFIG_NODE_MAX) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "a whole number from 0 to %d is needed as \"node\"", CONFIG_NODE_MAX);
    }
    *culprit = endpoint != NULL ? endpoint : item;
    if (endpoint != NULL && (!cJSON_IsString(endpoint) || endpoint->valuestring[0] == '\0')) {
        return option_wrong_type("a text as \"endpoint\"", err);
    }
    if (add_peer(config, seed, number, endpoint != NULL ? endpoint->valuestring : "", err) !=
        ADTOPK_OK) {
        return err->code;
    }
    config->peers[config->peer_count - 1].place =
        (size_t)(json_place(in->json, item, JSON_VALUE) - in->json->text);
    *culprit = key;
    return key != NULL ? add_keys_json(config, key, err) : ADTOPK_OK;
}

static enum adtopk_status add_peer_json(struct config *config, const struct option_json *in,
    const cJSON *item, const cJSON *const *found, const cJSON **culprit, struct error *err)
{
    return add_json(config, false, in, item, found, culprit, err);
}

static enum adtopk_status add_seed_json(struct config *config, const struct option_json *in,
    const cJSON *item, const cJSON *const *found, const cJSON **culprit, struct error *err)
{
    return add_json(config, true, in, item, found, culprit, err);
}

static cJSON *print_one(const struct config_peer *from)
{
    const char *const keys[CONFIG_PEER_KEYS] = {from->keys[0], from->keys[1]};
    const int count = (from->keys[0][0] != '\0') + (from->keys[1][0] != '\0');
    cJSON *peer = cJSON_CreateObject();
    bool whole = option_add(peer, "node", cJSON_CreateNumber(from->node)) &&
                 (from->endpoint[0] == '\0' ||
                     option_add(peer, "endpoint", cJSON_CreateString(from->endpoint))) &&
                 (count == 0 || option_add(peer, "key", cJSON_CreateStringArray(keys, count)));

    return option_if(whole, peer);
}

static cJSON *print_list(const struct config *config, bool seeds, size_t at)
{
    const struct config_peer *peer = config->peers;

    while (peer->seed != seeds || at-- > 0) {
        peer++;
    }
    return print_one(peer);
}

static cJSON *print_peer(const struct config *config, size_t at)
{
    return print_list(config, false, at);
}

static cJSON *print_seed(const struct config *config, size_t at)
{
    return print_list(config, true, at);
}

const struct option_list peer_list = {.fields = {"node", "endpoint", "key"},
    .count = count_peers,
    .clear = clear_peers,
    .add_text = add_peer_text,
    .add_json = add_peer_json,
    .print = print_peer};

const struct option_list seed_list = {.fields = {"node", "endpoint", "key"},
    .count = count_seeds,
    .clear = clear_seeds,
    .add_text = add_seed_text,
    .add_json = add_seed_json,
    .print = print_seed};

/* ------------------------------------------------------------------ checks */

static void check_peer(const struct config *config, size_t at, struct faults *faults)
{
    const struct config_peer *peer = &config->peers[at];
    char what[32];
    struct error err;

    (void)snprintf(what, sizeof(what), "peer %u", peer->node);
    if (peer->endpoint[0] != '\0' && endpoint_check(peer->endpoint, what, &err) != ADTOPK_OK) {
        config_peer_fault(config, peer, faults, "%s", err.text);
    }
    if (peer->node == config->node) {
        config_peer_fault(config, peer, faults, "peer %u has this node's own id", peer->node);
    }
    for (size_t i = 0; i < at; i++) {
        const struct config_peer *other = &config->peers[i];

        if (other->node == peer->node) {
            config_peer_fault(config, peer, faults, "peer %u occurs twice", peer->node);
        } else if (peer->endpoint[0] != '\0' && strcmp(other->endpoint, peer->endpoint) == 0) {
            config_peer_fault(config, peer, faults,
                "peer %u: %.100s is the endpoint of peer %u too", peer->node, peer->endpoint,
                other->node);
        }
    }
}

void check_peers(const struct config *config, struct faults *faults)
{
    for (size_t i = 0; i < config->peer_count && !faults_full(faults); i++) {
        check_peer(config, i, faults);
    }
}

const char *config_advertised(const struct config *config)
{
    return config->advertise[0] != '\0' ? config->advertise : config->listen;
}

void check_advertise(const struct config *config, struct faults *faults)
{
    const char *own = config_advertised(config);
    struct error err;

    if (count_seeds(config) == 0) {
        if (config->advertise[0] != '\0') {
            config_fault(config, "advertise", faults,
                "advertise: only seeds are told it, and there are none");
        }
        return;
    }
    if (config->advertise[0] != '\0' && endpoint_check(own, "advertise", &err) != ADTOPK_OK) {
        config_fault(config, "advertise", faults, "%s", err.text);
    } else if (endpoint_is_any(own) || !endpoint_is_address(own)) {
        config_fault(config, config->advertise[0] != '\0' ? "advertise" : "listen", faults,
            "advertise: seeds cannot reach this node at %.100s: give its address in numbers", own);
    }
    for (size_t i = 0; i < config->peer_count && config->advertise[0] != '\0'; i++) {
        if (strcmp(config->peers[i].endpoint, own) == 0) {
            config_peer_fault(config, &config->peers[i], faults,
                "peer %u: %.100s is where this node itself listens", config->peers[i].node, own);
        }
    }
}

#define ALONE                                                                                      \
    "leads beyond this machine: set key_file, and a key for every peer, to protect the traffic; "  \
    "insecure (--insecure) allows it unprotected"

/* What is malformed leads nowhere, and has a fault of its own. */
static bool leads_beyond(const char *endpoint)
{
    struct error ignored;

    return endpoint[0] != '\0' && endpoint_check(endpoint, "", &ignored) == ADTOPK_OK &&
           !endpoint_is_loopback(endpoint);
}

static void check_exposure(const struct config *config, struct faults *faults)
{
    if (config->insecure || config->key_file[0] != '\0') {
        return;
    }
    if (leads_beyond(config->listen)) {
        config_fault(config, "listen", faults, "listen: %.100s " ALONE, config->listen);
        return;
    }
    for (size_t i = 0; i < config->peer_count; i++) {
        const struct config_peer *peer = &config->peers[i];

        if (leads_beyond(peer->endpoint)) {
            config_peer_fault(
                config, peer, faults, "peer %u: %.100s " ALONE, peer->node, peer->endpoint);
            return; /* the others will be the same */
        }
    }
}

/* The peer before number `at` that has this key, or NULL. */
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

static void check_peer_keys(const struct config *config, size_t at, struct faults *faults)
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
            config_fault(
                config, key, faults, "bulk_listen: it is only used with data_protection none");
        }
    } else if (config->key_file[0] == '\0') {
        config_fault(config, key, faults,
            "data_protection none: key_file is missing, so control is not protected either");
    } else if (config->listen[0] != '\0' && !config_bulk_endpoint(config, endpoint)) {
        config_fault(
            config, key, faults, "bulk_listen is needed: the port of listen is the last one");
    } else if (config->listen[0] != '\0' &&
               endpoint_check(endpoint, "bulk_listen", &err) != ADTOPK_OK) {
        config_fault(config, key, faults, "%s", err.text);
    }
}

void check_keys(const struct config *config, struct faults *faults)
{
    check_exposure(config, faults);
    if (config->key_file[0] != '\0' && config->key_file[0] != '/') {
        config_fault(config, "key_file", faults, "key_file: \"%.100s\" is not an absolute path",
            config->key_file);
    }
    for (size_t i = 0; i < config->peer_count; i++) {
        check_peer_keys(config, i, faults);
    }
    check_bulk(config, faults);
}

enum adtopk_status config_load_keys(
    const struct config *config, struct keyfile_pair *pair, struct error *err)
{
    char where[CONFIG_SOURCE_SIZE];
    struct error plain = {.code = ADTOPK_OK};
    const struct config_peer *peer;

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
    peer = find_twin(config, config->peer_count, pair->public_key);
    if (peer != NULL) {
        keyfile_wipe(pair);
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "peer %u: it has this node's own key, that of %.100s", peer->node, config->key_file);
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

const char *config_unreachable(const struct config *config)
{
    if (!endpoint_is_loopback(config->listen)) {
        return NULL;
    }
    for (size_t i = 0; i < config->peer_count; i++) {
        if (leads_beyond(config->peers[i].endpoint)) {
            return "listen: the address leads nowhere from other machines, and peers are on some: "
                   "set one that they reach";
        }
    }
    return NULL;
}

bool config_is_unset(const struct config *config)
{
    return config->origin.file[0] == '\0' && config->peer_count == 0 &&
           option_source(config, "node")->layer == LAYER_DEFAULT &&
           option_source(config, "seeds")->layer == LAYER_DEFAULT;
}
