#include "daemon/seed/seed.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/seed/known.h"
#include "peer.pb-c.h"
#include "proto/codec.h"

#define SEED_FIRST_PAUSE_US                                                                        \
    400000u /* before a silent node is sent a list again: to the next tick */
#define SEED_LONGEST_PAUSE_US 60000000u
#define SEED_LISTS 32u /* sent at a tick, so that many nodes do not keep the loop busy */

struct seeds {
    struct seed_ops ops;
    void *context;
    uint64_t incarnation;
    uint64_t silence_us; /* after which the log says that a seed does not answer */
    uint64_t list;       /* number of the list that this node sends, which grows as it changes */
    bool due;            /* lists have come since the table was settled */
    size_t next;         /* the node at which telling goes on at the next tick */
    bool keys_refused;   /* changed keys could not be taken, and the log says so */
    struct known known;
};

static const char *const seed_origins[] = {[KNOWN_CONFIGURED] = "configured",
    [KNOWN_SEED] = "seed",
    [KNOWN_JOINED] = "joined",
    [KNOWN_LEARNED] = "learned"};

/* What is wrong with a node. Each is logged once, until it is over; the last two only once. */
enum seed_complaint {
    SEED_SILENT = 1, /* a seed: it does not answer */
    /* What it says of itself is not taken, until it moves: a second daemon with its number asks on
     * and on, between the answers of the first one. */
    SEED_DOUBTED = 2,
    SEED_NOT_ADDED = 4,     /* it was learned, and connecting to it failed */
    SEED_NO_SEED = 8,       /* it introduces nodes, and is no seed of this node */
    SEED_UNREADABLE = 16,   /* a message of it cannot be read */
    SEED_OTHER_VERSION = 32 /* a message of it is of another version */
};

