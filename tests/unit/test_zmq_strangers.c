/*
 * Hostile peers of the ZeroMQ transport. Each is refused, counted and named, and the good peers'
 * messages go on undisturbed. Strangers are raw libzmq or raw TCP.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

#include "daemon/link/packet.h"
#include "daemon/transport/sender.h"
#include "daemon/transport/token.h"
#include "tests/unit/zmq_ends.h"

#define FLOOD 1000
#define ENDLESS (64U << 20) /* bytes of a message that are too many in any case */
#define RECORD_SIZE (64U << 10)

/* Nodes 0 and 1, which are good; node 2, a peer of node 1, which the test plays; a stranger. */
enum { GOOD_0, GOOD_1, PLAYED, STRANGER, KEYS };

struct scene {
    struct keyfile_pair pairs[KEYS];
    struct end ends[2];
    void *zmq;
    void *inbox; /* of node 2, under its key; accepts everybody */
    char inbox_endpoint[64];
};

static void set_int(void *socket, int name, int value)
{
    assert_int_equal(zmq_setsockopt(socket, name, &value, sizeof(value)), 0);
}

static void set_text(void *socket, int name, const char *text)
{
    assert_int_equal(zmq_setsockopt(socket, name, text, strlen(text)), 0);
}

static void *new_socket(struct scene *scene, int type)
{
    void *socket = zmq_socket(scene->zmq, type);

    assert_non_null(socket);
    set_int(socket, ZMQ_LINGER, 0);
    set_int(socket, ZMQ_SNDTIMEO, 0);
    return socket;
}

static void set_curve(void *socket, const struct keyfile_pair *pair, const char *server)
{
    set_text(socket, ZMQ_CURVE_PUBLICKEY, pair->public_key);
    set_text(socket, ZMQ_CURVE_SECRETKEY, pair->secret_key);
    set_text(socket, ZMQ_CURVE_SERVERKEY, server);
}

static void start_scene(struct scene *scene, bool clear)
{
    size_t size = sizeof(scene->inbox_endpoint);

    memset(scene, 0, sizeof(*scene));
    ends_draw_keys(scene->pairs, KEYS);
    scene->zmq = zmq_ctx_new();
    scene->inbox = new_socket(scene, ZMQ_PULL);
    set_int(scene->inbox, ZMQ_CURVE_SERVER, 1);
    set_text(scene->inbox, ZMQ_CURVE_SECRETKEY, scene->pairs[PLAYED].secret_key);
    assert_int_equal(zmq_bind(scene->inbox, ANY_PORT), 0);
    assert_int_equal(
        zmq_getsockopt(scene->inbox, ZMQ_LAST_ENDPOINT, scene->inbox_endpoint, &size), 0);
    ends_start_keyed(scene->ends, END_DAEMON, scene->pairs, clear, clear);
    end_connect(&scene->ends[1], 2, scene->inbox_endpoint, scene->pairs[PLAYED].public_key);
}

static struct transport_refused refused(const struct scene *scene)
{
    return transport_zmq.refused(scene->ends[1].transport);
}

/* The good peers exchange messages on both lanes. None is lost or wrong. */
static void go_on(struct scene *scene)
{
    struct end *ends = scene->ends;
    uint64_t control = ends[0].sent[LINK_CONTROL], bulk = ends[0].sent[LINK_BULK];

    for (uint16_t from = 0; from < 2; from++) {
        end_send(&ends[from], (uint16_t)(1 - from), LINK_CONTROL, 100);
        end_send(&ends[from], (uint16_t)(1 - from), LINK_BULK, 600000);
    }
    ends_run_until(ends, control + 1, bulk + 1);
}

static void stop_scene(struct scene *scene)
{
    go_on(scene);
    (void)zmq_close(scene->inbox);
    (void)zmq_ctx_term(scene->zmq);
    ends_stop_pair(scene->ends);
}

/* Takes turns until `count` (of the refused) has grown to `least`, or fails. */
static void wait_refused(struct scene *scene, size_t count_at, uint64_t least, const char *words)
{
    uint64_t limit = ends_now_us() + PATIENCE_US;
    uint64_t count = 0;

    while (count < least) {
        struct transport_refused now = refused(scene);

        memcpy(&count, (const char *)&now + count_at, sizeof(count));
        assert_true(ends_now_us() < limit);
        ends_turn(scene->ends, ends_now_us() + 1000);
    }
    if (strstr(scene->ends[1].warning, words) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", scene->ends[1].warning, words);
    }
}

