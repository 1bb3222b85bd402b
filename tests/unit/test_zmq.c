/* The ZeroMQ transport on loopback, with links on top, driven by poll(). */
#include <setjmp.h>
#include <stdarg.h>
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
#include "daemon/transport/transport.h"
#include "tests/unit/zmq_ends.h"

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
        uint64_t limit = ends_now_us() + 10 * SECOND_US;

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
    limit = ends_now_us() + 10 * SECOND_US;
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
    void *starving = end_transport->create(
        &(struct transport_config){.self = 1, .listen = ANY_PORT}, count_packet, &count, NULL);
    int next = dup(report);
    const struct rlimit limit = {(rlim_t)next + 2, (rlim_t)next + 2};

    if (starving == NULL || next < 0 || close(next) != 0 || setrlimit(RLIMIT_NOFILE, &limit) != 0 ||
        write(report, end_transport->endpoint(starving), 64) != 64) {
        return 2;
    }
    for (int i = 0; i < 1000 && count == 0; i++) {
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
    assert_false(end_transport->send(first, 2, LINK_CONTROL, (const uint8_t *)"x", 1, NULL, 0));
    assert_false(end_transport->send(first, 3, LINK_CONTROL, (const uint8_t *)"x", 1, NULL, 0));
    assert_false(end_transport->pump(first, 10));
    end_transport->destroy(first);
    end_transport->destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_other_scheduling),
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