static void seed_log(const struct seeds *seeds, bool warning, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void seed_log(const struct seeds *seeds, bool warning, const char *format, ...)
{
    char line[2 * ERROR_TEXT_SIZE];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    seeds->ops.log(seeds->context, warning, line);
}

/* Whether the complaint is new: it is to be logged then. */
static bool seed_complains(struct known_node *node, enum seed_complaint complaint)
{
    const bool new = (node->logged & complaint) == 0;

    node->logged |= complaint;
    return new;
}

static void seed_withdraws(struct known_node *node, enum seed_complaint complaint)
{
    node->logged &= ~(unsigned)complaint;
}

/* ------------------------------------------------------------------ the nodes */

struct seeds *seeds_create(const struct config *config, const char *key, uint64_t incarnation,
    const struct seed_ops *ops, void *context)
{
    struct seeds *seeds = calloc(1, sizeof(*seeds));

    if (seeds == NULL) {
        return NULL;
    }
    seeds->ops = *ops;
    seeds->context = context;
    seeds->incarnation = incarnation;
    seeds->list = incarnation; /* unlike the numbers of an earlier daemon */
    seeds_configure(seeds, config, key);
    return seeds;
}

void seeds_destroy(struct seeds *seeds)
{
    free(seeds);
}

enum adtopk_status seeds_check(struct seeds *seeds, const struct config *config, struct error *err)
{
    return known_check(&seeds->known, config, err);
}

bool seeds_has(struct seeds *seeds, uint16_t node)
{
    const struct known_node *found = known_find(&seeds->known, node);

    return found != NULL && found->added;
}

void seeds_take(struct seeds *seeds, const struct config_peer *peer)
{
    known_configure_node(&seeds->known, peer)->added = true;
}

void seeds_configure(struct seeds *seeds, const struct config *config, const char *key)
{
    struct known *known = &seeds->known;

    known_configure(known, config, key);
    seeds->silence_us = config->link.peer_timeout_ms * 1000;
    for (size_t i = 0; i < known->count; i++) {
        struct known_node *node = &known->node[i];

        if (node->origin != KNOWN_LEARNED) {
            node->added = true;
            node->rekeyed = false;
        }
    }
    seeds->list++;
}

const struct config_peer *seeds_peer(struct seeds *seeds, uint16_t node)
{
    const struct known_node *found = known_find(&seeds->known, node);

    return found != NULL ? &found->peer : NULL;
}

const struct config_peer *seeds_learned(const struct seeds *seeds, size_t *at)
{
    while (*at < seeds->known.count) {
        const struct known_node *node = &seeds->known.node[(*at)++];

        if (node->origin == KNOWN_LEARNED && node->added) {
            return &node->peer;
        }
    }
    return NULL;
}

bool seeds_describe(struct seeds *seeds, uint16_t node, struct seed_view *view)
{
    const struct known_node *found = known_find(&seeds->known, node);

    if (found == NULL) {
        return false;
    }
    *view = (struct seed_view){.endpoint = found->peer.endpoint,
        .origin = seed_origins[found->origin],
        .seed = found->origin == KNOWN_LEARNED ? found->from : -1};
    return true;
}

/* ------------------------------------------------------------------ sending */

static bool seed_send(
    const struct seeds *seeds, uint16_t node, const Adtopk__PeerSeedMessage *message)
{
    uint8_t header[PACKET_HEADER_SIZE];
    size_t size = 0;
    uint8_t *body = codec_pack(&message->base, &size);
    bool sent = false;

    if (body != NULL) {
        const struct packet packet = {.type = PACKET_SEED,
            .lane = LINK_CONTROL,
            .source = seeds->known.self.node,
            .destination = node,
            .source_incarnation = seeds->incarnation,
            .message_size = size,
            .body = body,
            .body_size = (uint32_t)size};

        packet_encode(&packet, header);
        sent = seeds->ops.send(seeds->context, node, header, body, size);
    }
    free(body);
    return sent;
}

static void seed_ask(struct seeds *seeds, const struct known_node *seed)
{
    Adtopk__PeerSeedMessage message = ADTOPK__PEER_SEED_MESSAGE__INIT;
    Adtopk__PeerSeedAsk ask = ADTOPK__PEER_SEED_ASK__INIT;

    ask.endpoint = seeds->known.self.endpoint;
    ask.has = seed->took;
    message.version = SEED_VERSION;
    message.kind_case = ADTOPK__PEER_SEED_MESSAGE__KIND_ASK;
    message.ask = &ask;
    (void)seed_send(seeds, seed->peer.node, &message);
}

/* Room for a list: its nodes, and what they point to. */
struct seed_room {
    Adtopk__PeerSeedNode node[CORE_MAX_NODES];
    Adtopk__PeerSeedNode *nodes[CORE_MAX_NODES];
    char *keys[CORE_MAX_NODES][CONFIG_PEER_KEYS];
};

static void seed_fill_node(struct seed_room *room, size_t at, struct config_peer *peer)
{
    Adtopk__PeerSeedNode *node = room->nodes[at] = &room->node[at];

    adtopk__peer_seed_node__init(node);
    node->node = peer->node;
    node->endpoint = peer->endpoint;
    node->keys = room->keys[at];
    while (node->n_keys < CONFIG_PEER_KEYS && peer->keys[node->n_keys][0] != '\0') {
        room->keys[at][node->n_keys] = peer->keys[node->n_keys];
        node->n_keys++;
    }
}

/* What this node learned itself is for its seeds to tell. Otherwise two seeds of each other would
 * teach each other a node that the configuration of both has shut out. */
static bool seed_introduces(const struct known_node *node)
{
    return node->origin != KNOWN_LEARNED && node->peer.endpoint[0] != '\0' && !node->moved;
}

/* False: the list could not be sent, and the next tick tries it again. */
static bool seed_tell(struct seeds *seeds, uint16_t to)
{
    Adtopk__PeerSeedMessage message = ADTOPK__PEER_SEED_MESSAGE__INIT;
    Adtopk__PeerSeedList list = ADTOPK__PEER_SEED_LIST__INIT;
    struct seed_room *room = malloc(sizeof(*room));
    bool sent;

    if (room == NULL) {
        return false;
    }
    list.number = seeds->list;
    list.nodes = room->nodes;
    for (size_t i = 0; i < seeds->known.count; i++) {
        struct known_node *node = &seeds->known.node[i];

        if (node->peer.node != to && seed_introduces(node)) {
            seed_fill_node(room, list.n_nodes++, &node->peer);
        }
    }
    message.version = SEED_VERSION;
    message.kind_case = ADTOPK__PEER_SEED_MESSAGE__KIND_LIST;
    message.list = &list;
    sent = seed_send(seeds, to, &message);
    free(room);
    return sent;
}

/* ------------------------------------------------------------------ receiving */

/* Whether the node answers at its present endpoint. */
static bool seed_is_up(const struct seeds *seeds, uint16_t node)
{
    return seeds->ops.answers(seeds->context, node) != 0;
}

static void seed_hear_ask(struct seeds *seeds, struct known_node *node, uint64_t incarnation,
    const Adtopk__PeerSeedAsk *ask)
{
    const bool up = seed_is_up(seeds, node->peer.node);
    struct error err;

    node->asked = incarnation;
    node->has = ask->has;
    node->tell_us = 0;
    if (known_hear_endpoint(&seeds->known, node, ask->endpoint, up, &err) != ADTOPK_OK &&
        seed_complains(node, SEED_DOUBTED)) {
        seed_log(
            seeds, true, "what node %u says of itself is not taken: %s", node->peer.node, err.text);
    }
}

/* Reads an introduced node; false if no seed would have written it so. */
static bool seed_read_node(
    const struct seeds *seeds, const Adtopk__PeerSeedNode *node, struct config_peer *peer)
{
    *peer = (struct config_peer){.node = (uint16_t)node->node};
    if (node->node >= UINT16_MAX || node->n_keys > CONFIG_PEER_KEYS ||
        strlen(node->endpoint) >= sizeof(peer->endpoint)) {
        return false;
    }
    (void)snprintf(peer->endpoint, sizeof(peer->endpoint), "%s", node->endpoint);
    for (size_t i = 0; i < node->n_keys && seeds->known.self.key[0] != '\0'; i++) {
        if (!keyfile_is_key(node->keys[i])) {
            return false;
        }
        memcpy(peer->keys[i], node->keys[i], sizeof(peer->keys[i]));
    }
    return true;
}

static void seed_hear_node(
    struct seeds *seeds, const struct known_node *seed, const Adtopk__PeerSeedNode *node)
{
    const uint16_t from = seed->peer.node;
    struct config_peer peer;
    struct error err;

    if (!seed_read_node(seeds, node, &peer)) {
        seed_log(seeds, true, "node %u, a seed, introduced a node in a malformed way", from);
    } else if (known_hear_node(&seeds->known, from, &peer, seed_is_up(seeds, peer.node), &err) !=
               ADTOPK_OK) {
        seed_log(
            seeds, true, "what node %u, a seed, says of a node is not taken: %s", from, err.text);
    }
}

static void seed_hear_list(struct seeds *seeds, struct known_node *node, uint64_t incarnation,
    const Adtopk__PeerSeedList *list)
{
    if (node->origin != KNOWN_SEED) {
        if (seed_complains(node, SEED_NO_SEED)) {
            seed_log(seeds, true,
                "node %u introduced nodes, and the configuration does not name it as a seed: "
                "ignored",
                node->peer.node);
        }
        return;
    }
    seed_withdraws(node, SEED_NO_SEED);
    if (list->n_nodes > CORE_MAX_NODES) {
        seed_log(seeds, true, "node %u, a seed, introduced %zu nodes, and %d are possible: ignored",
            node->peer.node, list->n_nodes, CORE_MAX_NODES);
        return;
    }
    for (size_t i = 0; i < list->n_nodes && list->number != node->took; i++) {
        seed_hear_node(seeds, node, list->nodes[i]);
    }
    seeds->due |= list->number != node->took;
    node->took = list->number;
    node->told_by = incarnation;
    seed_ask(seeds, node); /* so that the seed knows that the list has come */
}

/* Whether it is one that this daemon understands. */
static bool seed_is_readable(const struct seeds *seeds, struct known_node *node,
    const Adtopk__PeerSeedMessage *message, const struct error *err)
{
    if (message != NULL && message->version == SEED_VERSION) {
        return true;
    }
    if (message == NULL && seed_complains(node, SEED_UNREADABLE)) {
        seed_log(seeds, true, "node %u sent a message about nodes: %s", node->peer.node, err->text);
    } else if (message != NULL && seed_complains(node, SEED_OTHER_VERSION)) {
        seed_log(seeds, true,
            "node %u speaks version %u of messages about nodes, and this daemon version %u",
            node->peer.node, message->version, SEED_VERSION);
    }
    return false;
}

static void seed_hear(struct seeds *seeds, struct known_node *node, const struct packet *packet)
{
    struct error err = {.code = ADTOPK_OK};
    Adtopk__PeerSeedMessage *message =
        (Adtopk__PeerSeedMessage *)codec_unpack(&adtopk__peer_seed_message__descriptor,
            packet->body, packet->body_size, CODEC_PEER_MAX, &err);

    if (!seed_is_readable(seeds, node, message, &err)) {
        codec_free((ProtobufCMessage *)message);
        return;
    }
    if (message->kind_case == ADTOPK__PEER_SEED_MESSAGE__KIND_ASK) {
        seed_hear_ask(seeds, node, packet->source_incarnation, message->ask);
    } else if (message->kind_case == ADTOPK__PEER_SEED_MESSAGE__KIND_LIST) {
        seed_hear_list(seeds, node, packet->source_incarnation, message->list);
    }
    codec_free((ProtobufCMessage *)message);
}

bool seeds_receive(
    struct seeds *seeds, uint16_t peer, const uint8_t *bytes, size_t size, struct buffer *body)
{
    struct known_node *node;
    struct packet packet;

    if (size < PACKET_HEADER_SIZE || bytes[PACKET_TYPE_AT] != PACKET_SEED ||
        !(body != NULL ? packet_decode_apart(&packet, bytes, size, body)
                       : packet_decode(&packet, bytes, size)) ||
        packet.destination != seeds->known.self.node) {
        return false;
    }
    node = known_find(&seeds->known, peer != UINT16_MAX ? peer : packet.source);
    if (node == NULL) {
        return false;
    }
    seed_hear(seeds, node, &packet);
    return true;
}

/* ------------------------------------------------------------------ settling */

/* Connects to a node that was learned. What fails is tried again at the next tick. */
static void seed_add(struct seeds *seeds, struct known_node *node)
{
    struct error err;

    if (seeds->ops.add(seeds->context, &node->peer, &err) == ADTOPK_OK) {
        node->added = true;
        node->rekeyed = false;
        seed_log(seeds, false, "node %u at %s was introduced by node %u", node->peer.node,
            node->peer.endpoint, node->from);
    } else if (seed_complains(node, SEED_NOT_ADDED)) {
        seed_log(seeds, true, "cannot add node %u, which node %u introduced: %s", node->peer.node,
            node->from, err.text);
    }
}

static void seed_move(struct seeds *seeds, struct known_node *node)
{
    struct error err;

    if (seeds->ops.move(seeds->context, node->peer.node, node->next, &err) == ADTOPK_OK) {
        seed_log(seeds, false, "node %u %s %s", node->peer.node,
            node->peer.endpoint[0] == '\0' ? "says that it is at"
                                           : "is said to be at another address now:",
            node->next);
        memcpy(node->peer.endpoint, node->next, sizeof(node->next));
        seed_withdraws(node, SEED_DOUBTED);
        node->moved = true;
    } else {
        seed_log(seeds, true, "cannot connect to node %u: %s", node->peer.node, err.text);
    }
    node->next[0] = '\0';
}

static void seed_settle_node(struct seeds *seeds, struct known_node *node, bool tick)
{
    const bool up = node->added && seed_is_up(seeds, node->peer.node);

    if (!node->added) {
        seed_add(seeds, node);
    } else if (tick && !up && node->next[0] != '\0') {
        seed_move(seeds, node);
    } else if (up && node->moved) {
        node->moved = false;
        seeds->list++;
    }
}

/* Makes the changed keys hold. What fails is tried again. */
static void seed_settle_keys(struct seeds *seeds)
{
    bool rekeyed = false;
    struct error err;

    for (size_t i = 0; i < seeds->known.count; i++) {
        rekeyed |= seeds->known.node[i].added && seeds->known.node[i].rekeyed;
    }
    if (!rekeyed) {
        return;
    }
    if (seeds->ops.rekey(seeds->context, &err) == ADTOPK_OK) {
        seeds->keys_refused = false;
        for (size_t i = 0; i < seeds->known.count; i++) {
            seeds->known.node[i].rekeyed = false;
        }
    } else if (!seeds->keys_refused) {
        seeds->keys_refused = true;
        seed_log(seeds, true, "cannot take the keys that a seed names: %s", err.text);
    }
}

/* Brings the connections in line with the table. Nodes move at ticks only, however often they say
 * that they are elsewhere. */
static void seed_settle(struct seeds *seeds, bool tick)
{
    for (size_t i = 0; i < seeds->known.count; i++) {
        seed_settle_node(seeds, &seeds->known.node[i], tick);
    }
    seeds->due = false;
    seed_settle_keys(seeds);
}

bool seeds_settle(struct seeds *seeds)
{
    const bool due = seeds->due;

    if (due) {
        seed_settle(seeds, false);
    }
    return due;
}

/* ------------------------------------------------------------------ the tick */

static void seed_watch(struct seeds *seeds, struct known_node *seed, bool up, uint64_t now_us)
{
    if (up) {
        seed->silent_since = 0;
        seed_withdraws(seed, SEED_SILENT);
    } else if (seed->silent_since == 0) {
        seed->silent_since = now_us;
    } else if (now_us - seed->silent_since >= seeds->silence_us &&
               seed_complains(seed, SEED_SILENT)) {
        seed_log(seeds, true,
            "node %u, a seed at %s, does not answer: this node asks it again until it does",
            seed->peer.node, seed->peer.endpoint);
    }
}

/* A daemon that starts again knows nothing of those that asked the one before. So a seed is asked
 * until the daemon that answers now has told its list. */
static void seed_ask_seed(struct seeds *seeds, struct known_node *seed, uint64_t now_us)
{
    const uint64_t up = seeds->ops.answers(seeds->context, seed->peer.node);

    seed_watch(seeds, seed, up != 0, now_us);
    if (up == 0 || up != seed->told_by) {
        seed_ask(seeds, seed);
    }
}

/* Whether the node is to be sent the list: the daemon that answers now has asked and lacks it. */
static bool seed_lacks_list(
    const struct seeds *seeds, const struct known_node *node, uint64_t now_us)
{
    const uint64_t up = seeds->ops.answers(seeds->context, node->peer.node);

    return up != 0 && up == node->asked && node->has != seeds->list &&
           (node->told != seeds->list || now_us >= node->tell_us);
}

static void seed_tell_node(struct seeds *seeds, struct known_node *node, uint64_t now_us)
{
    const bool again = node->told == seeds->list;

    if (!seed_tell(seeds, node->peer.node)) {
        return;
    }
    node->pause_us = again ? 2 * node->pause_us : SEED_FIRST_PAUSE_US;
    node->pause_us =
        node->pause_us < SEED_LONGEST_PAUSE_US ? node->pause_us : SEED_LONGEST_PAUSE_US;
    node->tell_us = now_us + node->pause_us;
    node->told = seeds->list;
}

/* Sends the list to some of the nodes that lack it. The others follow at the next ticks. */
static void seed_tell_some(struct seeds *seeds, uint64_t now_us)
{
    const size_t count = seeds->known.count;
    unsigned lists = 0;
    size_t i = 0;

    for (; i < count && lists < SEED_LISTS; i++) {
        struct known_node *node = &seeds->known.node[(seeds->next + i) % count];

        if (seed_lacks_list(seeds, node, now_us)) {
            seed_tell_node(seeds, node, now_us);
            lists++;
        }
    }
    seeds->next = count > 0 ? (seeds->next + i) % count : 0;
}

void seeds_tick(struct seeds *seeds, uint64_t now_us)
{
    seed_settle(seeds, true);
    for (size_t i = 0; i < seeds->known.count; i++) {
        if (seeds->known.node[i].origin == KNOWN_SEED) {
            seed_ask_seed(seeds, &seeds->known.node[i], now_us);
        }
    }
    seed_tell_some(seeds, now_us);
}