#define WAIT_REFUSED(scene, field, least, words)                                                   \
    wait_refused(scene, offsetof(struct transport_refused, field), least, words)

/* A packet that a correct sender could have written, by the node that it names. */
static size_t write_packet(uint8_t *bytes, uint16_t source, enum link_lane lane)
{
    const struct packet packet = {.type = lane == LINK_BULK ? PACKET_DATA : PACKET_HELLO,
        .lane = lane,
        .source = source,
        .destination = 1,
        .source_incarnation = 77,
        .destination_incarnation = lane == LINK_BULK ? 200 : 0};

    packet_encode(&packet, bytes);
    return PACKET_HEADER_SIZE;
}

/* Sends as soon as the connection is up, while the good end takes turns. */
static void push(struct scene *scene, void *socket, const uint8_t *bytes, size_t size)
{
    uint64_t limit = ends_now_us() + PATIENCE_US;

    while (zmq_send(socket, bytes, size, ZMQ_DONTWAIT) < 0) {
        assert_true(ends_now_us() < limit);
        ends_turn(scene->ends, ends_now_us() + 1000);
    }
}

static void test_unknown_key(void **state)
{
    struct scene scene;
    void *socket;

    (void)state;
    start_scene(&scene, false);
    socket = new_socket(&scene, ZMQ_PUSH);
    set_curve(socket, &scene.pairs[STRANGER], scene.pairs[GOOD_1].public_key);
    assert_int_equal(zmq_connect(socket, scene.ends[1].endpoint), 0);
    WAIT_REFUSED(&scene, keys, 1, scene.pairs[STRANGER].public_key);
    assert_non_null(strstr(scene.ends[1].warning, "127.0.0.1"));
    (void)zmq_close(socket);
    stop_scene(&scene);
}

/* Chance decides which side notices first, and therefore the reason in the log. */
static void test_plaintext(void **state)
{
    struct scene scene;
    void *socket;

    (void)state;
    start_scene(&scene, false);
    socket = new_socket(&scene, ZMQ_PUSH);
    assert_int_equal(zmq_connect(socket, scene.ends[1].endpoint), 0);
    WAIT_REFUSED(&scene, handshakes, 1, "refused a connection to");
    (void)zmq_close(socket);
    stop_scene(&scene);
}

/* An allowed key, another kind of socket, and the name of another node. */
static void test_forged_routing_id(void **state)
{
    static const int types[] = {ZMQ_DEALER, ZMQ_REQ, ZMQ_ROUTER};
    struct scene scene;

    (void)state;
    start_scene(&scene, false);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        void *socket = new_socket(&scene, types[i]);
        uint64_t before = refused(&scene).handshakes;

        set_curve(socket, &scene.pairs[PLAYED], scene.pairs[GOOD_1].public_key);
        set_text(socket, ZMQ_ROUTING_ID, "0");
        assert_int_equal(zmq_connect(socket, scene.ends[1].endpoint), 0);
        WAIT_REFUSED(&scene, handshakes, before + 1, "refused a connection to");
        (void)zmq_close(socket);
    }
    assert_int_equal(refused(&scene).packets, 0);
    stop_scene(&scene);
}

static void test_impostor(void **state)
{
    uint8_t bytes[PACKET_HEADER_SIZE];
    struct link_stats stats = {0};
    struct scene scene;
    void *socket;

    (void)state;
    start_scene(&scene, false);
    socket = new_socket(&scene, ZMQ_PUSH);
    set_curve(socket, &scene.pairs[PLAYED], scene.pairs[GOOD_1].public_key);
    set_text(socket, ZMQ_ROUTING_ID, "0");
    assert_int_equal(zmq_connect(socket, scene.ends[1].endpoint), 0);
    for (uint16_t source = 0; source < 12; source++) {
        uint64_t before = refused(&scene).packets;

        if (source != 2) {
            push(&scene, socket, bytes, write_packet(bytes, source, LINK_CONTROL));
            WAIT_REFUSED(&scene, packets, before + 1, "node 2 sent a packet that says");
        }
    }
    /* Packets in its own name are accepted. */
    push(&scene, socket, bytes, write_packet(bytes, 2, LINK_CONTROL));
    while (stats.packets_received < 1) {
        ends_turn(scene.ends, ends_now_us() + 1000);
        assert_true(links_stats(scene.ends[1].links, 2, &stats));
    }
    assert_int_equal(refused(&scene).packets, 11);
    (void)zmq_close(socket);
    stop_scene(&scene);
}

