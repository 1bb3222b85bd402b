/*
 * Who sends a message that does not end, by the bytes of real connections. The test is libzmq: it
 * reads what comes, and says when a message is handed over.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/transport/clock.h"
#include "daemon/transport/inflow.h"

#define PIECE 65536u

static struct inflow inflow;
static int listening;

struct visit {
    int sender, receiver;
};

static int scene_begin(void **state)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    char endpoint[64];

    (void)state;
    listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listening, (struct sockaddr *)&address, size) != 0 || listen(listening, 4) != 0 ||
        getsockname(listening, (struct sockaddr *)&address, &size) != 0 ||
        !inflow_open(&inflow, 0)) {
        return 1;
    }
    (void)snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", ntohs(address.sin_port));
    inflow_bound(&inflow, endpoint);
    return 0;
}

static int scene_end(void **state)
{
    (void)state;
    inflow_close(&inflow);
    return close(listening);
}

static bool has_work(int timeout_ms)
{
    struct pollfd descriptor = {.fd = inflow.epoll, .events = POLLIN};

    return poll(&descriptor, 1, timeout_ms) == 1;
}

/* So many bytes come, and as many are read. One lies there since visit_begin(). */
static void visit_bring(const struct visit *visit, size_t bytes)
{
    static uint8_t piece[PIECE];

    for (size_t left = bytes; left > 0;) {
        const ssize_t sent = send(visit->sender, piece, left < PIECE ? left : PIECE, MSG_NOSIGNAL);

        assert_true(sent > 0);
        assert_int_equal(recv(visit->receiver, piece, (size_t)sent, MSG_WAITALL), sent);
        left -= (size_t)sent;
    }
}

/* An owner that wakes a few times: all connections have been looked at. */
static bool look(void)
{
    bool suspects = false;

    for (unsigned wakes = 0; wakes < 4 && has_work(1000); wakes++) {
        suspects = inflow_look(&inflow);
    }
    return suspects;
}

/* The connection has been looked at: what comes from now on counts. */
static struct visit visit_begin(void)
{
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    struct visit visit = {.sender = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};

    assert_int_equal(getsockname(listening, (struct sockaddr *)&address, &size), 0);
    assert_int_equal(connect(visit.sender, (struct sockaddr *)&address, size), 0);
    visit.receiver = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    assert_true(visit.receiver >= 0);
    inflow_add(&inflow, (uint32_t)visit.receiver);
    assert_int_equal(send(visit.sender, "", 1, MSG_NOSIGNAL), 1);
    assert_false(look());
    return visit;
}

static void visit_end(const struct visit *visit)
{
    inflow_remove(&inflow, (uint32_t)visit->receiver);
    (void)close(visit->receiver);
    (void)close(visit->sender);
}

static bool is_cut(const struct visit *visit)
{
    uint8_t byte;

    return send(visit->sender, "", 1, MSG_NOSIGNAL) < 0 ||
           (recv(visit->sender, &byte, 1, MSG_DONTWAIT) == 0);
}

static void test_endless(void **state)
{
    const struct visit endless = visit_begin(), other = visit_begin();
    char who[INFLOW_WHO_SIZE];

    (void)state;
    visit_bring(&endless, INFLOW_MOST);
    assert_false(look());
    visit_bring(&endless, 1);
    assert_true(look());
    assert_false(
        inflow_judge(&inflow, false, who)); /* its message may be there, and not taken yet */
    assert_true(inflow_judge(&inflow, true, who));
    assert_non_null(strstr(who, "127.0.0.1 port "));
    assert_true(is_cut(&endless));
    assert_false(is_cut(&other));
    visit_end(&other);
    visit_end(&endless);
}

/* All messages that libzmq has read are never taken at once, and it has handed over one of every
 * connection. */
static void test_endless_beside_others(void **state)
{
    const struct visit endless = visit_begin(), other = visit_begin();
    char who[INFLOW_WHO_SIZE];

    (void)state;
    visit_bring(&endless, INFLOW_MOST + 1);
    assert_true(look());
    for (unsigned i = 0; i < 20; i++) {
        assert_false(inflow_judge(&inflow, false, who));
        inflow_took(&inflow, other.receiver);
    }
    inflow_took(&inflow, other.receiver);
    assert_true(inflow_judge(&inflow, false, who));
    assert_true(is_cut(&endless));
    assert_false(is_cut(&other));
    visit_end(&other);
    visit_end(&endless);
}

/* A busy owner takes messages late, and never all of them: looks come in between. */
static void test_many_messages(void **state)
{
    const struct visit busy = visit_begin();
    char who[INFLOW_WHO_SIZE];

    (void)state;
    visit_bring(&busy, 4 * INFLOW_MOST);
    assert_true(look());
    for (unsigned i = 0; i < 100; i++) {
        inflow_took(&inflow, busy.receiver);
        visit_bring(&busy, INFLOW_MOST / 2);
        (void)look();
        assert_false(inflow_judge(&inflow, false, who));
    }
    assert_false(is_cut(&busy));
    visit_end(&busy);
}

/* While bytes come a timer wakes the owner, not each connection; when none come, nothing does. */
static void test_rest(void **state)
{
    const struct visit one = visit_begin(), two = visit_begin();
    const uint64_t began = transport_now_us();
    unsigned wakes = 0;
    uint8_t byte;

    (void)state;
    for (; wakes < 20; wakes++) {
        visit_bring(&one, PIECE);
        visit_bring(&two, PIECE);
        inflow_took(&inflow, one.receiver);
        inflow_took(&inflow, two.receiver);
        assert_true(has_work(1000));
        assert_false(inflow_look(&inflow));
    }
    assert_true(transport_now_us() - began >= 18 * INFLOW_REST_US);
    assert_int_equal(recv(one.receiver, &byte, 1, 0), 1);
    assert_int_equal(recv(two.receiver, &byte, 1, 0), 1);
    for (wakes = 0; has_work(100); wakes++) {
        assert_true(wakes < 4);
        assert_false(inflow_look(&inflow));
    }
    assert_int_equal(send(two.sender, "", 1, MSG_NOSIGNAL), 1);
    assert_true(has_work(1000));
    visit_end(&two);
    visit_end(&one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_endless, scene_begin, scene_end),
        cmocka_unit_test_setup_teardown(test_endless_beside_others, scene_begin, scene_end),
        cmocka_unit_test_setup_teardown(test_many_messages, scene_begin, scene_end),
        cmocka_unit_test_setup_teardown(test_rest, scene_begin, scene_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
