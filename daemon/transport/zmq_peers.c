/*
 * Peers of the ZeroMQ transport and their keys, which may change while packets flow.
 *
 * A new list is complete before anything changes, so a wrong one changes nothing. A peer's sockets
 * are opened anew if its keys changed, and all sockets if our own key did. Listening sockets cannot
 * drop one connection. So if a key was removed, or our own changed, they are closed and opened
 * again, and the allowed peers reconnect. Messages that libzmq had received before are checked
 * against the list when they are taken, and refused.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/transport/zmq_state.h"

/* The index of the first peer whose id is not below `id`. */
static size_t transport_zmq_peer_index(const struct transport_zmq *transport, uint16_t id)
{
    size_t low = 0, high = transport->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (transport->peers[middle].id < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct sender *transport_zmq_find(const struct transport_zmq *transport, uint16_t id)
{
    size_t at = transport_zmq_peer_index(transport, id);

    return at < transport->count && transport->peers[at].id == id ? &transport->peers[at] : NULL;
}

/* Adds a peer's keys to a list, on which this node's own must not be. */
static enum adtopk_status transport_zmq_allow(struct allow *allow, const struct keyfile_pair *pair,
    const struct transport_peer *peer, struct error *err)
{
    if (peer->keys[0] == NULL) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "node %u has no key", peer->id);
    }
    for (size_t i = 0; i < TRANSPORT_PEER_KEYS && peer->keys[i] != NULL; i++) {
        enum adtopk_status status = allow_add(allow, peer->keys[i], peer->id, err);

        if (status == ADTOPK_OK && strcmp(peer->keys[i], pair->public_key) == 0) {
            status =
                error_set(err, ADTOPK_ERR_ARGUMENT, "node %u has this node's own key", peer->id);
        }
        if (status != ADTOPK_OK) {
            return status;
        }
    }
    return ADTOPK_OK;
}

static void transport_zmq_set_keys(struct sender *sender, const struct transport_peer *peer)
{
    sender->key_count = 0;
    for (size_t i = 0; i < TRANSPORT_PEER_KEYS && peer->keys[i] != NULL; i++) {
        memcpy(sender->keys[sender->key_count++], peer->keys[i], KEYFILE_KEY_SIZE);
    }
}

static enum adtopk_status transport_zmq_check_peer(
    const struct transport_zmq *transport, const struct transport_peer *peer, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    if (peer->endpoint[0] != '\0') {
        status = transport_zmq_check_endpoint(peer->endpoint, err);
    }
    if (status == ADTOPK_OK && transport_zmq_find(transport, peer->id) != NULL) {
        status = error_set(err, ADTOPK_ERR_ARGUMENT, "node %u is a peer already", peer->id);
    }
    return status;
}

/* Puts a peer that has passed its checks into the table, with its sockets. */
static enum adtopk_status transport_zmq_insert(
    struct transport_zmq *transport, const struct transport_peer *peer, struct error *err)
{
    size_t at = transport_zmq_peer_index(transport, peer->id);
    struct sender *peers = realloc(transport->peers, (transport->count + 1) * sizeof(*peers));
    struct sender sender = {.id = peer->id};

    if (peers == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for node %u", peer->id);
    }
    transport->peers = peers;
    (void)snprintf(sender.endpoint, sizeof(sender.endpoint), "%s", peer->endpoint);
    if (transport->home.pair != NULL) {
        transport_zmq_set_keys(&sender, peer);
    }
    if (!sender_open(&sender, &transport->home)) {
        return transport_zmq_failed(err, "cannot connect to", peer->endpoint);
    }
    memmove(&peers[at + 1], &peers[at], (transport->count - at) * sizeof(*peers));
    peers[at] = sender;
    transport->count++;
    return ADTOPK_OK;
}