/* Asks for a token, as node 2, and reads it in node 2's inbox. */
static void obtain_token(struct scene *scene, void *socket, struct token_message *grant)
{
    const struct token_message request = {.type = TOKEN_REQUEST, .number = 4711};
    uint8_t bytes[2048];
    uint64_t limit = ends_now_us() + PATIENCE_US;
    int size = 0;

    memset(grant, 0, sizeof(*grant));
    /* The node can answer now. */
    while (zmq_recv(scene->inbox, bytes, sizeof(bytes), ZMQ_DONTWAIT) < 0) {
        assert_true(ends_now_us() < limit);
        ends_turn(scene->ends, ends_now_us() + 1000);
    }
    push(scene, socket, bytes, token_encode(&request, bytes));
    while (size != TOKEN_GRANT_SIZE || !token_decode(grant, bytes, TOKEN_GRANT_SIZE)) {
        assert_true(ends_now_us() < limit);
        ends_turn(scene->ends, ends_now_us() + 1000);
        size = zmq_recv(scene->inbox, bytes, sizeof(bytes), ZMQ_DONTWAIT);
    }
    assert_int_equal(grant->type, TOKEN_GRANT);
    assert_int_equal(grant->number, 4711);
    assert_int_not_equal(grant->port, 0);
}

static void *connect_bulk(struct scene *scene, uint16_t port, const char *user, const char *token)
{
    char endpoint[64];
    void *socket = new_socket(scene, ZMQ_PUSH);

    (void)snprintf(endpoint, sizeof(endpoint), "tcp://127.0.0.1:%u", port);
    set_int(socket, ZMQ_IMMEDIATE, 1);
    set_text(socket, ZMQ_ROUTING_ID, "0");
    if (user != NULL) {
        set_int(socket, ZMQ_RECONNECT_IVL, -1);
        set_text(socket, ZMQ_PLAIN_USERNAME, user);
        set_text(socket, ZMQ_PLAIN_PASSWORD, token);
    }
    assert_int_equal(zmq_connect(socket, endpoint), 0);
    return socket;
}

static void test_tokens(void **state)
{
    uint8_t bytes[PACKET_HEADER_SIZE];
    char text[TOKEN_TEXT_SIZE], guess[TOKEN_TEXT_SIZE];
    struct token_message grant;
    struct link_stats stats = {0};
    struct scene scene;
    void *control, *bulk, *other;

    (void)state;
    start_scene(&scene, true);
    control = new_socket(&scene, ZMQ_PUSH);
    set_curve(control, &scene.pairs[PLAYED], scene.pairs[GOOD_1].public_key);
    assert_int_equal(zmq_connect(control, scene.ends[1].endpoint), 0);
    obtain_token(&scene, control, &grant);
    assert_non_null(zmq_z85_encode(text, grant.token, TOKEN_BYTES));

    /* A guess, another node's name, no token at all. */
    grant.token[0] ^= 1;
    assert_non_null(zmq_z85_encode(guess, grant.token, TOKEN_BYTES));
    other = connect_bulk(&scene, grant.port, "2", guess);
    WAIT_REFUSED(&scene, tokens, 1, "node 2: no valid token");
    (void)zmq_close(other);
    other = connect_bulk(&scene, grant.port, "0", text);
    WAIT_REFUSED(&scene, tokens, 2, "node 0: no valid token");
    (void)zmq_close(other);
    other = connect_bulk(&scene, grant.port, NULL, NULL);
    WAIT_REFUSED(&scene, handshakes, 1, "refused a connection to");
    (void)zmq_close(other);

    /* The token, and then the token again. */
    bulk = connect_bulk(&scene, grant.port, "2", text);
    push(&scene, bulk, bytes, write_packet(bytes, 2, LINK_BULK));
    other = connect_bulk(&scene, grant.port, "2", text);
    WAIT_REFUSED(&scene, tokens, 3, "node 2: no valid token");
    (void)zmq_close(other);
    while (stats.packets_received < 1) {
        ends_turn(scene.ends, ends_now_us() + 1000);
        assert_true(links_stats(scene.ends[1].links, 2, &stats));
    }

    /* Even with a token it is node 2. Control messages do not belong on this lane. */
    push(&scene, bulk, bytes, write_packet(bytes, 0, LINK_BULK));
    WAIT_REFUSED(&scene, packets, 1, "node 2 sent a packet that says it is from node 0");
    push(&scene, bulk, bytes, write_packet(bytes, 2, LINK_CONTROL));
    WAIT_REFUSED(&scene, packets, 2, "control packet in the clear");
    (void)zmq_close(bulk);
    (void)zmq_close(control);
    stop_scene(&scene);
}

