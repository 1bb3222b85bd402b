/* The ZeroMQ transport on loopback, with links on top, driven by poll(). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

#include "daemon/core/packet.h"
#include "daemon/transport/transport.h"

#define MESSAGES 20000
#define LARGE (16U << 20)
#define LARGE_MESSAGES 3
#define SECOND_US 1000000U
#define ANY_PORT "tcp://127.0.0.1:*"

struct end {
    struct links *links;
    void *transport;
    char endpoint[64];
    uint64_t received[LINK_LANES], sent[LINK_LANES];
    uint64_t incarnation_seen;
    unsigned ups;
};

static const struct transport_ops *const transport = &transport_zmq;

static enum adtopk_status add_peer(
    void *handle, uint16_t id, const char *endpoint, struct error *err)
{
    return transport->add_peer(
        handle, &(struct transport_peer){.id = id, .endpoint = endpoint}, err);
}

static uint64_t clock_us(void)
{
    struct timespec now;

    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &now), 0);
    return (uint64_t)now.tv_sec * SECOND_US + (uint64_t)now.tv_nsec / 1000;
}

/* Message `index`: its number, then bytes that depend on it and on their place. */
static uint8_t content(uint64_t index, size_t at)
{
    return (uint8_t)(at < 8 ? index >> (8 * at) : (index + at) * 167 + (at >> 8));
}

static void end_receive(
    void *context, uint16_t peer, enum link_lane lane, const uint8_t *packet, size_t size)
{
    struct end *end = context;

    links_receive(end->links, peer, lane, packet, size, clock_us());
}

static bool end_transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size)
{
    struct end *end = context;

    return transport->send(end->transport, peer, lane, header, header_size, body, body_size);
}

static void end_deliver(void *context, uint16_t peer, enum link_lane lane, struct buffer *message)
{
    struct end *end = context;
    uint64_t index = end->received[lane]++;

    (void)peer;
    for (size_t i = 0; i < message->size; i++) {
        if (message->bytes[i] != content(index, i)) {
            fail_msg("message %u differs at byte %u", (unsigned)index, (unsigned)i);
        }
    }
    buffer_unref(message);
}

static void end_up(void *context, uint16_t peer, uint64_t incarnation)
{
    struct end *end = context;

    (void)peer;
    end->ups++;
    if (incarnation != end->incarnation_seen) {
        end->incarnation_seen = incarnation;
        memset(end->sent, 0, sizeof(end->sent));
        memset(end->received, 0, sizeof(end->received));
    }
}

static void end_down(void *context, uint16_t peer)
{
    (void)context;
    (void)peer;
}

/* Heartbeats and resends come so late that a lost wake-up shows as a stall. */
static void end_start(struct end *end, uint16_t id, uint64_t incarnation, const char *listen)
{
    const struct links_config config = {.self = id,
        .incarnation = incarnation,
        .chunk_size = 256 << 10,
        .window = 4 << 20,
        .max_control_message = 64 << 10,
        .max_bulk_message = 64 << 20,
        .heartbeat_us = 20 * SECOND_US,
        .timeout_us = 60 * SECOND_US,
        .resend_us = 15 * SECOND_US};
    const struct links_ops ops = {
        .transmit = end_transmit, .deliver = end_deliver, .peer_up = end_up, .peer_down = end_down};
    struct error err = {0};

    memset(end, 0, sizeof(*end));
    end->links = links_create(&config, &ops, end);
    assert_non_null(end->links);
    end->transport = transport->create(
        &(struct transport_config){.self = id, .listen = listen}, end_receive, end, &err);
    if (end->transport == NULL) {
        fail_msg("%s", err.text);
    }
    (void)snprintf(end->endpoint, sizeof(end->endpoint), "%s", transport->endpoint(end->transport));
}

static void end_connect(struct end *end, uint16_t peer, const char *endpoint)
{
    assert_int_equal(add_peer(end->transport, peer, endpoint, NULL), ADTOPK_OK);
    assert_int_equal(links_add_peer(end->links, peer, clock_us()), ADTOPK_OK);
}

static void end_stop(struct end *end)
{
    links_destroy(end->links);
    transport->destroy(end->transport);
}

static void end_send(struct end *end, uint16_t peer, enum link_lane lane, size_t size)
{
    struct buffer *message = buffer_new(size);

    assert_non_null(message);
    for (size_t i = 0; i < size; i++) {
        message->bytes[i] = content(end->sent[lane], i);
    }
    assert_true(links_send(end->links, peer, lane, message));
    end->sent[lane]++;
    buffer_unref(message);
}