enum adtopk_status transport_zmq_add_peer(
    void *handle, const struct transport_peer *peer, struct error *err)
{
    struct transport_zmq *transport = handle;
    enum adtopk_status status = transport_zmq_check_peer(transport, peer, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    if (transport->home.pair != NULL) {
        status = transport_zmq_allow(&transport->allow, transport->home.pair, peer, err);
    }
    if (status == ADTOPK_OK) {
        status = transport_zmq_insert(transport, peer, err);
    }
    if (status != ADTOPK_OK) {
        allow_remove(&transport->allow, peer->id);
    }
    return status;
}

void transport_zmq_drop_peer(void *handle, uint16_t id)
{
    struct transport_zmq *transport = handle;
    const size_t at = transport_zmq_peer_index(transport, id);
    struct sender *peer = &transport->peers[at];

    sender_close(peer);
    transport->count--;
    memmove(peer, peer + 1, (transport->count - at) * sizeof(*peer));
    allow_remove(&transport->allow, id);
}

enum adtopk_status transport_zmq_move_peer(
    void *handle, uint16_t id, const char *endpoint, struct error *err)
{
    struct transport_zmq *transport = handle;
    struct sender *sender = transport_zmq_find(transport, id);

    if (sender == NULL) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "node %u is no peer", id);
    }
    if (transport_zmq_check_endpoint(endpoint, err) != ADTOPK_OK) {
        return err->code;
    }
    sender_close(sender);
    (void)snprintf(sender->endpoint, sizeof(sender->endpoint), "%s", endpoint);
    (void)sender_open(sender, &transport->home);
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ other keys */

/* The list of all peers' keys; empty on an error. */
static enum adtopk_status transport_zmq_allow_all(struct transport_zmq *transport,
    struct allow *allow, const struct keyfile_pair *pair, const struct transport_peer *peers,
    size_t count, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (size_t i = 0; i < count && status == ADTOPK_OK; i++) {
        status = transport_zmq_find(transport, peers[i].id) != NULL
                     ? transport_zmq_allow(allow, pair, &peers[i], err)
                     : error_set(err, ADTOPK_ERR_ARGUMENT, "node %u is no peer", peers[i].id);
    }
    if (status != ADTOPK_OK) {
        allow_clear(allow);
    }
    return status;
}

static bool transport_zmq_lacks(const struct allow *allow, const struct allow *before)
{
    for (size_t i = 0; i < before->count; i++) {
        if (allow_find(allow, before->entries[i].key) != before->entries[i].node) {
            return true;
        }
    }
    return false;
}

/* Gives one peer its new keys; false with errno if it could not be connected to. */
static bool transport_zmq_rekey(struct transport_zmq *transport, struct sender *sender,
    const struct transport_peer *peer, bool all)
{
    struct sender before = *sender;

    transport_zmq_set_keys(sender, peer);
    if (!all && sender->push[LINK_CONTROL] != NULL && sender->key_count == before.key_count &&
        memcmp(sender->keys, before.keys, before.key_count * KEYFILE_KEY_SIZE) == 0) {
        return true;
    }
    sender_close(sender);
    return sender_open(sender, &transport->home);
}

static enum adtopk_status transport_zmq_rekey_all(struct transport_zmq *transport,
    const struct transport_peer *peers, size_t count, bool all, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (size_t i = 0; i < transport->count; i++) {
        struct sender *sender = &transport->peers[i];
        struct transport_peer peer = {.id = sender->id};

        for (size_t k = 0; k < count; k++) {
            peer = peers[k].id == sender->id ? peers[k] : peer;
        }
        if (!transport_zmq_rekey(transport, sender, &peer, all)) {
            status = transport_zmq_failed(err, "cannot connect to", sender->endpoint);
        }
    }
    return status;
}

enum adtopk_status transport_zmq_reload(void *handle, const struct keyfile_pair *pair,
    const struct transport_peer *peers, size_t count, struct error *err)
{
    struct transport_zmq *transport = handle;
    struct allow allow = {.count = 0}, before = transport->allow;
    enum adtopk_status status, listening = ADTOPK_OK;
    bool other, cut;

    if (transport->home.pair == NULL || pair == NULL) {
        return pair == transport->home.pair
                   ? ADTOPK_OK
                   : error_set(err, ADTOPK_ERR_ARGUMENT,
                         "keys cannot be introduced or given up while the daemon runs");
    }
    status = transport_zmq_allow_all(transport, &allow, pair, peers, count, err);
    if (status != ADTOPK_OK) {
        return status;
    }
    other = strcmp(pair->secret_key, transport->pair.secret_key) != 0;
    cut = other || transport->receiver.pull == NULL || transport_zmq_lacks(&allow, &before);
    transport->allow = allow;
    transport->pair = *pair;
    allow_clear(&before);
    token_clear(&transport->tokens);
    if (cut) {
        transport_zmq_close_receivers(transport);
        listening = transport_zmq_listen(transport, transport->receiver.endpoint,
            transport->home.clear_bulk ? transport->bulk.endpoint : NULL, true, err);
    }
    status = transport_zmq_rekey_all(transport, peers, count, other, err);
    return listening != ADTOPK_OK ? listening : status;
}