static void test_malformed_token_messages(void **state)
{
    uint8_t bytes[TOKEN_GRANT_SIZE] = {'A', 'D', 'B', 'K', 9, 9};
    struct scene scene;
    void *socket;

    (void)state;
    start_scene(&scene, true);
    socket = new_socket(&scene, ZMQ_PUSH);
    set_curve(socket, &scene.pairs[PLAYED], scene.pairs[GOOD_1].public_key);
    assert_int_equal(zmq_connect(socket, scene.ends[1].endpoint), 0);
    for (size_t size = 4; size <= sizeof(bytes); size++) {
        push(&scene, socket, bytes, size);
        WAIT_REFUSED(&scene, packets, size - 3, "node 2 sent a malformed token message");
    }
    /* A grant for which nobody asked changes nothing. */
    (void)token_encode(&(struct token_message){.type = TOKEN_GRANT, .port = 1}, bytes);
    push(&scene, socket, bytes, TOKEN_GRANT_SIZE);
    go_on(&scene);
    (void)zmq_close(socket);
    stop_scene(&scene);
}

/* Bytes that are no greeting, a greeting and then nonsense, and nothing at all. */
static void test_flood(void **state)
{
    uint8_t rubbish[256];
    struct scene scene;
    uint64_t before;

    (void)state;
    start_scene(&scene, false);
    before = refused(&scene).handshakes;
    for (int i = 0; i < FLOOD; i++) {
        int fd = tcp_connect(scene.ends[1].endpoint);

        for (size_t k = 0; k < sizeof(rubbish); k++) {
            rubbish[k] = ends_content((uint64_t)i * 31, k + 8) & 0x7F;
        }
        if (i % 2 == 1) {
            memcpy(rubbish, "\377\0\0\0\0\0\0\0\1\177\3\0CURVE", 17);
            memset(rubbish + 17, 0, 47);
        }
        if (i % 3 != 2) {
            (void)send(fd, rubbish, sizeof(rubbish), MSG_NOSIGNAL);
        }
        (void)close(fd);
        if (i % 100 == 99) {
            go_on(&scene);
        }
    }
    /* Meanwhile no connection of a good peer came up, so every stranger was noticed. */
    WAIT_REFUSED(&scene, handshakes, before + FLOOD, "refused a connection");
    assert_int_equal(refused(&scene).handshakes, before + FLOOD);
    stop_scene(&scene);
}

/* Connects, and waits until libzmq has accepted the connection and closed it again. */
static void come_and_go(int fd, const struct sockaddr_in *address)
{
    char byte;

    assert_int_equal(connect(fd, (const struct sockaddr *)address, sizeof(*address)), 0);
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    while (recv(fd, &byte, 1, 0) > 0) {
    }
}

/* Greets as a PUSH socket without keys. */
static void greet(int fd)
{
    static const uint8_t greeting[64] = "\377\0\0\0\0\0\0\0\1\177\3\0NULL";
    static const uint8_t ready[] = "\4\32\5READY\13Socket-Type\0\0\0\4PUSH";

    assert_int_equal(send(fd, greeting, sizeof(greeting), MSG_NOSIGNAL), sizeof(greeting));
    assert_int_equal(send(fd, ready, sizeof(ready) - 1, MSG_NOSIGNAL), sizeof(ready) - 1);
}

