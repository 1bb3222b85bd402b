/* The ZeroMQ transport on loopback, with links on top, driven by poll(). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

#include "daemon/link/packet.h"
#include "daemon/transport/socket.h"
#include "daemon/transport/transport.h"
#include "tests/unit/zmq_ends.h"
#include "tests/unit/zmq_signals.h"

#define MESSAGES 20000
#define LARGE (16U << 20)
#define LARGE_MESSAGES 3

static enum adtopk_status add_peer(
    void *handle, uint16_t id, const char *endpoint, struct error *err)
{
    return end_transport->add_peer(
        handle, &(struct transport_peer){.id = id, .endpoint = endpoint}, err);
}

static void test_small_messages(void **state)
{
    struct end ends[2];

    (void)state;
    ends_start_pair(ends);
    for (uint64_t i = 0; i < MESSAGES; i++) {
        end_send(&ends[0], 1, LINK_CONTROL, i % 150);
        end_send(&ends[1], 0, LINK_CONTROL, i % 70);
        if (i % 1000 == 0) {
            ends_run_until(ends, i > 0 ? i - 1 : 0, 0);
        }
    }
    ends_run_until(ends, MESSAGES, 0);
    ends_check_nothing_resent(ends);
    ends_stop_pair(ends);
}

/* One message at a time, each sent after the one before has arrived. So every wake-up matters. */
static void test_ping_pong(void **state)
{
    struct end ends[2];

    (void)state;
    ends_start_pair(ends);
    for (uint64_t i = 0; i < 5000; i++) {
        end_send(&ends[i % 2], (uint16_t)(1 - i % 2), LINK_CONTROL, 8);
        ends_run_until(ends, i / 2, 0);
    }
    ends_check_nothing_resent(ends);
    ends_stop_pair(ends);
}

static void test_large_messages(void **state)
{
    struct end ends[2];

    (void)state;
    ends_start_pair(ends);
    for (int i = 0; i < LARGE_MESSAGES; i++) {
        end_send(&ends[0], 1, LINK_BULK, LARGE);
        end_send(&ends[1], 0, LINK_BULK, LARGE - 1);
    }
    for (uint64_t i = 1; i <= 200; i++) {
        end_send(&ends[0], 1, LINK_CONTROL, 100);
        end_send(&ends[1], 0, LINK_CONTROL, 100);
        ends_run_until(ends, i, 0);
        if (i == 1) { /* control did not wait for bulk */
            assert_true(ends[0].received[LINK_BULK] < LARGE_MESSAGES);
            assert_true(ends[1].received[LINK_BULK] < LARGE_MESSAGES);
        }
    }
    ends_run_until(ends, 200, LARGE_MESSAGES);
    ends_check_nothing_resent(ends);
    ends_stop_pair(ends);
}

static void test_restart(void **state)
{
    struct end ends[2];
    char endpoint[64];

    (void)state;
    ends_start_pair(ends);
    for (uint64_t life = 1; life <= 3; life++) {
        uint64_t limit = ends_now_us() + PATIENCE_US;

        end_send(&ends[0], 1, LINK_BULK, LARGE); /* cut off in the middle */
        ends_turn(ends, limit);
        (void)snprintf(endpoint, sizeof(endpoint), "%s", ends[1].endpoint);
        end_stop(&ends[1]);
        end_start(
            &ends[1], 1, 200 + life, END_PATIENT, &(struct transport_config){.listen = endpoint});
        end_connect(&ends[1], 0, ends[0].endpoint, NULL);
        while (ends[0].incarnation_seen != 200 + life || ends[1].incarnation_seen != 100) {
            assert_true(ends_now_us() < limit);
            ends_turn(ends, limit);
        }
        end_send(&ends[0], 1, LINK_CONTROL, 10);
        end_send(&ends[1], 0, LINK_CONTROL, 10);
        ends_run_until(ends, 1, 0);
    }
    assert_int_equal(ends[0].ups, 4);
    ends_stop_pair(ends);
}