/* One turn of a loop as a daemon has it: sleep until a packet or a deadline. */
static void turn(struct end *ends, uint64_t until)
{
    struct pollfd polls[2];
    uint64_t now = clock_us(), wake = until;
    bool more = false;

    for (int i = 0; i < 2; i++) {
        uint64_t deadline = links_deadline(ends[i].links);

        wake = deadline < wake ? deadline : wake;
        polls[i] =
            (struct pollfd){.fd = transport->descriptor(ends[i].transport), .events = POLLIN};
    }
    assert_true(poll(polls, 2, wake > now ? (int)((wake - now + 999) / 1000) : 0) >= 0);
    for (int i = 0; i < 2; i++) {
        bool ticked = links_deadline(ends[i].links) <= clock_us();

        if (ticked) {
            links_tick(ends[i].links, clock_us());
        }
        if (ticked || polls[i].revents != 0) {
            do {
                more = transport->pump(ends[i].transport, 64);
            } while (more);
        }
    }
}

static bool reached(const struct end *ends, uint64_t control, uint64_t bulk)
{
    return ends[0].received[LINK_CONTROL] >= control && ends[1].received[LINK_CONTROL] >= control &&
           ends[0].received[LINK_BULK] >= bulk && ends[1].received[LINK_BULK] >= bulk;
}

static void run_until(struct end *ends, uint64_t control, uint64_t bulk)
{
    uint64_t limit = clock_us() + 10 * SECOND_US;

    while (!reached(ends, control, bulk)) {
        assert_true(clock_us() < limit);
        turn(ends, limit);
    }
}

static void run_until_up(struct end *ends)
{
    uint64_t limit = clock_us() + 10 * SECOND_US;

    while (!links_is_up(ends[0].links, 1) || !links_is_up(ends[1].links, 0)) {
        assert_true(clock_us() < limit);
        turn(ends, limit);
    }
}

static void pair_start(struct end *ends)
{
    end_start(&ends[0], 0, 100, ANY_PORT);
    end_start(&ends[1], 1, 200, ANY_PORT);
    end_connect(&ends[0], 1, ends[1].endpoint);
    end_connect(&ends[1], 0, ends[0].endpoint);
    run_until_up(ends);
}

static void pair_stop(struct end *ends)
{
    end_stop(&ends[0]);
    end_stop(&ends[1]);
}

/* Nothing is lost on loopback, so whatever is sent twice is a bug. */
static void check_nothing_resent(const struct end *ends)
{
    for (uint16_t i = 0; i < 2; i++) {
        struct link_stats stats;

        assert_true(links_stats(ends[i].links, (uint16_t)(1 - i), &stats));
        assert_int_equal(stats.resent, 0);
        assert_int_equal(stats.malformed + stats.dropped + stats.duplicates, 0);
    }
}

static void test_small_messages(void **state)
{
    struct end ends[2];

    (void)state;
    pair_start(ends);
    for (uint64_t i = 0; i < MESSAGES; i++) {
        end_send(&ends[0], 1, LINK_CONTROL, i % 150);
        end_send(&ends[1], 0, LINK_CONTROL, i % 70);
        if (i % 1000 == 0) {
            run_until(ends, i > 0 ? i - 1 : 0, 0);
        }
    }
    run_until(ends, MESSAGES, 0);
    check_nothing_resent(ends);
    pair_stop(ends);
}

/* One message at a time, each waits for the one before: every wake-up counts. */
static void test_ping_pong(void **state)
{
    struct end ends[2];

    (void)state;
    pair_start(ends);
    for (uint64_t i = 0; i < 5000; i++) {
        end_send(&ends[i % 2], (uint16_t)(1 - i % 2), LINK_CONTROL, 8);
        run_until(ends, i / 2, 0);
    }
    check_nothing_resent(ends);
    pair_stop(ends);
}

static void test_large_messages(void **state)
{
    struct end ends[2];

    (void)state;
    pair_start(ends);
    for (int i = 0; i < LARGE_MESSAGES; i++) {
        end_send(&ends[0], 1, LINK_BULK, LARGE);
        end_send(&ends[1], 0, LINK_BULK, LARGE - 1);
    }
    for (uint64_t i = 1; i <= 200; i++) {
        end_send(&ends[0], 1, LINK_CONTROL, 100);
        end_send(&ends[1], 0, LINK_CONTROL, 100);
        run_until(ends, i, 0);
        if (i == 1) { /* control did not wait for bulk */
            assert_true(ends[0].received[LINK_BULK] < LARGE_MESSAGES);
            assert_true(ends[1].received[LINK_BULK] < LARGE_MESSAGES);
        }
    }
    run_until(ends, 200, LARGE_MESSAGES);
    check_nothing_resent(ends);
    pair_stop(ends);
}