/* Two connections have one descriptor after the other, before the transport reads any report. The
 * message of the second one does not end. */
static void test_descriptor_again(void **state)
{
    static uint8_t parts[64 << 10];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint64_t sent = 0;
    struct end ends[2];
    int fds[2];

    (void)state;
    for (size_t i = 0; i < sizeof(parts); i += 2) {
        parts[i] = 1; /* an empty part, and another one follows */
    }
    ends_start_pair(ends);
    address.sin_port = htons((uint16_t)strtoul(strrchr(ends[1].endpoint, ':') + 1, NULL, 10));
    for (int i = 0; i < 2; i++) { /* before a descriptor is free again */
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fds[i] >= 0);
    }
    come_and_go(fds[0], &address);
    assert_int_equal(connect(fds[1], (struct sockaddr *)&address, sizeof(address)), 0);
    greet(fds[1]);
    (void)poll(NULL, 0, 100); /* until libzmq has accepted it */
    while (strstr(ends[1].warned, "does not end") == NULL) {
        const ssize_t size = send(fds[1], parts, sizeof(parts), MSG_NOSIGNAL | MSG_DONTWAIT);

        sent += size > 0 ? (uint64_t)size : 0;
        assert_true(sent < ENDLESS);
        ends_turn(ends, ends_now_us() + 1000);
    }
    (void)close(fds[0]);
    (void)close(fds[1]);
    ends_stop_pair(ends);
}

/* A flood of packets under an allowed key does not hinder the good peers. */
static void test_flood_of_packets(void **state)
{
    uint8_t bytes[PACKET_HEADER_SIZE];
    struct scene scene;
    uint64_t sent = 0;
    void *socket;

    (void)state;
    start_scene(&scene, false);
    socket = new_socket(&scene, ZMQ_PUSH);
    set_curve(socket, &scene.pairs[PLAYED], scene.pairs[GOOD_1].public_key);
    assert_int_equal(zmq_connect(socket, scene.ends[1].endpoint), 0);
    for (int i = 0; i < 20; i++) {
        for (int k = 0; k < FLOOD; k++) {
            size_t size = write_packet(bytes, 0, LINK_CONTROL);

            sent += zmq_send(socket, bytes, size, ZMQ_DONTWAIT) > 0 ? 1 : 0;
        }
        go_on(&scene);
    }
    WAIT_REFUSED(&scene, packets, sent, "node 2 sent a packet that says");
    assert_int_equal(refused(&scene).packets, sent);
    (void)zmq_close(socket);
    stop_scene(&scene);
}

/* A program between the nodes that passes bytes on and keeps the first bytes of node 0. */
struct middle {
    int listener, outside, inside;
    char endpoint[64];
    uint8_t record[RECORD_SIZE];
    size_t recorded;
};

static void middle_start(struct middle *middle)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);

    *middle = (struct middle){.outside = -1, .inside = -1};
    middle->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(middle->listener, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(middle->listener, 8), 0);
    assert_int_equal(getsockname(middle->listener, (struct sockaddr *)&address, &size), 0);
    (void)snprintf(
        middle->endpoint, sizeof(middle->endpoint), "tcp://127.0.0.1:%u", ntohs(address.sin_port));
}

