/*
 * Joining by a seed: the conversation on a network that loses packets. test_known.c has the rules.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/seed/known.h"
#include "daemon/seed/seed.h"
#include "peer.pb-c.h"
#include "proto/codec.h"

#define NODES 4
#define TICK_US 500000u
#define MAIL_MAX 64

static const char *const keys[NODES] = {"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7",
    "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6",
    "0000000000000000000000000000000000000000"};
static const char *const other_key = "1111111111111111111111111111111111111111";

/* ------------------------------------------------------------------ a small world */

struct world;

struct node {
    struct world *world;
    uint16_t number;
    bool alive;
    uint64_t incarnation;
    struct config config;
    struct config_peer peers[NODES];
    struct seeds *seeds;
    unsigned rekeyed, moved;
    bool keeps_keys; /* changing them fails */
    char said[8192]; /* its log */
};

struct mail {
    uint16_t from, to;
    uint8_t *bytes;
    size_t size;
};

struct world {
    struct node node[NODES];
    struct mail mail[MAIL_MAX];
    size_t mails;
    unsigned lose; /* so many packets are still lost */
    bool refuses;  /* node 0 can send nothing */
    unsigned sent; /* packets */
    uint64_t now_us;
};

static void set_peer(struct config_peer *peer, uint16_t node, bool seed, const char *endpoint)
{
    *peer = (struct config_peer){.node = node, .seed = seed};
    (void)snprintf(peer->endpoint, sizeof(peer->endpoint), "%s", endpoint);
    (void)snprintf(peer->keys[0], sizeof(peer->keys[0]), "%s", keys[node]);
}

/* Whether `one` sends its packets to where `other` listens. */
static bool leads(const struct node *one, const struct node *other)
{
    const struct config_peer *peer = seeds_peer(one->seeds, other->number);

    return peer != NULL && seeds_has(one->seeds, other->number) &&
           strcmp(peer->endpoint, config_advertised(&other->config)) == 0;
}

static enum adtopk_status on_add(void *context, const struct config_peer *peer, struct error *err)
{
    (void)context;
    (void)peer;
    (void)err;
    return ADTOPK_OK;
}

static enum adtopk_status on_move(
    void *context, uint16_t node, const char *endpoint, struct error *err)
{
    struct node *self = context;

    (void)node;
    (void)endpoint;
    (void)err;
    self->moved++;
    return ADTOPK_OK;
}

static enum adtopk_status on_rekey(void *context, struct error *err)
{
    struct node *node = context;

    if (node->keeps_keys) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory");
    }
    node->rekeyed++;
    return ADTOPK_OK;
}

static bool is_up(const struct node *node, uint16_t number)
{
    const struct node *other = number < NODES ? &node->world->node[number] : NULL;

    return other != NULL && node->alive && other->alive && leads(node, other) && leads(other, node);
}

static uint64_t on_answers(void *context, uint16_t number)
{
    const struct node *node = context;

    return is_up(node, number) ? node->world->node[number].incarnation : 0;
}

static bool on_send(void *context, uint16_t to, const uint8_t header[PACKET_HEADER_SIZE],
    const uint8_t *body, size_t size)
{
    struct node *node = context;
    struct world *world = node->world;
    struct mail *mail = &world->mail[world->mails];

    if (world->refuses && node->number == 0) {
        return false;
    }
    world->sent++;
    if (world->lose > 0) {
        world->lose--;
        return true;
    }
    assert_true(world->mails < MAIL_MAX);
    world->mails++;
    *mail = (struct mail){.from = node->number, .to = to, .size = PACKET_HEADER_SIZE + size};
    mail->bytes = malloc(mail->size);
    assert_non_null(mail->bytes);
    memcpy(mail->bytes, header, PACKET_HEADER_SIZE);
    memcpy(mail->bytes + PACKET_HEADER_SIZE, body, size);
    return true;
}

static void on_log(void *context, bool warning, const char *line)
{
    struct node *node = context;
    const size_t used = strlen(node->said);

    (void)snprintf(
        node->said + used, sizeof(node->said) - used, "%s%s\n", warning ? "! " : "", line);
}

static const struct seed_ops ops = {.add = on_add,
    .move = on_move,
    .rekey = on_rekey,
    .answers = on_answers,
    .send = on_send,
    .log = on_log};

