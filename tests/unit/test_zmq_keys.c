/* The ZeroMQ transport with keys: under CURVE, with bulk in the clear, and while keys change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/zmq_ends.h"

#define LARGE (8U << 20)

static struct keyfile_pair pairs[4];

static int draw_keys(void **state)
{
    (void)state;
    ends_draw_keys(pairs, 4);
    return 0;
}

static void check_clean(const struct end *ends)
{
    ends_check_nothing_resent(ends);
    for (int i = 0; i < 2; i++) {
        struct transport_refused refused = transport_zmq.refused(ends[i].transport);

        if (ends[i].warnings > 0) {
            fail_msg("node %d warns: %s", i, ends[i].warning);
        }
        assert_int_equal(refused.keys + refused.handshakes + refused.tokens + refused.packets, 0);
    }
}

/* Messages of both lanes in both directions, one at a time and many at once. */
static void exchange(struct end *ends)
{
    uint64_t control = ends[0].sent[LINK_CONTROL], bulk = ends[0].sent[LINK_BULK];

    for (uint64_t i = 1; i <= 200; i++) {
        for (uint16_t from = 0; from < 2; from++) {
            end_send(&ends[from], (uint16_t)(1 - from), LINK_CONTROL, i % 150);
            end_send(&ends[from], (uint16_t)(1 - from), LINK_BULK, i % 90);
        }
        ends_run_until(ends, control + i, bulk + i);
    }
    for (uint16_t from = 0; from < 2; from++) {
        end_send(&ends[from], (uint16_t)(1 - from), LINK_BULK, LARGE - from);
        end_send(&ends[from], (uint16_t)(1 - from), LINK_BULK, LARGE + from);
        for (int i = 0; i < 2000; i++) {
            end_send(&ends[from], (uint16_t)(1 - from), LINK_CONTROL, 100);
        }
    }
    ends_run_until(ends, control + 2200, bulk + 202);
}

static void test_curve(void **state)
{
    struct end ends[2];

    (void)state;
    ends_start_keyed(ends, END_PATIENT, pairs, false, false);
    assert_string_equal(transport_zmq.protection(ends[0].transport), "curve");
    exchange(ends);
    check_clean(ends);
    ends_stop_pair(ends);
}

static void test_control_only(void **state)
{
    struct end ends[2];

    (void)state;
    ends_start_keyed(ends, END_PATIENT, pairs, true, true);
    assert_string_equal(transport_zmq.protection(ends[0].transport), "control only");
    exchange(ends);
    check_clean(ends);
    ends_stop_pair(ends);
}

/* Bulk is sent unencrypted only if both ends want it. */
static void test_one_end_wants_more(void **state)
{
    struct end ends[2];

    (void)state;
    ends_start_keyed(ends, END_PATIENT, pairs, true, false);
    exchange(ends);
    check_clean(ends);
    ends_stop_pair(ends);
}

/* After a restart the other side needs a new token. */
static void test_restart(void **state)
{
    struct end ends[2];
    char endpoint[64];

    (void)state;
    ends_start_keyed(ends, END_PATIENT, pairs, true, true);
    exchange(ends);
    for (uint64_t life = 1; life <= 3; life++) {
        struct transport_config config = {.pair = &pairs[1], .bulk_listen = ANY_PORT};

        (void)snprintf(endpoint, sizeof(endpoint), "%s", ends[1].endpoint);
        end_stop(&ends[1]);
        config.listen = endpoint;
        end_start(&ends[1], 1, 300 + life, END_PATIENT, &config);
        end_connect(&ends[1], 0, ends[0].endpoint, pairs[0].public_key);
        while (ends[0].incarnation_seen != 300 + life || ends[1].incarnation_seen != 100) {
            ends_turn(ends, ends_now_us() + SECOND_US);
        }
        end_send(&ends[0], 1, LINK_BULK, LARGE);
        end_send(&ends[1], 0, LINK_BULK, LARGE);
        ends_run_until(ends, 0, 1);
    }
    ends_stop_pair(ends);
}

static enum adtopk_status reload(struct end *ends, uint16_t node, const struct keyfile_pair *own,
    const char *first, const char *second, struct error *err)
{
    const struct transport_peer peer = {.id = (uint16_t)(1 - node), .keys = {first, second}};

    return transport_zmq.reload(ends[node].transport, own, &peer, first != NULL ? 1 : 0, err);
}

static void reload_well(struct end *ends, uint16_t node, const struct keyfile_pair *own,
    const char *first, const char *second)
{
    struct error err = {.code = ADTOPK_OK};

    if (reload(ends, node, own, first, second, &err) != ADTOPK_OK) {
        fail_msg("%s", err.text);
    }
}