/* Bytes that are not ZeroMQ at all, and a correct greeting followed by meaningless bytes. */
static void test_rubbish(void **state)
{
    struct end ends[2];
    uint8_t rubbish[4096] = {0};
    int fds[64];

    (void)state;
    ends_start_pair(ends);
    for (int i = 0; i < 64; i++) {
        size_t size = i % 3 == 2 ? 64 : sizeof(rubbish);

        for (size_t k = 0; k < sizeof(rubbish); k++) {
            rubbish[k] = ends_content((uint64_t)i * 31, k + 8);
        }
        if (i % 2 == 1) {
            memcpy(rubbish, "\377\0\0\0\0\0\0\0\1\177\3\0NULL", 16);
            memset(rubbish + 16, 0, 48);
        }
        fds[i] = tcp_connect(ends[1].endpoint);
        (void)send(fds[i], rubbish, size, MSG_NOSIGNAL);
        end_send(&ends[0], 1, LINK_CONTROL, 10);
        end_send(&ends[1], 0, LINK_CONTROL, 10);
        ends_run_until(ends, (uint64_t)i + 1, 0);
    }
    for (int i = 0; i < 64; i++) {
        (void)close(fds[i]);
    }
    end_send(&ends[0], 1, LINK_BULK, LARGE);
    end_send(&ends[1], 0, LINK_BULK, 0);
    ends_run_until(ends, 64, 1);
    ends_check_nothing_resent(ends);
    assert_int_equal(links_refused(ends[1].links).packets, 0); /* no packet came that far */
    ends_stop_pair(ends);
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

/* ------------------------------------------------------------------ bodies that are not copied */

#define BODY (200U << 10) /* one part of the links' messages, and of libzmq's */

static void note_release(void *context)
{
    atomic_fetch_add((atomic_uint *)context, 1);
}

/* Queues message number 0 with bytes that are not released before nobody reads them any more. */
static void send_watched(struct end *end, uint8_t *bytes, atomic_uint *released)
{
    struct buffer *message = buffer_wrap(bytes, BODY, note_release, released);

    assert_non_null(message);
    for (size_t i = 0; i < BODY; i++) {
        bytes[i] = ends_content(end->sent[LINK_BULK], i);
    }
    assert_true(links_send(end->links, 1, LINK_BULK, NULL, message));
    end->sent[LINK_BULK]++;
    buffer_unref(message);
}

/* Bytes are sent from where they lie, and are given back when they have arrived. */
static void test_bytes_are_given_back(void **state)
{
    struct end ends[2];
    uint8_t *bytes = malloc(BODY);
    atomic_uint released = 0;
    uint64_t limit;

    (void)state;
    assert_non_null(bytes);
    ends_start_pair(ends);
    send_watched(&ends[0], bytes, &released);
    end_send(&ends[1], 0, LINK_BULK, BODY);
    ends_run_until(ends, 0, 1);
    limit = ends_now_us() + PATIENCE_US;
    while (released == 0) {
        assert_true(ends_now_us() < limit);
        ends_turn(ends, ends_now_us() + 10000);
    }
    assert_int_equal(released, 1);
    ends_check_nothing_resent(ends);
    ends_stop_pair(ends);
    free(bytes);
}

static void test_signals_between_parts(void **state)
{
    const unsigned messages = 20;
    struct end ends[2];

    (void)state;
    ends_start_pair(ends);
    zmq_signals(true);
    for (unsigned i = 0; i < messages; i++) {
        end_send(&ends[0], 1, LINK_BULK, BODY);
        end_send(&ends[1], 0, LINK_BULK, BODY);
    }
    ends_run_until(ends, 0, messages);
    zmq_signals(false);
    assert_true(zmq_signals_count() >= messages);
    ends_check_nothing_resent(ends);
    ends_stop_pair(ends);
}

/* The other end reads nothing, and goes. libzmq holds some messages, TCP parts of others. No byte
 * may be released twice, or kept, and none is read once it was released: a sanitizer would see it.
 */
static void test_bytes_outlive_peers(void **state)
{
    enum { WATCHED = 24 };
    uint8_t *bytes[WATCHED];
    atomic_uint released[WATCHED] = {0};
    struct end ends[2];

    (void)state;
    ends_start_pair(ends);
    for (int i = 0; i < WATCHED; i++) {
        bytes[i] = malloc(BODY);
        assert_non_null(bytes[i]);
        send_watched(&ends[0], bytes[i], &released[i]);
    }
    links_tick(ends[0].links, ends_now_us());
    links_drop_job(ends[0].links, 0);
    end_transport->reopen(ends[0].transport, 1, LINK_BULK);
    end_stop(&ends[1]);
    end_stop(&ends[0]);
    for (int i = 0; i < WATCHED; i++) {
        assert_int_equal(released[i], 1);
        free(bytes[i]);
    }
}

/* How often the bytes of frames are copied and checked, as the account in
 * daemon/collective/README.md has it. */
static void test_account(void **state)
{
    enum { PART = 256 << 10 };
    static const struct {
        size_t size;
        struct {
            size_t copied, checked;
        } from, to;
    } rows[] = {
        {20 << 10, {20 << 10, 20 << 10}, {20 << 10, 20 << 10}},
        {40 << 10, {0, 40 << 10}, {0, 40 << 10}},
        {BODY, {0, 0}, {0, BODY}},
        {PART, {0, 0}, {0, PART}},
        {2 * PART, {0, 2 * PART}, {2 * PART, 2 * PART}},
    };
    struct end ends[2];

    (void)state;
    ends_start_pair(ends);
    for (uint64_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct link_stats before[2], after[2];
        for (unsigned end = 0; end < 2; end++) {
            assert_true(links_stats(ends[end].links, (uint16_t)(1 - end), &before[end]));
        }
        end_send(&ends[0], 1, LINK_BULK, rows[i].size);
        end_send(&ends[1], 0, LINK_BULK, 0);
        ends_run_until(ends, 0, i + 1);
        for (unsigned end = 0; end < 2; end++) {
            assert_true(links_stats(ends[end].links, (uint16_t)(1 - end), &after[end]));
        }
        assert_int_equal(after[0].copied_bytes - before[0].copied_bytes, rows[i].from.copied);
        assert_int_equal(after[0].checked_bytes - before[0].checked_bytes, rows[i].from.checked);
        assert_int_equal(after[1].copied_bytes - before[1].copied_bytes, rows[i].to.copied);
        assert_int_equal(after[1].checked_bytes - before[1].checked_bytes, rows[i].to.checked);
    }
    ends_stop_pair(ends);
}

/* Both ends run until the second's transport has refused so many messages. */
static void await_refused(struct end ends[2], uint64_t packets)
{
    const uint64_t limit = ends_now_us() + PATIENCE_US;

    while (transport_zmq.refused(ends[1].transport).packets < packets) {
        assert_true(ends_now_us() < limit);
        ends_turn(ends, ends_now_us() + 10000);
    }
    assert_int_equal(transport_zmq.refused(ends[1].transport).packets, packets);
}

static void send_parts(void *push, const size_t *size, unsigned count)
{
    uint8_t *bytes = calloc(1, BODY);

    assert_non_null(bytes);
    for (unsigned k = 0; k < count; k++) {
        assert_true(zmq_send(push, bytes, size[k], k + 1 < count ? ZMQ_SNDMORE : 0) >= 0);
    }
    free(bytes);
}

/* Both ends run until the monitored socket has lost its connection. */
static void await_cut(struct end ends[2], void *monitor)
{
    const uint64_t limit = ends_now_us() + PATIENCE_US;
    uint8_t event[6];

    while (zmq_recv(monitor, event, sizeof(event), ZMQ_DONTWAIT) < 0) {
        assert_true(ends_now_us() < limit);
        ends_turn(ends, ends_now_us() + 10000);
    }
}

/* The monitor that reports when the socket loses its connection. */
static void *monitor_start(void *zmq, void *socket)
{
    static unsigned number;
    void *monitor = zmq_socket(zmq, ZMQ_PAIR);
    char name[32];

    assert_non_null(monitor);
    (void)snprintf(name, sizeof(name), "inproc://cut-%u", number++);
    assert_int_equal(zmq_socket_monitor(socket, name, ZMQ_EVENT_DISCONNECTED), 0);
    assert_int_equal(zmq_connect(monitor, name), 0);
    return monitor;
}

/* Messages of several parts that are no packet with its body are dropped as a whole. More than two
 * parts also end the connection. */
static void test_other_parts(void **state)
{
    static const size_t two[][2] = {
        {PACKET_HEADER_SIZE, 10}, {PACKET_HEADER_SIZE, 0}, {10, BODY}, {0, 0}};
    static const size_t three[][3] = {{PACKET_HEADER_SIZE, BODY, BODY},
        {PACKET_HEADER_SIZE, BODY, 1}, {PACKET_HEADER_SIZE, 1, BODY}};
    struct end ends[2];
    void *zmq = zmq_ctx_new(), *push;
    uint64_t refused, limit;

    (void)state;
    ends_start_pair(ends);
    push = stranger_start(zmq, ends[1].endpoint);
    for (size_t i = 0; i < sizeof(two) / sizeof(two[0]); i++) {
        send_parts(push, two[i], 2);
    }
    assert_true(zmq_send(push, "", 1, 0) >= 0);
    refused = sizeof(two) / sizeof(two[0]) + 1;
    await_refused(ends, refused);
    stranger_send(push, PACKET_HEADER_SIZE + 1); /* is handed on */
    limit = ends_now_us() + PATIENCE_US;
    while (links_refused(ends[1].links).packets < 1) {
        assert_true(ends_now_us() < limit);
        ends_turn(ends, ends_now_us() + 10000);
    }
    for (size_t i = 0; i < sizeof(three) / sizeof(three[0]); i++) {
        void *monitor;

        (void)zmq_close(push);
        push = stranger_start(zmq, ends[1].endpoint);
        monitor = monitor_start(zmq, push);
        send_parts(push, three[i], 3);
        await_refused(ends, ++refused);
        await_cut(ends, monitor);
        (void)zmq_socket_monitor(push, NULL, 0);
        (void)zmq_close(monitor);
    }
    end_send(&ends[0], 1, LINK_BULK, BODY);
    end_send(&ends[1], 0, LINK_BULK, BODY);
    ends_run_until(ends, 0, 1);
    (void)zmq_close(push);
    (void)zmq_ctx_term(zmq);
    ends_stop_pair(ends);
}

/* A message of very many empty parts is short on the wire. It is dropped in pieces, and peers go on
 * meanwhile. */
static void test_many_parts(void **state)
{
    const size_t count = 300000;
    size_t *size = calloc(count, sizeof(*size));
    struct end ends[2];
    void *zmq = zmq_ctx_new(), *push;

    (void)state;
    assert_non_null(size);
    ends_start_pair(ends);
    push = stranger_start(zmq, ends[1].endpoint);
    send_parts(push, size, (unsigned)count);
    for (uint64_t i = 0; i < 20; i++) {
        end_send(&ends[0], 1, LINK_CONTROL, 10);
        end_send(&ends[1], 0, LINK_CONTROL, 10);
        ends_run_until(ends, i + 1, 0);
    }
    await_refused(ends, 1);
    end_send(&ends[0], 1, LINK_BULK, BODY);
    end_send(&ends[1], 0, LINK_BULK, BODY);
    ends_run_until(ends, 20, 1);
    (void)zmq_close(push);
    (void)zmq_ctx_term(zmq);
    ends_stop_pair(ends);
    free(size);
}

static void test_oversized(void **state)
{
    struct end ends[2];
    void *zmq = zmq_ctx_new(), *push;
    uint64_t limit;

    (void)state;
    ends_start_pair(ends);
    push = stranger_start(zmq, ends[1].endpoint);
    /* As long as allowed: the daemon reads it. */
    stranger_send(push, LINK_HEADER_MAX + TRANSPORT_BODY_MAX);
    limit = ends_now_us() + PATIENCE_US;
    while (links_refused(ends[1].links).packets < 1) {
        assert_true(ends_now_us() < limit);
        ends_turn(ends, ends_now_us() + 10000);
    }
    stranger_send(push, LINK_HEADER_MAX + TRANSPORT_BODY_MAX + 1); /* makes libzmq disconnect */
    limit = ends_now_us() + SECOND_US / 2;
    while (ends_now_us() < limit) {
        ends_turn(ends, limit);
    }
    assert_int_equal(links_refused(ends[1].links).packets, 1);
    end_send(&ends[0], 1, LINK_BULK, LARGE);
    end_send(&ends[1], 0, LINK_BULK, LARGE);
    ends_run_until(ends, 0, 1);
    (void)zmq_close(push);
    (void)zmq_ctx_term(zmq);
    ends_stop_pair(ends);
}

/* Out of descriptors */

static void count_packet(void *context, uint16_t peer, enum link_lane lane, const uint8_t *packet,
    size_t size, struct buffer *body)
{
    unsigned *count = context;

    (void)peer;
    (void)lane;
    (void)packet;
    (void)size;
    (void)body;
    (*count)++;
}

/* Listens with two spare descriptors until a packet comes in. */
static int starving_child(int report)
{
    unsigned count = 0;
    void *starving = end_transport->create(
        &(struct transport_config){.self = 1, .listen = ANY_PORT}, count_packet, &count, NULL);
    int next = dup(report);
    const struct rlimit limit = {(rlim_t)next + 2, (rlim_t)next + 2};

    if (starving == NULL || next < 0 || close(next) != 0 || setrlimit(RLIMIT_NOFILE, &limit) != 0 ||
        write(report, end_transport->endpoint(starving), 64) != 64) {
        return 2;
    }
    for (int i = 0; i < 6000 && count == 0; i++) {
        struct pollfd polled = {.fd = end_transport->descriptor(starving), .events = POLLIN};

        (void)poll(&polled, 1, 10);
        (void)end_transport->pump(starving, 64);
    }
    /* A peer cannot be added now: an error, not a crash. */
    if (add_peer(starving, 2, "tcp://127.0.0.1:1", NULL) == ADTOPK_OK &&
        add_peer(starving, 3, "tcp://127.0.0.1:1", NULL) == ADTOPK_OK) {
        return 3;
    }
    end_transport->destroy(starving);
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

#define NOBODY 65534
#define CANNOT_TELL 77

/* Runs in a scheduling class that only a privileged process may leave. */
static int idle_child(void)
{
    unsigned count = 0;
    void *idle;

    if (geteuid() == 0 && setuid(NOBODY) != 0) {
        return CANNOT_TELL;
    }
    if (sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){.sched_priority = 0}) != 0) {
        return CANNOT_TELL;
    }
    idle = end_transport->create(
        &(struct transport_config){.self = 1, .listen = ANY_PORT}, count_packet, &count, NULL);
    end_transport->destroy(idle);
    return idle != NULL && sched_getscheduler(0) == SCHED_IDLE ? 0 : 2;
}