static void begin(struct node *node)
{
    node->incarnation += 1000;
    node->seeds = seeds_create(&node->config, keys[node->number], node->incarnation, &ops, node);
    assert_non_null(node->seeds);
    node->alive = true;
}

static void end(struct node *node)
{
    seeds_destroy(node->seeds);
    node->alive = false;
    node->seeds = NULL;
}

/* Node 0 is the seed of the others, and knows their keys. */
static void make_world(struct world *world)
{
    *world = (struct world){.now_us = 1};
    for (uint16_t n = 0; n < NODES; n++) {
        struct node *node = &world->node[n];

        *node = (struct node){.world = world, .number = n, .incarnation = n};
        node->config = (struct config){.node = n, .peers = node->peers};
        node->config.link.peer_timeout_ms = 2000;
        (void)snprintf(node->config.listen, sizeof(node->config.listen), "tcp://10.0.0.%u:7400", n);
        for (uint16_t other = 1; n == 0 && other < NODES; other++) {
            set_peer(&node->peers[node->config.peer_count++], other, false, "");
        }
        if (n != 0) {
            set_peer(&node->peers[node->config.peer_count++], 0, true, "tcp://10.0.0.0:7400");
        }
        begin(node);
    }
}

static void free_world(struct world *world)
{
    for (uint16_t n = 0; n < NODES; n++) {
        seeds_destroy(world->node[n].seeds);
    }
    for (size_t i = 0; i < world->mails; i++) {
        free(world->mail[i].bytes);
    }
}

static void deliver(struct world *world, const struct mail *mail)
{
    struct node *to = &world->node[mail->to];

    if (to->alive && world->node[mail->from].alive && seeds_peer(to->seeds, mail->from) != NULL) {
        assert_true(seeds_receive(to->seeds, mail->from, mail->bytes, mail->size, NULL));
        (void)seeds_settle(to->seeds);
    }
    free(mail->bytes);
}

static void pass(struct world *world, unsigned ticks)
{
    for (; ticks > 0; ticks--) {
        world->now_us += TICK_US;
        for (uint16_t n = 0; n < NODES; n++) {
            if (world->node[n].alive) {
                seeds_tick(world->node[n].seeds, world->now_us);
            }
        }
        for (size_t i = 0; i < world->mails; i++) {
            deliver(world, &world->mail[i]);
        }
        world->mails = 0;
    }
}

static bool all_met(struct world *world)
{
    for (uint16_t one = 0; one < NODES; one++) {
        for (uint16_t other = 0; other < NODES; other++) {
            if (one != other && !is_up(&world->node[one], other)) {
                return false;
            }
        }
    }
    return true;
}

static void assert_said(const struct node *node, const char *words)
{
    if (strstr(node->said, words) == NULL) {
        fail_msg("node %u did not say \"%s\":\n%s", node->number, words, node->said);
    }
}

/* ------------------------------------------------------------------ the conversation */

static void test_nodes_meet(void **state)
{
    struct world world;
    struct seed_view view;
    size_t at = 0;

    (void)state;
    make_world(&world);
    pass(&world, 4);
    assert_true(all_met(&world));
    assert_said(&world.node[0], "node 3 says that it is at tcp://10.0.0.3:7400");
    assert_said(&world.node[3], "node 1 at tcp://10.0.0.1:7400 was introduced by node 0");
    assert_true(seeds_describe(world.node[3].seeds, 1, &view));
    assert_string_equal(view.origin, "learned");
    assert_int_equal(view.seed, 0);
    assert_true(seeds_describe(world.node[0].seeds, 1, &view));
    assert_string_equal(view.origin, "joined");
    assert_true(seeds_describe(world.node[1].seeds, 0, &view));
    assert_string_equal(view.origin, "seed");
    assert_non_null(seeds_learned(world.node[3].seeds, &at));
    assert_string_equal(seeds_learned(world.node[3].seeds, &at)->keys[0], keys[2]);
    assert_null(seeds_learned(world.node[3].seeds, &at));
    for (uint16_t n = 0; n < NODES; n++) {
        assert_null(strstr(world.node[n].said, "! "));
    }
    pass(&world, 2);
    world.lose = MAIL_MAX;
    pass(&world, 1);
    assert_int_equal(world.lose, MAIL_MAX); /* then there is nothing more to say */
    free_world(&world);
}