/* Sends in both directions. Waits until messages that were lost with a connection have been sent
 * again. */
static void flow(struct end *ends)
{
    uint64_t limit = ends_now_us() + PATIENCE_US;
    uint64_t control = ends[0].sent[LINK_CONTROL], bulk = ends[0].sent[LINK_BULK];

    for (uint16_t from = 0; from < 2; from++) {
        end_send(&ends[from], (uint16_t)(1 - from), LINK_CONTROL, 100);
        end_send(&ends[from], (uint16_t)(1 - from), LINK_BULK, 100000);
    }
    while (ends[0].received[LINK_CONTROL] <= control || ends[0].received[LINK_BULK] <= bulk ||
           ends[1].received[LINK_CONTROL] <= control || ends[1].received[LINK_BULK] <= bulk) {
        assert_true(ends_now_us() < limit);
        ends_turn(ends, limit);
    }
}

/* The steps of the README: the peer learns the new key, the node takes it, the peer forgets the old
 * one. Nothing restarts, and the links keep the same incarnations. */
static void rotate(bool clear)
{
    struct end ends[2];

    ends_start_keyed(ends, END_DAEMON, pairs, clear, clear);
    for (int turn = 0; turn < 2; turn++) {
        const struct keyfile_pair *old = &pairs[turn == 0 ? 1 : 2],
                                  *new = &pairs[turn == 0 ? 2 : 1];

        flow(ends);
        reload_well(ends, 0, &pairs[0], old->public_key, new->public_key);
        flow(ends);
        reload_well(ends, 1, new, pairs[0].public_key, NULL);
        flow(ends);
        reload_well(ends, 0, &pairs[0], new->public_key, NULL);
        flow(ends);
    }
    assert_int_equal(ends[0].ups, 1);
    assert_int_equal(ends[1].ups, 1);
    ends_stop_pair(ends);
}

static void test_rotation(void **state)
{
    (void)state;
    rotate(false);
}

static void test_rotation_with_clear_bulk(void **state)
{
    (void)state;
    rotate(true);
}

static void run_for(struct end *ends, uint64_t duration_us)
{
    uint64_t limit = ends_now_us() + duration_us;

    while (ends_now_us() < limit) {
        ends_turn(ends, limit);
    }
}

/* Without a reload at its own end, node 0 cuts node 1 off. Node 1 comes back when it is allowed
 * again. */
static void removal(bool clear)
{
    struct end ends[2];
    uint64_t limit;

    ends_start_keyed(ends, END_DAEMON, pairs, clear, clear);
    flow(ends);
    reload_well(ends, 0, &pairs[0], NULL, NULL);
    end_send(&ends[1], 0, LINK_CONTROL, 10);
    end_send(&ends[1], 0, LINK_BULK, 10);
    limit = ends_now_us() + PATIENCE_US;
    while (transport_zmq.refused(ends[0].transport).keys == 0) {
        assert_true(ends_now_us() < limit);
        ends_turn(ends, ends_now_us() + 10000);
    }
    run_for(ends, SECOND_US);
    assert_int_equal(ends[0].received[LINK_CONTROL], 1); /* the messages of flow() */
    assert_int_equal(ends[0].received[LINK_BULK], 1);
    assert_non_null(strstr(ends[0].warning, pairs[1].public_key));

    reload_well(ends, 0, &pairs[0], pairs[1].public_key, NULL);
    limit = ends_now_us() + PATIENCE_US;
    while (ends[0].received[LINK_CONTROL] < 2 || ends[0].received[LINK_BULK] < 2) {
        assert_true(ends_now_us() < limit);
        ends_turn(ends, limit);
    }
    ends_stop_pair(ends);
}

static void test_removal(void **state)
{
    (void)state;
    removal(false);
}

static void test_removal_with_clear_bulk(void **state)
{
    (void)state;
    removal(true);
}