/* libzmq aborts if its thread may not have the scheduling class that it was given. */
static void test_no_other_scheduling(void **state)
{
    int status = 0;
    pid_t child = fork();

    (void)state;
    if (child == 0) {
        _exit(idle_child());
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == CANNOT_TELL) {
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
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
        assert_null(end_transport->create(&config, count_packet, &count, &err));
        assert_int_equal(err.code, ADTOPK_ERR_ARGUMENT);
        assert_non_null(strstr(err.text, bad[i]));
    }
    config.listen = ANY_PORT;
    first = end_transport->create(&config, count_packet, &count, &err);
    assert_non_null(first);
    config.listen = end_transport->endpoint(first);
    assert_null(end_transport->create(&config, count_packet, &count, &err));
    assert_int_equal(err.code, ADTOPK_ERR_SYSTEM);
    assert_non_null(strstr(err.text, config.listen));
    assert_non_null(strstr(err.text, "in use"));
    assert_int_equal(add_peer(first, 2, "ipc:///tmp/x", &err), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "ipc:///tmp/x"));
    assert_int_equal(add_peer(first, 2, "tcp://127.0.0.1:1", &err), ADTOPK_OK);
    assert_int_equal(add_peer(first, 2, "tcp://127.0.0.1:1", &err), ADTOPK_ERR_ARGUMENT);
    /* No node listens there, and nobody knows node 3: refused, and not kept. */
    assert_false(
        end_transport->send(first, 2, LINK_CONTROL, (const uint8_t *)"x", 1, NULL, 0, NULL));
    assert_false(
        end_transport->send(first, 3, LINK_CONTROL, (const uint8_t *)"x", 1, NULL, 0, NULL));
    assert_false(end_transport->pump(first, 10));
    end_transport->destroy(first);
    end_transport->destroy(NULL);
}

/* Few peers are tried often; of up to 1,000 there are no more tries in a second than of 250. */
static void test_many_peers_are_tried_less(void **state)
{
    (void)state;
    assert_int_equal(socket_retry_ms(0), 250);
    assert_int_equal(socket_retry_ms(250), 250);
    assert_int_equal(socket_retry_ms(600), 600);
    assert_int_equal(socket_retry_ms(100000), 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_other_scheduling),
        cmocka_unit_test(test_errors_name_the_endpoint),
        cmocka_unit_test(test_out_of_descriptors),
        cmocka_unit_test(test_many_peers_are_tried_less),
        cmocka_unit_test(test_small_messages),
        cmocka_unit_test(test_ping_pong),
        cmocka_unit_test(test_large_messages),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_rubbish),
        cmocka_unit_test(test_account),
        cmocka_unit_test(test_bytes_are_given_back),
        cmocka_unit_test(test_signals_between_parts),
        cmocka_unit_test(test_bytes_outlive_peers),
        cmocka_unit_test(test_other_parts),
        cmocka_unit_test(test_many_parts),
        cmocka_unit_test(test_oversized),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