static void test_restart(void **state)
{
    struct end ends[2];
    char endpoint[64];

    (void)state;
    pair_start(ends);
    for (uint64_t life = 1; life <= 3; life++) {
        uint64_t limit = clock_us() + 10 * SECOND_US;

        end_send(&ends[0], 1, LINK_BULK, LARGE); /* cut off in the middle */
        turn(ends, limit);
        (void)snprintf(endpoint, sizeof(endpoint), "%s", ends[1].endpoint);
        end_stop(&ends[1]);
        end_start(&ends[1], 1, 200 + life, endpoint);
        end_connect(&ends[1], 0, ends[0].endpoint);
        while (ends[0].incarnation_seen != 200 + life || ends[1].incarnation_seen != 100) {
            assert_true(clock_us() < limit);
            turn(ends, limit);
        }
        end_send(&ends[0], 1, LINK_CONTROL, 10);
        end_send(&ends[1], 0, LINK_CONTROL, 10);
        run_until(ends, 1, 0);
    }
    assert_int_equal(ends[0].ups, 4);
    pair_stop(ends);
}

static int tcp_connect(const char *endpoint)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
        .sin_port = htons((uint16_t)strtoul(strrchr(endpoint, ':') + 1, NULL, 10)),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* Bytes that are no ZeroMQ at all, and a correct greeting with bytes after it that make no sense.
 */
static void test_rubbish(void **state)
{
    struct end ends[2];
    uint8_t rubbish[4096] = {0};
    int fds[64];

    (void)state;
    pair_start(ends);
    for (int i = 0; i < 64; i++) {
        size_t size = i % 3 == 2 ? 64 : sizeof(rubbish);

        for (size_t k = 0; k < sizeof(rubbish); k++) {
            rubbish[k] = content((uint64_t)i * 31, k + 8);
        }
        if (i % 2 == 1) {
            memcpy(rubbish, "\377\0\0\0\0\0\0\0\1\177\3\0NULL", 16);
            memset(rubbish + 16, 0, 48);
        }
        fds[i] = tcp_connect(ends[1].endpoint);
        (void)send(fds[i], rubbish, size, MSG_NOSIGNAL);
        end_send(&ends[0], 1, LINK_CONTROL, 10);
        end_send(&ends[1], 0, LINK_CONTROL, 10);
        run_until(ends, (uint64_t)i + 1, 0);
    }
    for (int i = 0; i < 64; i++) {
        (void)close(fds[i]);
    }
    end_send(&ends[0], 1, LINK_BULK, LARGE);
    end_send(&ends[1], 0, LINK_BULK, 0);
    run_until(ends, 64, 1);
    check_nothing_resent(ends);
    assert_int_equal(links_refused(ends[1].links).packets, 0); /* none of it came that far */
    pair_stop(ends);
}

/* A stranger that speaks ZeroMQ and can write headers. */
static void *stranger_start(void *zmq, const char *endpoint)
{
    const int linger = 0;
    void *push = zmq_socket(zmq, ZMQ_PUSH);

    assert_non_null(push);
    assert_int_equal(zmq_setsockopt(push, ZMQ_LINGER, &linger, sizeof(linger)), 0);
    assert_int_equal(zmq_connect(push, endpoint), 0);
    return push;
}

static void stranger_send(void *push, size_t size)
{
    const struct packet packet = {
        .type = PACKET_HELLO, .source = 9, .destination = 1, .source_incarnation = 1};
    uint8_t *bytes = calloc(1, size);

    assert_non_null(bytes);
    assert_true(size >= PACKET_HEADER_SIZE);
    packet_encode(&packet, bytes);
    assert_int_equal(zmq_send(push, bytes, size, 0), (int)size);
    free(bytes);
}

static void test_oversized(void **state)
{
    struct end ends[2];
    void *zmq = zmq_ctx_new(), *push;
    uint64_t limit;

    (void)state;
    pair_start(ends);
    push = stranger_start(zmq, ends[1].endpoint);
    stranger_send(push, LINK_HEADER_MAX + TRANSPORT_BODY_MAX); /* as long as allowed: seen */
    limit = clock_us() + 10 * SECOND_US;
    while (links_refused(ends[1].links).packets < 1) {
        assert_true(clock_us() < limit);
        turn(ends, clock_us() + 10000);
    }
    stranger_send(push, LINK_HEADER_MAX + TRANSPORT_BODY_MAX + 1); /* makes libzmq disconnect */
    limit = clock_us() + SECOND_US / 2;
    while (clock_us() < limit) {
        turn(ends, limit);
    }
    assert_int_equal(links_refused(ends[1].links).packets, 1);
    end_send(&ends[0], 1, LINK_BULK, LARGE);
    end_send(&ends[1], 0, LINK_BULK, LARGE);
    run_until(ends, 0, 1);
    (void)zmq_close(push);
    (void)zmq_ctx_term(zmq);
    pair_stop(ends);
}

