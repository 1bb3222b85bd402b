#include "daemon/seed/known.h"

#include <stdio.h>
#include <string.h>

#include "daemon/settings/endpoint.h"

struct known_node *known_find(struct known *known, uint16_t node)
{
    return known->place[node] != 0 ? &known->node[known->place[node] - 1] : NULL;
}

/* There is room for it. */
static struct known_node *known_new(struct known *known, const struct config_peer *peer)
{
    struct known_node *node = &known->node[known->count++];

    known->place[peer->node] = (uint16_t)known->count;
    *node = (struct known_node){.peer = *peer};
    return node;
}

/* ------------------------------------------------------------------ keys */

static bool known_has_key(const struct config_peer *peer, const char *key)
{
    for (size_t i = 0; i < CONFIG_PEER_KEYS && peer->keys[i][0] != '\0'; i++) {
        if (strcmp(peer->keys[i], key) == 0) {
            return true;
        }
    }
    return false;
}

static bool known_share_key(const struct config_peer *one, const struct config_peer *other)
{
    return known_has_key(one, other->keys[0]) ||
           (other->keys[1][0] != '\0' && known_has_key(one, other->keys[1]));
}

/* ------------------------------------------------------------------ the configuration */

static enum known_origin known_origin_of(const struct config_peer *peer)
{
    return peer->seed ? KNOWN_SEED : peer->endpoint[0] == '\0' ? KNOWN_JOINED : KNOWN_CONFIGURED;
}

static void known_set_keys(struct known_node *node, const struct config_peer *from)
{
    node->rekeyed |= memcmp(node->peer.keys, from->keys, sizeof(from->keys)) != 0;
    memcpy(node->peer.keys, from->keys, sizeof(from->keys));
}

struct known_node *known_configure_node(struct known *known, const struct config_peer *peer)
{
    struct known_node *node = known_find(known, peer->node);

    if (node == NULL) {
        node = known_new(known, peer);
        node->moved = true;
    }
    if (node->origin != KNOWN_SEED) {
        node->told_by = 0; /* it told nothing while it was no seed */
    }
    node->origin = known_origin_of(peer);
    node->peer.seed = peer->seed;
    known_set_keys(node, peer);
    if (peer->endpoint[0] != '\0' && strcmp(peer->endpoint, node->peer.endpoint) != 0) {
        memcpy(node->next, peer->endpoint, sizeof(node->next));
    }
    return node;
}

static enum adtopk_status known_check_room(
    struct known *known, const struct config *config, struct error *err)
{
    size_t count = known->count;

    for (size_t i = 0; i < config->peer_count; i++) {
        count += known_find(known, config->peers[i].node) == NULL ? 1 : 0;
    }
    return count <= CORE_MAX_NODES
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_ARGUMENT,
                     "%zu nodes, with those that seeds have introduced: at most %d are possible",
                     count, CORE_MAX_NODES);
}

/* A learned node that stays must not have the key of a configured one. */
static enum adtopk_status known_check_learned(
    const struct known_node *learned, const struct config *config, struct error *err)
{
    for (size_t i = 0; i < config->peer_count; i++) {
        const struct config_peer *peer = &config->peers[i];

        if (known_share_key(&learned->peer, peer)) {
            return error_set(err, ADTOPK_ERR_ARGUMENT,
                "peer %u has the key of node %u, which node %u, a seed, has introduced: restart "
                "this "
                "daemon, so that it forgets node %u",
                peer->node, learned->peer.node, learned->from, learned->peer.node);
        }
    }
    return ADTOPK_OK;
}

enum adtopk_status known_check(struct known *known, const struct config *config, struct error *err)
{
    enum adtopk_status status = known_check_room(known, config, err);

    for (size_t i = 0; i < known->count && status == ADTOPK_OK; i++) {
        const struct known_node *node = &known->node[i];

        if (node->origin == KNOWN_LEARNED && config_find_peer(config, node->peer.node) == NULL) {
            status = known_check_learned(node, config, err);
        }
    }
    return status;
}

void known_configure(struct known *known, const struct config *config, const char *key)
{
    known->self.node = (uint16_t)config->node;
    known->self.insecure = config->insecure;
    (void)snprintf(
        known->self.endpoint, sizeof(known->self.endpoint), "%s", config_advertised(config));
    (void)snprintf(known->self.key, sizeof(known->self.key), "%s", key);
    for (size_t i = 0; i < config->peer_count; i++) {
        (void)known_configure_node(known, &config->peers[i]);
    }
}

/* ------------------------------------------------------------------ where a node is */

static enum adtopk_status known_check_endpoint(
    const struct known *known, uint16_t node, const char *endpoint, struct error *err)
{
    char what[32];

    (void)snprintf(what, sizeof(what), "node %u", node);
    if (strlen(endpoint) >= CONFIG_ENDPOINT_SIZE) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "the endpoint of node %u has %zu bytes", node,
            strlen(endpoint));
    }
    if (endpoint_check(endpoint, what, err) != ADTOPK_OK) {
        return err->code;
    }
    if (endpoint_is_any(endpoint) || strcmp(endpoint, known->self.endpoint) == 0) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "node %u: %.100s is no address of that node", node, endpoint);
    }
    if (known->self.key[0] == '\0' && !known->self.insecure && !endpoint_is_loopback(endpoint)) {
        return error_set(err, ADTOPK_ERR_DENIED,
            "node %u: %.100s leads beyond this machine, and this node has no key_file", node,
            endpoint);
    }
    return ADTOPK_OK;
}