/* Whichever packets are lost, the next ones do. */
static void test_packets_are_lost(void **state)
{
    (void)state;
    for (unsigned lost = 1; lost < 20; lost++) {
        struct world world;

        make_world(&world);
        pass(&world, lost % 4);
        world.lose = lost;
        pass(&world, 60);
        assert_true(all_met(&world));
        free_world(&world);
    }
}

/* Nodes no longer name node 0 as a seed, and their daemons live on. Its list changes. It is sent to
 * them at once, and then less and less often. */
static void test_plain_peers(void **state)
{
    struct world world;

    (void)state;
    make_world(&world);
    pass(&world, 6);
    assert_true(all_met(&world));
    for (uint16_t n = 1; n < NODES; n++) {
        world.node[n].peers[0].seed = false;
        seeds_configure(world.node[n].seeds, &world.node[n].config, keys[n]);
    }
    world.sent = 0;
    pass(&world, 10);
    assert_int_equal(world.sent, 0);
    seeds_configure(world.node[0].seeds, &world.node[0].config, keys[0]);
    pass(&world, 1);
    assert_int_equal(world.sent, NODES - 1);
    pass(&world, 600);
    assert_in_range(world.sent, 8 * (NODES - 1), 15 * (NODES - 1)); /* in five minutes */
    free_world(&world);
}

static void test_silent_seed(void **state)
{
    struct world world;

    (void)state;
    make_world(&world);
    end(&world.node[0]);
    pass(&world, 4);
    assert_string_equal(world.node[1].said, "");
    pass(&world, 8);
    assert_string_equal(world.node[1].said,
        "! node 0, a seed at tcp://10.0.0.0:7400, does not answer: this node asks it again until "
        "it does\n");
    begin(&world.node[0]);
    pass(&world, 4);
    assert_true(all_met(&world));

    end(&world.node[0]); /* what was learned stays, and the next daemon learns it again */
    pass(&world, 8);
    assert_true(is_up(&world.node[1], 3));
    begin(&world.node[0]);
    pass(&world, 4);
    assert_true(all_met(&world));
    free_world(&world);
}

/* The next daemon of a seed answers before its nodes notice that the one before is gone. */
static void test_seed_restarts_quickly(void **state)
{
    struct world world;
    struct node *seed = &world.node[0];

    (void)state;
    make_world(&world);
    end(&world.node[3]);
    end(seed);
    for (uint16_t n = 1; n < NODES; n++) {
        set_peer(&seed->peers[n - 1], n, false, config_advertised(&world.node[n].config));
    }
    begin(seed);
    pass(&world, 4);
    assert_true(is_up(&world.node[1], 2));
    assert_null(seeds_peer(world.node[1].seeds, 3)); /* it has not answered the seed yet */
    end(seed);
    begin(seed);
    pass(&world, 2);
    begin(&world.node[3]);
    pass(&world, 4);
    assert_true(all_met(&world));
    free_world(&world);
}

/* Seeds of each other: what one learned it does not tell, so a node that is shut out stays out. */
static void test_two_seeds(void **state)
{
    struct world world;
    struct node *one = &world.node[0], *other = &world.node[1];

    (void)state;
    make_world(&world);
    end(one);
    set_peer(&one->peers[0], 1, true, config_advertised(&other->config));
    begin(one);
    pass(&world, 6);
    assert_true(is_up(other, 2));
    assert_true(is_up(&world.node[3], 1));

    one->config.peer_count = 1;
    end(one);
    begin(one);
    pass(&world, 6);
    assert_non_null(seeds_peer(other->seeds, 2));
    assert_null(seeds_peer(one->seeds, 2));
    free_world(&world);
}

static void restart_at(struct node *node, const char *listen)
{
    if (node->alive) {
        end(node);
    }
    (void)snprintf(node->config.listen, sizeof(node->config.listen), "%s", listen);
    begin(node);
}

