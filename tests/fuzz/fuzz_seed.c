/*
 * Fuzz target: messages about nodes, to a node that has a seed and is one. The first byte chooses
 * the sender and whether the nodes have keys, or may do without. Whatever comes, nodes of the
 * configuration stay as they are, only the seed adds nodes, and no two nodes have one number or one
 * key.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/seed/seed.h"
#include "daemon/settings/endpoint.h"

#define SELF 0
#define SEED 1
#define JOINING 2
#define CONFIGURED 3
#define PEERS 3
#define KEYED 4 /* bits of the first byte */
#define GUARDED 8
#define LEARNED_MAX 64
#define INCARNATION 7 /* of all nodes but this one */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char own_key[] = "0000000000000000000000000000000000000000";
static const struct config_peer peers[PEERS] = {
    {.node = SEED,
        .seed = true,
        .endpoint = "tcp://10.0.0.1:7400",
        .keys = {"1111111111111111111111111111111111111111"}},
    {.node = JOINING, .keys = {"2222222222222222222222222222222222222222"}},
    {.node = CONFIGURED,
        .endpoint = "tcp://10.0.0.3:7400",
        .keys = {"3333333333333333333333333333333333333333"}}};

static enum adtopk_status on_add(void *context, const struct config_peer *peer, struct error *err)
{
    (void)context;
    if (endpoint_check(peer->endpoint, "node", err) != ADTOPK_OK || peer->node == SELF) {
        abort();
    }
    return ADTOPK_OK;
}

static enum adtopk_status on_move(
    void *context, uint16_t node, const char *endpoint, struct error *err)
{
    (void)context;
    if (endpoint_check(endpoint, "node", err) != ADTOPK_OK || node == SEED || node == CONFIGURED) {
        abort();
    }
    return ADTOPK_OK;
}

static enum adtopk_status on_rekey(void *context, struct error *err)
{
    (void)context;
    (void)err;
    return ADTOPK_OK;
}

static uint64_t on_answers(void *context, uint16_t node)
{
    (void)context;
    return node % 2 == 1 ? INCARNATION : 0;
}

static bool on_send(void *context, uint16_t node, const uint8_t header[PACKET_HEADER_SIZE],
    const uint8_t *body, size_t size)
{
    (void)context;
    (void)header;
    (void)body;
    return node != SELF && size > 0;
}

static void on_log(void *context, bool warning, const char *line)
{
    (void)context;
    (void)warning;
    (void)line;
}

static void check_learned(struct seeds *seeds, uint16_t sender)
{
    const struct config_peer *learned, *other;
    size_t at = 0;

    for (size_t i = 0; i < LEARNED_MAX && (learned = seeds_learned(seeds, &at)) != NULL; i++) {
        size_t from = 0;

        if (sender != SEED || learned->node <= CONFIGURED ||
            strcmp(learned->keys[0], own_key) == 0) {
            abort();
        }
        while ((other = seeds_learned(seeds, &from)) != learned) {
            if (other->node == learned->node ||
                (learned->keys[0][0] != '\0' && strcmp(learned->keys[0], other->keys[0]) == 0)) {
                abort();
            }
        }
    }
}

static void check_configured(struct seeds *seeds, bool keyed)
{
    for (size_t i = 0; i < PEERS; i++) {
        const struct config_peer *known = seeds_peer(seeds, peers[i].node);

        if (known == NULL ||
            (keyed && memcmp(known->keys, peers[i].keys, sizeof(known->keys)) != 0) ||
            (peers[i].endpoint[0] != '\0' && strcmp(known->endpoint, peers[i].endpoint) != 0)) {
            abort();
        }
    }
}

static void receive(struct seeds *seeds, uint16_t sender, const uint8_t *body, size_t size)
{
    struct packet packet = {.type = PACKET_SEED,
        .source = sender,
        .destination = SELF,
        .source_incarnation = INCARNATION,
        .message_size = size,
        .body = body,
        .body_size = (uint32_t)size};
    uint8_t *bytes = malloc(PACKET_HEADER_SIZE + size);

    if (bytes == NULL) {
        abort();
    }
    packet_encode(&packet, bytes);
    memcpy(bytes + PACKET_HEADER_SIZE, body, size);
    if (!seeds_receive(seeds, UINT16_MAX, bytes, PACKET_HEADER_SIZE + size, NULL)) {
        abort();
    }
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct seed_ops ops = {.add = on_add,
        .move = on_move,
        .rekey = on_rekey,
        .answers = on_answers,
        .send = on_send,
        .log = on_log};
    const bool keyed = size > 0 && (data[0] & KEYED) != 0;
    const uint16_t sender = size > 0 ? SEED + data[0] % 3u : SEED;
    struct config_peer mine[PEERS];
    struct config config = {.listen = "tcp://10.0.0.9:7400",
        .peers = mine,
        .peer_count = PEERS,
        .insecure = (size > 0 ? data[0] & GUARDED : 0) == 0,
        .link = {.peer_timeout_ms = 1000}};
    struct seeds *seeds;

    if (size < 2) {
        return 0;
    }
    memcpy(mine, peers, sizeof(mine));
    seeds = seeds_create(&config, keyed ? own_key : "", 1, &ops, NULL);
    if (seeds == NULL) {
        abort();
    }
    receive(seeds, sender, data + 1, size - 1);
    seeds_tick(seeds, 1);
    check_learned(seeds, sender);
    check_configured(seeds, keyed);
    seeds_destroy(seeds);
    return 0;
}