/* Whether messages may say where the node is: the configuration does not. */
static bool known_is_movable(const struct known_node *node)
{
    return node->origin == KNOWN_JOINED || node->origin == KNOWN_LEARNED;
}

/* The endpoint has passed its checks. */
static enum adtopk_status known_move(
    struct known_node *node, const char *endpoint, bool up, struct error *err)
{
    if (!known_is_movable(node) || strcmp(endpoint, node->next) == 0) {
        return ADTOPK_OK;
    }
    if (strcmp(endpoint, node->peer.endpoint) == 0) {
        node->next[0] = '\0';
        return ADTOPK_OK;
    }
    (void)snprintf(node->next, sizeof(node->next), "%s", endpoint);
    return up ? error_set(err, ADTOPK_ERR_STATE,
                    "node %u is up at %.80s, and is said to be at %.80s too: two daemons may have "
                    "this number. The second one is tried when the first one is silent",
                    node->peer.node, node->peer.endpoint, endpoint)
              : ADTOPK_OK;
}

enum adtopk_status known_hear_endpoint(
    struct known *known, struct known_node *node, const char *endpoint, bool up, struct error *err)
{
    if (known_check_endpoint(known, node->peer.node, endpoint, err) != ADTOPK_OK) {
        return err->code;
    }
    if (!endpoint_is_address(endpoint)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "node %u: %.100s has a name, and a node has to tell its address in numbers",
            node->peer.node, endpoint);
    }
    return known_move(node, endpoint, up, err);
}

/* ------------------------------------------------------------------ introductions */

/* No other node may have one of the keys, nor may this one. */
static enum adtopk_status known_check_key(
    struct known *known, uint16_t node, const char *key, struct error *err)
{
    if (!keyfile_is_key(key)) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "node %u: a key of %zu bytes", node, strlen(key));
    }
    if (strcmp(key, known->self.key) == 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "node %u has the key of node %u, which is this one", node, known->self.node);
    }
    for (size_t i = 0; i < known->count; i++) {
        const struct config_peer *other = &known->node[i].peer;

        if (other->node != node && known_has_key(other, key)) {
            return error_set(
                err, ADTOPK_ERR_ARGUMENT, "node %u has the key of node %u", node, other->node);
        }
    }
    return ADTOPK_OK;
}

static enum adtopk_status known_check_keys(
    struct known *known, const struct config_peer *introduced, struct error *err)
{
    if (introduced->keys[0][0] == '\0') {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "node %u has no key", introduced->node);
    }
    if (strcmp(introduced->keys[0], introduced->keys[1]) == 0) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "node %u has one key twice", introduced->node);
    }
    for (size_t i = 0; i < CONFIG_PEER_KEYS && introduced->keys[i][0] != '\0'; i++) {
        if (known_check_key(known, introduced->node, introduced->keys[i], err) != ADTOPK_OK) {
            return err->code;
        }
    }
    return ADTOPK_OK;
}

static enum adtopk_status known_check_introduced(struct known *known,
    const struct config_peer *introduced, const struct known_node *before, struct error *err)
{
    if (introduced->node == known->self.node) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "node %u is this one: two nodes may have its number", introduced->node);
    }
    if (known_check_endpoint(known, introduced->node, introduced->endpoint, err) != ADTOPK_OK) {
        return err->code;
    }
    if (known->self.key[0] == '\0') {
        return ADTOPK_OK;
    }
    if (before != NULL && !known_share_key(&before->peer, introduced)) {
        return error_set(err, ADTOPK_ERR_DENIED,
            "node %u has the key %.40s, and is known here with the key %.40s", introduced->node,
            introduced->keys[0], before->peer.keys[0]);
    }
    if (before != NULL &&
        memcmp(before->peer.keys, introduced->keys, sizeof(introduced->keys)) == 0) {
        return ADTOPK_OK; /* they were checked when they came */
    }
    return known_check_keys(known, introduced, err);
}

static enum adtopk_status known_add(
    struct known *known, uint16_t seed, const struct config_peer *introduced, struct error *err)
{
    struct known_node *node;

    if (known->count == CORE_MAX_NODES) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "node %u is one too many: at most %d are possible", introduced->node, CORE_MAX_NODES);
    }
    node = known_new(known, introduced);
    node->origin = KNOWN_LEARNED;
    node->from = seed;
    return ADTOPK_OK;
}

enum adtopk_status known_hear_node(struct known *known, uint16_t seed,
    const struct config_peer *introduced, bool up, struct error *err)
{
    struct known_node *node = known_find(known, introduced->node);

    if (known_check_introduced(known, introduced, node, err) != ADTOPK_OK) {
        return err->code;
    }
    if (node == NULL) {
        return known_add(known, seed, introduced, err);
    }
    if (node->origin == KNOWN_LEARNED && known->self.key[0] != '\0') {
        known_set_keys(node, introduced);
    }
    return known_move(node, introduced->endpoint, up, err);
}