static void test_node_moves(void **state)
{
    struct world world;

    (void)state;
    make_world(&world);
    pass(&world, 4);
    end(&world.node[2]);
    pass(&world, 1);
    restart_at(&world.node[2], "tcp://10.0.0.22:7400");
    pass(&world, 5);
    assert_true(all_met(&world));
    assert_said(
        &world.node[0], "node 2 is said to be at another address now: tcp://10.0.0.22:7400");
    assert_said(
        &world.node[3], "node 2 is said to be at another address now: tcp://10.0.0.22:7400");
    free_world(&world);
}

/* Sends what a node with that number and key would say. */
static void say(struct world *world, uint16_t from, uint16_t to, Adtopk__PeerSeedMessage *message)
{
    struct packet packet = {.type = PACKET_SEED, .source = from, .destination = to};
    uint8_t bytes[PACKET_HEADER_SIZE + 8192];
    size_t size = 0;
    uint8_t *body = codec_pack(&message->base, &size);

    assert_non_null(body);
    assert_true(size <= 8192);
    packet.source_incarnation = world->node[from].incarnation;
    packet.message_size = packet.body_size = (uint32_t)size;
    packet.body = body;
    packet_encode(&packet, bytes);
    memcpy(bytes + PACKET_HEADER_SIZE, body, size);
    assert_true(seeds_receive(world->node[to].seeds, from, bytes, PACKET_HEADER_SIZE + size, NULL));
    free(body);
    (void)seeds_settle(world->node[to].seeds);
}

static void say_ask(struct world *world, uint16_t from, uint16_t to, const char *endpoint)
{
    Adtopk__PeerSeedMessage message = ADTOPK__PEER_SEED_MESSAGE__INIT;
    Adtopk__PeerSeedAsk ask = ADTOPK__PEER_SEED_ASK__INIT;

    ask.endpoint = (char *)(uintptr_t)endpoint;
    message.version = SEED_VERSION;
    message.kind_case = ADTOPK__PEER_SEED_MESSAGE__KIND_ASK;
    message.ask = &ask;
    say(world, from, to, &message);
}

/* A list with one node. */
static void say_list(struct world *world, uint16_t from, uint16_t to, uint64_t number,
    Adtopk__PeerSeedNode *node, size_t count)
{
    Adtopk__PeerSeedMessage message = ADTOPK__PEER_SEED_MESSAGE__INIT;
    Adtopk__PeerSeedList list = ADTOPK__PEER_SEED_LIST__INIT;
    Adtopk__PeerSeedNode **nodes = calloc(count, sizeof(Adtopk__PeerSeedNode *));

    assert_non_null(nodes);
    for (size_t i = 0; i < count; i++) {
        nodes[i] = node;
    }
    list.number = number;
    list.nodes = nodes;
    list.n_nodes = count;
    message.version = SEED_VERSION;
    message.kind_case = ADTOPK__PEER_SEED_MESSAGE__KIND_LIST;
    message.list = &list;
    say(world, from, to, &message);
    free(nodes);
}

/* A second daemon with the number and key of node 2: the first one stays as long as it lives. */
static void test_one_number_twice(void **state)
{
    struct world world;

    (void)state;
    make_world(&world);
    pass(&world, 4);
    for (unsigned i = 0; i < 3; i++) {
        say_ask(&world, 2, 0, "tcp://10.0.0.66:7400");
        pass(&world, 1);
    }
    assert_true(all_met(&world));
    assert_said(&world.node[0], "node 2 is up at tcp://10.0.0.2:7400, and is said to be at "
                                "tcp://10.0.0.66:7400 too: two daemons may have this number");
    assert_null(strstr(strstr(world.node[0].said, "may have") + 1, "may have")); /* said once */
    end(&world.node[2]);
    world.node[0].moved = 0;
    say_ask(&world, 2, 0, "tcp://10.0.0.67:7400"); /* as often as it likes */
    say_ask(&world, 2, 0, "tcp://10.0.0.66:7400");
    assert_int_equal(world.node[0].moved, 0);
    pass(&world, 1);
    assert_int_equal(world.node[0].moved, 1);
    assert_string_equal(seeds_peer(world.node[0].seeds, 2)->endpoint, "tcp://10.0.0.66:7400");
    free_world(&world);
}