/* Handles the first connection only: that of the control lane, or that of bulk. */
static void middle_turn(struct middle *middle, const char *target)
{
    uint8_t bytes[4096];
    ssize_t size;

    if (middle->outside < 0) {
        middle->outside = accept(middle->listener, NULL, NULL);
        if (middle->outside >= 0) {
            middle->inside = tcp_connect(target);
        }
        return;
    }
    size = recv(middle->outside, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (size > 0) {
        size_t kept = middle->recorded + (size_t)size <= RECORD_SIZE ? (size_t)size : 0;

        memcpy(middle->record + middle->recorded, bytes, kept);
        middle->recorded += kept;
        assert_int_equal(send(middle->inside, bytes, (size_t)size, MSG_NOSIGNAL), size);
    }
    size = recv(middle->inside, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (size > 0) {
        assert_int_equal(send(middle->outside, bytes, (size_t)size, MSG_NOSIGNAL), size);
    }
}

/* Node 2 says HELLO through the middle. The recorded bytes are useless on another connection,
 * because each connection has keys of its own. */
static void test_replay(void **state)
{
    static struct middle middle;
    uint8_t bytes[PACKET_HEADER_SIZE];
    struct link_stats stats = {0};
    struct scene scene;
    uint64_t received, limit = ends_now_us() + PATIENCE_US;
    void *socket;
    int fd;

    (void)state;
    start_scene(&scene, false);
    middle_start(&middle);
    socket = new_socket(&scene, ZMQ_PUSH);
    set_curve(socket, &scene.pairs[PLAYED], scene.pairs[GOOD_1].public_key);
    assert_int_equal(zmq_connect(socket, middle.endpoint), 0);
    assert_int_equal(
        zmq_send(socket, bytes, write_packet(bytes, 2, LINK_CONTROL), 0), PACKET_HEADER_SIZE);
    while (stats.packets_received < 1) {
        assert_true(ends_now_us() < limit);
        middle_turn(&middle, scene.ends[1].endpoint);
        ends_turn(scene.ends, ends_now_us() + 1000);
        assert_true(links_stats(scene.ends[1].links, 2, &stats));
    }
    received = stats.packets_received;
    assert_true(middle.recorded > 64 + PACKET_HEADER_SIZE);

    fd = tcp_connect(scene.ends[1].endpoint);
    assert_int_equal(
        send(fd, middle.record, middle.recorded, MSG_NOSIGNAL), (ssize_t)middle.recorded);
    WAIT_REFUSED(&scene, handshakes, 1, "refused a connection");
    assert_true(links_stats(scene.ends[1].links, 2, &stats));
    assert_int_equal(stats.packets_received, received);
    (void)close(fd);
    (void)close(middle.listener);
    (void)close(middle.outside);
    (void)close(middle.inside);
    (void)zmq_close(socket);
    stop_scene(&scene);
}

/* A peer that once had no keys: libzmq gives such a connection up, and the links ask for another
 * one. */
static void test_given_up_connection(void **state)
{
    struct keyfile_pair pairs[2];
    struct sender sender = {.id = 1, .key_count = 1};
    struct sender_home home = {.zmq = zmq_ctx_new(), .pair = &pairs[0]};
    void *server = zmq_socket(home.zmq, ZMQ_PULL);
    size_t size = sizeof(sender.endpoint);
    const int linger = 0;
    bool ready = false;

    (void)state;
    ends_draw_keys(pairs, 2);
    memcpy(sender.keys[0], pairs[1].public_key, KEYFILE_KEY_SIZE);
    assert_int_equal(zmq_setsockopt(server, ZMQ_LINGER, &linger, sizeof(linger)), 0);
    assert_int_equal(zmq_bind(server, ANY_PORT), 0);
    assert_int_equal(zmq_getsockopt(server, ZMQ_LAST_ENDPOINT, sender.endpoint, &size), 0);
    assert_true(sender_open(&sender, &home));
    (void)poll(NULL, 0, 300); /* until it is turned away */
    assert_null(sender_ready(&sender, &home, LINK_CONTROL));
    (void)zmq_close(server);
    server = socket_new_pull(home.zmq, sender.endpoint, &pairs[1]);
    assert_true(socket_bind(server, sender.endpoint, true, sender.endpoint));
    sender_reopen(&sender, &home, LINK_CONTROL);
    for (int i = 0; i < 6000 && !ready; i++) {
        ready = sender_ready(&sender, &home, LINK_CONTROL) != NULL;
        (void)poll(NULL, 0, 10);
    }
    assert_true(ready);
    sender_close(&sender);
    (void)zmq_close(server);
    (void)zmq_ctx_term(home.zmq);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_key),
        cmocka_unit_test(test_plaintext),
        cmocka_unit_test(test_forged_routing_id),
        cmocka_unit_test(test_impostor),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_malformed_token_messages),
        cmocka_unit_test(test_flood),
        cmocka_unit_test(test_descriptor_again),
        cmocka_unit_test(test_flood_of_packets),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_given_up_connection),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
