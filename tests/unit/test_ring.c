/* The ring and the sleep words, under load from two threads. Everything arrives once and in order,
 * and every sleeper is woken. Also runs under the thread sanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/src/ring.h"
#include "daemon/local/ring.h"

#define ENTRIES 50000u
#define LOST_WAKE_MS 30000 /* sleeping for longer than this means that a wake-up was lost */

struct pair {
    struct local_ring *ring;
    struct local_page *page;
    struct ring_writer writer;
    struct ring_reader reader;
    int socket[2]; /* 0: the client's, 1: the daemon's */
    /* The daemon's observations, read after the thread has ended. */
    uint64_t received, wrong, lost_wakes, sleeps;
};

static int pair_setup(void **state)
{
    struct pair *pair = calloc(1, sizeof *pair);

    *state = pair;
    if (pair == NULL || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair->socket) != 0) {
        return -1;
    }
    pair->ring = aligned_alloc(64, sizeof *pair->ring);
    pair->page = aligned_alloc(64, sizeof *pair->page);
    if (pair->ring == NULL || pair->page == NULL) {
        return -1;
    }
    *pair->ring = (struct local_ring){0};
    *pair->page = (struct local_page){0};
    pair->writer = (struct ring_writer){.ring = pair->ring, .page = pair->page};
    pair->reader = (struct ring_reader){.ring = pair->ring, .page = pair->page};
    return 0;
}

static int pair_teardown(void **state)
{
    struct pair *pair = *state;

    (void)close(pair->socket[0]);
    (void)close(pair->socket[1]);
    free(pair->ring);
    free(pair->page);
    free(pair);
    return 0;
}