static void test_only_seeds_are_believed(void **state)
{
    struct world world;
    Adtopk__PeerSeedNode node = ADTOPK__PEER_SEED_NODE__INIT;
    char *key = (char *)(uintptr_t)other_key;

    (void)state;
    make_world(&world);
    pass(&world, 4);
    node.node = 9;
    node.endpoint = (char *)(uintptr_t) "tcp://10.0.0.9:7400";
    node.keys = &key;
    node.n_keys = 1;
    say_list(&world, 2, 1, 1, &node, 1); /* from a peer */
    assert_null(seeds_peer(world.node[1].seeds, 9));
    assert_said(
        &world.node[1], "! node 2 introduced nodes, and the configuration does not name it");
    world.node[1].said[0] = '\0';
    say_list(&world, 2, 1, 2, &node, 1);
    assert_string_equal(world.node[1].said, ""); /* said once */
    say_list(&world, 1, 0, 1, &node, 1);         /* to the seed, from a node that asks it */
    assert_null(seeds_peer(world.node[0].seeds, 9));
    say_list(&world, 0, 1, 1, &node, 1);
    assert_non_null(seeds_peer(world.node[1].seeds, 9));
    free_world(&world);
}

/* What a seed says that is no seed, or has a fault. */
static void test_rubbish(void **state)
{
    static const struct {
        uint32_t node;
        const char *endpoint, *key, *words;
    } cases[] = {
        {65535, "tcp://10.0.0.9:7400", "1111111111111111111111111111111111111111", "malformed way"},
        {9, "tcp://10.0.0.9:7400", "short", "malformed way"},
        {9, "ipc://here", "1111111111111111111111111111111111111111", "not of the form tcp:"},
        {9, "tcp://*:7400", "1111111111111111111111111111111111111111", "no address of that node"},
        {9, "tcp://10.0.0.1:7400", "1111111111111111111111111111111111111111", "no address of"},
        {9, "tcp://10.0.0.9:0", "1111111111111111111111111111111111111111", "not a port"},
        {1, "tcp://10.0.0.9:7400", "1111111111111111111111111111111111111111", "is this one"},
        {9, "tcp://10.0.0.9:7400", "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", "which is this one"},
        {9, "tcp://10.0.0.9:7400", "0000000000000000000000000000000000000000",
            "node 9 has the key of node 3"},
        {3, "tcp://10.0.0.3:7400", "1111111111111111111111111111111111111111",
            "is known here with the key 0000"},
        {0, "tcp://10.0.0.9:7400", "1111111111111111111111111111111111111111",
            "is known here with the key rq:r"},
        {9, "tcp://10.0.0.9:7400", NULL, "node 9 has no key"},
    };
    struct world world;

    (void)state;
    make_world(&world);
    pass(&world, 4);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        Adtopk__PeerSeedNode node = ADTOPK__PEER_SEED_NODE__INIT;
        char *key = (char *)(uintptr_t)cases[i].key;

        node.node = cases[i].node;
        node.endpoint = (char *)(uintptr_t)cases[i].endpoint;
        node.keys = &key;
        node.n_keys = key != NULL ? 1 : 0;
        world.node[1].said[0] = '\0';
        say_list(&world, 0, 1, 1 + i, &node, 1);
        assert_said(&world.node[1], cases[i].words);
        assert_null(seeds_peer(world.node[1].seeds, 9));
    }
    assert_true(all_met(&world));
    free_world(&world);
}