/* Out of descriptors */

static void count_packet(
    void *context, uint16_t peer, enum link_lane lane, const uint8_t *packet, size_t size)
{
    unsigned *count = context;

    (void)peer;
    (void)lane;
    (void)packet;
    (void)size;
    (*count)++;
}

/* Listens with two spare descriptors until a packet comes in. */
static int starving_child(int report)
{
    unsigned count = 0;
    void *starving = transport->create(
        &(struct transport_config){.self = 1, .listen = ANY_PORT}, count_packet, &count, NULL);
    int next = dup(report);
    const struct rlimit limit = {(rlim_t)next + 2, (rlim_t)next + 2};

    if (starving == NULL || next < 0 || close(next) != 0 || setrlimit(RLIMIT_NOFILE, &limit) != 0 ||
        write(report, transport->endpoint(starving), 64) != 64) {
        return 2;
    }
    for (int i = 0; i < 1000 && count == 0; i++) {
        struct pollfd polled = {.fd = transport->descriptor(starving), .events = POLLIN};

        (void)poll(&polled, 1, 10);
        (void)transport->pump(starving, 64);
    }
    /* A peer cannot be added now: an error, not a crash. */
    if (add_peer(starving, 2, "tcp://127.0.0.1:1", NULL) == ADTOPK_OK &&
        add_peer(starving, 3, "tcp://127.0.0.1:1", NULL) == ADTOPK_OK) {
        return 3;
    }
    transport->destroy(starving);
    return count == 1 ? 0 : 4;
}

static void test_out_of_descriptors(void **state)
{
    char endpoint[64];
    int channel[2], fds[50], status = 0;
    void *zmq, *push;
    pid_t child;

    (void)state;
    assert_int_equal(pipe(channel), 0);
    child = fork();
    if (child == 0) {
        _exit(starving_child(channel[1]));
    }
    assert_true(child > 0);
    assert_int_equal(read(channel[0], endpoint, sizeof(endpoint)), sizeof(endpoint));
    for (int i = 0; i < 50; i++) {
        fds[i] = tcp_connect(endpoint);
    }
    (void)poll(NULL, 0, 300); /* let it try to accept them all */
    assert_int_equal(waitpid(child, &status, WNOHANG), 0);
    for (int i = 0; i < 50; i++) {
        (void)close(fds[i]);
    }
    zmq = zmq_ctx_new();
    push = stranger_start(zmq, endpoint);
    stranger_send(push, PACKET_HEADER_SIZE);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    (void)zmq_close(push);
    (void)zmq_ctx_term(zmq);
    (void)close(channel[0]);
    (void)close(channel[1]);
}

static void test_errors_name_the_endpoint(void **state)
{
    static const char *const bad[] = {
        "ipc:///tmp/adtopk-test", "tcp://127.0.0.1", "tcp://nonsense:x", "inproc://x", ""};
    struct transport_config config = {.self = 1};
    struct error err;
    unsigned count = 0;
    void *first;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        config.listen = bad[i];
        assert_null(transport->create(&config, count_packet, &count, &err));
        assert_int_equal(err.code, ADTOPK_ERR_ARGUMENT);
        assert_non_null(strstr(err.text, bad[i]));
    }
    config.listen = ANY_PORT;
    first = transport->create(&config, count_packet, &count, &err);
    assert_non_null(first);
    config.listen = transport->endpoint(first);
    assert_null(transport->create(&config, count_packet, &count, &err));
    assert_int_equal(err.code, ADTOPK_ERR_SYSTEM);
    assert_non_null(strstr(err.text, config.listen));
    assert_non_null(strstr(err.text, "in use"));
    assert_int_equal(add_peer(first, 2, "ipc:///tmp/x", &err), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "ipc:///tmp/x"));
    assert_int_equal(add_peer(first, 2, "tcp://127.0.0.1:1", &err), ADTOPK_OK);
    assert_int_equal(add_peer(first, 2, "tcp://127.0.0.1:1", &err), ADTOPK_ERR_ARGUMENT);
    /* Nobody listens there, and nobody knows node 3: refused, not kept. */
    assert_false(transport->send(first, 2, LINK_CONTROL, (const uint8_t *)"x", 1, NULL, 0));
    assert_false(transport->send(first, 3, LINK_CONTROL, (const uint8_t *)"x", 1, NULL, 0));
    assert_false(transport->pump(first, 10));
    transport->destroy(first);
    transport->destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors_name_the_endpoint),
        cmocka_unit_test(test_out_of_descriptors),
        cmocka_unit_test(test_small_messages),
        cmocka_unit_test(test_ping_pong),
        cmocka_unit_test(test_large_messages),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_rubbish),
        cmocka_unit_test(test_oversized),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