static void wake(int socket)
{
    const char byte = LOCAL_WAKE;

    (void)send(socket, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Sleeps until a wake-up comes; false if none did. */
static bool doze(int socket)
{
    struct pollfd readable = {.fd = socket, .events = POLLIN};
    char byte;

    if (poll(&readable, 1, LOST_WAKE_MS) != 1) {
        return false;
    }
    while (recv(socket, &byte, 1, MSG_DONTWAIT) == 1) {
    }
    return true;
}

/* The daemon: takes every entry, writes progress to steps_done, and sleeps whenever it is idle. */
static void *consume(void *argument)
{
    struct pair *pair = argument;
    struct local_entry entry;
    struct error err;

    while (pair->received < ENTRIES && pair->wrong == 0 && pair->lost_wakes == 0) {
        const int got = ring_reader_take(&pair->reader, &entry, &err);

        if (got > 0) {
            pair->wrong += entry.number != pair->received || entry.type != LOCAL_PUSH ||
                           entry.tensor != (uint32_t)(pair->received * 7);
            pair->received++;
            ring_reader_publish(&pair->reader);
            atomic_store(&pair->page->steps_done, pair->received);
            if (ring_reader_must_wake(&pair->reader)) {
                wake(pair->socket[1]);
            }
            continue;
        }
        pair->wrong += got < 0;
        ring_reader_sleep(&pair->reader);
        if (!ring_reader_pending(&pair->reader)) {
            pair->sleeps++;
            pair->lost_wakes += !doze(pair->socket[1]);
        }
        ring_reader_awake(&pair->reader);
    }
    return NULL;
}

/* Waits until the daemon has consumed `wanted` entries; false if a wake-up was lost. */
static bool await(struct pair *pair, uint64_t wanted)
{
    bool woken = true;

    while (woken && atomic_load(&pair->page->steps_done) < wanted) {
        ring_writer_sleep(&pair->writer);
        if (atomic_load(&pair->page->steps_done) < wanted) {
            woken = doze(pair->socket[0]);
        }
        ring_writer_awake(&pair->writer);
    }
    return woken;
}

/* Submits in bursts. With 1 both sides sleep all the time; a burst longer than the ring fills it.
 */
static void hammer(struct pair *pair, uint64_t burst)
{
    uint64_t sent = 0;
    bool woken = true;
    pthread_t daemon;

    assert_int_equal(pthread_create(&daemon, NULL, consume, pair), 0);
    while (sent < ENTRIES && woken) {
        for (uint64_t i = 0; i < burst && sent < ENTRIES && woken; i++, sent++) {
            const struct local_entry entry = {
                .type = LOCAL_PUSH, .tensor = (uint32_t)(sent * 7), .number = sent};

            if (!ring_writer_has_room(&pair->writer)) {
                woken = await(pair, sent - LOCAL_RING_ENTRIES / 2);
            }
            ring_writer_put(&pair->writer, &entry);
            if (ring_writer_must_wake(&pair->writer)) {
                wake(pair->socket[0]);
            }
        }
        woken = woken && await(pair, sent);
    }
    assert_int_equal(pthread_join(daemon, NULL), 0);
    assert_true(woken);
    assert_int_equal(pair->lost_wakes, 0);
    assert_int_equal(pair->wrong, 0);
    assert_int_equal(pair->received, ENTRIES);
    assert_true(pair->sleeps > 0);
}

static void test_one_by_one(void **state)
{
    hammer(*state, 1);
}

static void test_bursts(void **state)
{
    hammer(*state, 37);
}

static void test_full(void **state)
{
    hammer(*state, 5 * LOCAL_RING_ENTRIES);
}

static void test_one_wake_a_sleep(void **state)
{
    struct pair *pair = *state;

    assert_false(ring_reader_must_wake(&pair->reader));
    for (int i = 0; i < 3; i++) {
        ring_writer_sleep(&pair->writer);
        assert_true(ring_reader_must_wake(&pair->reader));
        assert_false(ring_reader_must_wake(&pair->reader));
        ring_writer_awake(&pair->writer);
        assert_false(ring_reader_must_wake(&pair->reader));
        ring_reader_sleep(&pair->reader);
        assert_true(ring_writer_must_wake(&pair->writer));
        assert_false(ring_writer_must_wake(&pair->writer));
        ring_reader_awake(&pair->reader);
        assert_false(ring_writer_must_wake(&pair->writer));
    }
    pair->writer.sleep = UINT32_MAX; /* the number of a sleep is never 0 */
    ring_writer_sleep(&pair->writer);
    assert_true(ring_reader_must_wake(&pair->reader));
}

static void test_jumped_index(void **state)
{
    static const uint64_t wrong[] = {LOCAL_RING_ENTRIES + 3, UINT64_MAX, UINT64_MAX / 2, 0, 1};
    struct pair *pair = *state;
    struct local_entry entry = {.type = LOCAL_PUSH};
    struct error err;

    for (int i = 0; i < 2; i++) {
        ring_writer_put(&pair->writer, &entry);
        assert_int_equal(ring_reader_take(&pair->reader, &entry, &err), 1);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        atomic_store(&pair->ring->tail, wrong[i]);
        assert_int_equal(ring_reader_take(&pair->reader, &entry, &err), -1);
        assert_int_equal(err.code, ADTOPK_ERR_PROTOCOL);
    }
    atomic_store(&pair->ring->tail, 2 + LOCAL_RING_ENTRIES); /* a full ring is valid */
    for (unsigned i = 0; i < LOCAL_RING_ENTRIES; i++) {
        assert_int_equal(ring_reader_take(&pair->reader, &entry, &err), 1);
    }
    assert_int_equal(ring_reader_take(&pair->reader, &entry, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_wake_a_sleep, pair_setup, pair_teardown),
        cmocka_unit_test_setup_teardown(test_jumped_index, pair_setup, pair_teardown),
        cmocka_unit_test_setup_teardown(test_one_by_one, pair_setup, pair_teardown),
        cmocka_unit_test_setup_teardown(test_bursts, pair_setup, pair_teardown),
        cmocka_unit_test_setup_teardown(test_full, pair_setup, pair_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