static void test_other_versions(void **state)
{
    struct world world;
    Adtopk__PeerSeedMessage message = ADTOPK__PEER_SEED_MESSAGE__INIT;
    struct packet packet = {.type = PACKET_SEED,
        .source = 1,
        .source_incarnation = 7,
        .message_size = 3,
        .body = (const uint8_t *)"\xff\xff\xff",
        .body_size = 3};
    uint8_t bytes[PACKET_HEADER_SIZE + 3];

    (void)state;
    make_world(&world);
    message.version = 2;
    say(&world, 1, 0, &message);
    assert_said(&world.node[0],
        "node 1 speaks version 2 of messages about nodes, and this daemon version 1");
    message.version = SEED_VERSION;
    say(&world, 1, 0, &message); /* of no kind that is known */
    packet_encode(&packet, bytes);
    memcpy(bytes + PACKET_HEADER_SIZE, packet.body, 3);
    assert_true(seeds_receive(world.node[0].seeds, UINT16_MAX, bytes, sizeof(bytes), NULL));
    assert_said(&world.node[0], "node 1 sent a message about nodes: ");

    /* Packets for others, of others, damaged, or for the links. */
    assert_false(seeds_receive(world.node[2].seeds, UINT16_MAX, bytes, sizeof(bytes), NULL));
    assert_false(seeds_receive(world.node[0].seeds, 9, bytes, sizeof(bytes), NULL));
    assert_false(seeds_receive(world.node[0].seeds, 1, bytes, PACKET_HEADER_SIZE - 1, NULL));
    bytes[PACKET_HEADER_SIZE] ^= 1;
    assert_false(seeds_receive(world.node[0].seeds, 1, bytes, sizeof(bytes), NULL));
    packet = (struct packet){.type = PACKET_HELLO, .source = 1, .source_incarnation = 7};
    packet_encode(&packet, bytes);
    assert_false(seeds_receive(world.node[0].seeds, 1, bytes, PACKET_HEADER_SIZE, NULL));
    free_world(&world);
}

/* A node changes its key as without seeds: first both, then the new one. */
static void test_new_key(void **state)
{
    struct world world;
    struct node *seed = &world.node[0];
    char(*key)[KEYFILE_KEY_SIZE] = seed->peers[2].keys; /* node 3's */

    (void)state;
    make_world(&world);
    pass(&world, 4);
    memcpy(key[1], other_key, KEYFILE_KEY_SIZE);
    seeds_configure(seed->seeds, &seed->config, keys[0]);
    world.node[1].keeps_keys = true; /* for now */
    pass(&world, 4);
    assert_said(&world.node[1], "! cannot take the keys that a seed names: no memory");
    assert_int_equal(world.node[1].rekeyed, 0);
    world.node[1].keeps_keys = false;
    pass(&world, 1);
    assert_string_equal(seeds_peer(world.node[1].seeds, 3)->keys[1], other_key);
    assert_int_equal(world.node[1].rekeyed, 1);
    memcpy(key[0], other_key, KEYFILE_KEY_SIZE);
    key[1][0] = '\0';
    memset(key[1], 0, KEYFILE_KEY_SIZE);
    seeds_configure(seed->seeds, &seed->config, keys[0]);
    pass(&world, 2);
    assert_string_equal(seeds_peer(world.node[1].seeds, 3)->keys[0], other_key);
    assert_string_equal(seeds_peer(world.node[1].seeds, 3)->keys[1], "");
    assert_int_equal(world.node[1].rekeyed, 2);

    memcpy(key[0], keys[3], KEYFILE_KEY_SIZE); /* all at once */
    seeds_configure(seed->seeds, &seed->config, keys[0]);
    pass(&world, 2);
    assert_string_equal(seeds_peer(world.node[1].seeds, 3)->keys[0], other_key);
    assert_said(&world.node[1], "node 3 has the key 0000000000000000000000000000000000000000, and "
                                "is known here with the key 1111");
    free_world(&world);
}

/* A list that cannot be sent is tried again at every tick. */
static void test_send_fails(void **state)
{
    struct world world;

    (void)state;
    make_world(&world);
    pass(&world, 6);
    seeds_configure(world.node[0].seeds, &world.node[0].config, keys[0]);
    world.refuses = true;
    pass(&world, 64);
    world.refuses = false;
    world.sent = 0;
    pass(&world, 2);
    assert_true(world.sent >= NODES - 1);
    free_world(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nodes_meet),
        cmocka_unit_test(test_packets_are_lost),
        cmocka_unit_test(test_plain_peers),
        cmocka_unit_test(test_silent_seed),
        cmocka_unit_test(test_two_seeds),
        cmocka_unit_test(test_seed_restarts_quickly),
        cmocka_unit_test(test_node_moves),
        cmocka_unit_test(test_one_number_twice),
        cmocka_unit_test(test_only_seeds_are_believed),
        cmocka_unit_test(test_rubbish),
        cmocka_unit_test(test_other_versions),
        cmocka_unit_test(test_new_key),
        cmocka_unit_test(test_send_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