static void test_reload_that_changes_nothing(void **state)
{
    struct end ends[2];
    struct error err = {.code = ADTOPK_OK};
    const struct transport_peer stranger = {.id = 7, .keys = {pairs[3].public_key}};

    (void)state;
    ends_start_keyed(ends, END_PATIENT, pairs, false, false);
    reload_well(ends, 0, &pairs[0], pairs[1].public_key, NULL);
    assert_int_equal(reload(ends, 0, &pairs[0], "short", NULL, &err), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "\"short\" is not a key"));
    assert_int_equal(reload(ends, 0, &pairs[0], pairs[1].public_key, pairs[1].public_key, &err),
        ADTOPK_ERR_ARGUMENT);
    assert_int_equal(reload(ends, 0, &pairs[0], pairs[1].public_key, pairs[0].public_key, &err),
        ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "this node's own key"));
    assert_int_equal(transport_zmq.reload(ends[0].transport, &pairs[0], &stranger, 1, &err),
        ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "node 7 is no peer"));
    assert_int_equal(
        transport_zmq.reload(ends[0].transport, NULL, NULL, 0, &err), ADTOPK_ERR_ARGUMENT);
    exchange(ends);
    check_clean(ends); /* no connection was cut */
    ends_stop_pair(ends);
}

/* Node 1 is not the node that node 0 expects, and not the one that it reaches. */
static bool both_refuse(const struct end *ends)
{
    return transport_zmq.refused(ends[1].transport).handshakes > 0 &&
           strstr(ends[1].warned, "encrypted for another key") != NULL &&
           transport_zmq.refused(ends[0].transport).keys > 0 &&
           strstr(ends[0].warned, pairs[1].public_key) != NULL &&
           strstr(ends[0].warned, "node 1 at tcp://127.0.0.1:") != NULL;
}

static void test_wrong_expectations(void **state)
{
    struct end ends[2];
    uint64_t limit = ends_now_us() + PATIENCE_US;

    (void)state;
    for (uint16_t i = 0; i < 2; i++) {
        const struct transport_config config = {.listen = ANY_PORT, .pair = &pairs[i]};

        end_start(&ends[i], i, 100 * (i + 1U), END_DAEMON, &config);
    }
    end_connect(&ends[0], 1, ends[1].endpoint, pairs[3].public_key);
    end_connect(&ends[1], 0, ends[0].endpoint, pairs[0].public_key);
    while (!both_refuse(ends)) {
        assert_true(ends_now_us() < limit);
        ends_turn(ends, ends_now_us() + 10000);
    }
    assert_false(links_is_up(ends[0].links, 1));
    assert_false(links_is_up(ends[1].links, 0));
    ends_stop_pair(ends);
}

static void test_refused_configurations(void **state)
{
    const struct transport_config bulk = {.listen = ANY_PORT, .bulk_listen = ANY_PORT};
    const struct transport_config keyed = {.listen = ANY_PORT, .pair = &pairs[0]};
    struct transport_config config = {
        .listen = ANY_PORT, .pair = &pairs[0], .bulk_listen = "tcp://127.0.0.1"};
    struct transport_peer peer = {.id = 1, .endpoint = "tcp://127.0.0.1:1"};
    struct error err = {.code = ADTOPK_OK};
    void *transport;

    (void)state;
    assert_null(transport_zmq.create(&bulk, NULL, NULL, &err));
    assert_non_null(strstr(err.text, "no keys"));
    assert_null(transport_zmq.create(&config, NULL, NULL, &err));
    assert_non_null(strstr(err.text, "cannot listen on \"tcp://127.0.0.1\""));

    transport = transport_zmq.create(&keyed, NULL, NULL, &err);
    assert_non_null(transport);
    assert_int_equal(transport_zmq.add_peer(transport, &peer, &err), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "node 1 has no key"));
    peer.keys[0] = pairs[0].public_key;
    assert_int_equal(transport_zmq.add_peer(transport, &peer, &err), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "own key"));
    peer.keys[0] = pairs[1].public_key;
    assert_int_equal(transport_zmq.add_peer(transport, &peer, &err), ADTOPK_OK);
    peer.id = 2;
    assert_int_equal(transport_zmq.add_peer(transport, &peer, &err), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "which node 1 has too"));
    transport_zmq.drop_peer(transport, 1);
    assert_int_equal(transport_zmq.add_peer(transport, &peer, &err), ADTOPK_OK);
    peer.id = 1;
    peer.keys[0] = pairs[2].public_key;
    assert_int_equal(transport_zmq.add_peer(transport, &peer, &err), ADTOPK_OK);
    transport_zmq.destroy(transport);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_configurations),
        cmocka_unit_test(test_curve),
        cmocka_unit_test(test_control_only),
        cmocka_unit_test(test_one_end_wants_more),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_wrong_expectations),
        cmocka_unit_test(test_reload_that_changes_nothing),
        cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_rotation_with_clear_bulk),
        cmocka_unit_test(test_removal),
        cmocka_unit_test(test_removal_with_clear_bulk),
    };

    return cmocka_run_group_tests(tests, draw_keys, NULL);
}
