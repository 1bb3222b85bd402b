/*
 * The rules by which a node comes to know others.
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

static const char *const keys[] = {"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7",
    "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"};
static const char *const other_key = "1111111111111111111111111111111111111111";

static void set_peer(struct config_peer *peer, uint16_t node, const char *endpoint)
{
    *peer = (struct config_peer){.node = node};
    (void)snprintf(peer->endpoint, sizeof(peer->endpoint), "%s", endpoint);
    (void)snprintf(peer->keys[0], sizeof(peer->keys[0]), "%s", keys[node]);
}

static void test_too_many(void **state)
{
    struct known *known = calloc(1, sizeof(*known));
    struct config config = {.node = 0, .insecure = true};
    struct config_peer peer = {.endpoint = "tcp://10.0.0.1:7400"};
    struct error err;

    (void)state;
    assert_non_null(known);
    known_configure(known, &config, "");
    for (uint16_t n = 1; n <= CORE_MAX_NODES; n++) {
        peer.node = n;
        assert_int_equal(known_hear_node(known, 7, &peer, false, &err), ADTOPK_OK);
    }
    peer.node = CORE_MAX_NODES + 1;
    assert_int_equal(known_hear_node(known, 7, &peer, false, &err), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "one too many: at most 1024"));
    config.peers = &peer;
    config.peer_count = 1;
    assert_int_equal(known_check(known, &config, &err), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "1025 nodes, with those that seeds have introduced"));
    peer.node = 5;
    assert_int_equal(known_check(known, &config, &err), ADTOPK_OK);
    free(known);
}

/* Without keys nothing leads beyond this machine, unless `insecure` says so. */
static void test_exposure(void **state)
{
    struct known *known = calloc(1, sizeof(*known));
    struct config config = {.node = 0};
    struct config_peer peer = {.node = 1, .endpoint = "tcp://10.0.0.1:7400"};
    struct error err;

    (void)state;
    assert_non_null(known);
    known_configure(known, &config, "");
    assert_int_equal(known_hear_node(known, 7, &peer, false, &err), ADTOPK_ERR_DENIED);
    assert_non_null(strstr(err.text, "leads beyond this machine"));
    config.insecure = true;
    known_configure(known, &config, "");
    assert_int_equal(known_hear_node(known, 7, &peer, false, &err), ADTOPK_OK);
    free(known);
}

/* The configuration's word counts for more than a seed's. */
static void test_configuration_counts(void **state)
{
    struct known *known = calloc(1, sizeof(*known));
    struct config_peer peers[2];
    struct config config = {.node = 0, .peers = peers, .peer_count = 1};
    struct config_peer said;
    struct error err;

    (void)state;
    assert_non_null(known);
    set_peer(&peers[0], 1, "tcp://10.0.0.1:7400");
    known_configure(known, &config, keys[0]);
    set_peer(&said, 1, "tcp://10.0.0.11:7400");
    assert_int_equal(known_hear_node(known, 7, &said, false, &err), ADTOPK_OK);
    assert_string_equal(known->node[0].next, "");
    memcpy(said.keys[1], other_key, KEYFILE_KEY_SIZE);
    assert_int_equal(known_hear_node(known, 7, &said, false, &err), ADTOPK_OK);
    assert_string_equal(known->node[0].peer.keys[1], "");

    set_peer(&said, 2, "tcp://10.0.0.2:7400"); /* learned, and then configured */
    assert_int_equal(known_hear_node(known, 7, &said, false, &err), ADTOPK_OK);
    assert_int_equal(known_find(known, 2)->origin, KNOWN_LEARNED);
    set_peer(&peers[1], 2, "tcp://10.0.0.22:7400");
    config.peer_count = 2;
    known_configure(known, &config, keys[0]);
    assert_int_equal(known->count, 2);
    assert_int_equal(known_find(known, 2)->origin, KNOWN_CONFIGURED);
    assert_string_equal(known_find(known, 2)->next, "tcp://10.0.0.22:7400");
    free(known);
}

/* The operator gives the key of a learned node to another number. */
static void test_learned_key(void **state)
{
    struct known *known = calloc(1, sizeof(*known));
    struct config_peer peers[2], said;
    struct config config = {.node = 0, .peers = peers};
    struct error err;

    (void)state;
    assert_non_null(known);
    known_configure(known, &config, keys[0]);
    set_peer(&said, 2, "tcp://10.0.0.2:7400");
    assert_int_equal(known_hear_node(known, 7, &said, false, &err), ADTOPK_OK);
    peers[0] = said;
    peers[0].node = 1;
    config.peer_count = 1;
    assert_int_equal(known_check(known, &config, &err), ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "peer 1 has the key of node 2, which node 7, a seed, has "
                                     "introduced: restart this daemon"));
    set_peer(&peers[1], 2, "tcp://10.0.0.2:7400"); /* the configuration has another for node 2 */
    memcpy(peers[1].keys[0], other_key, KEYFILE_KEY_SIZE);
    config.peer_count = 2;
    assert_int_equal(known_check(known, &config, &err), ADTOPK_OK);
    free(known);
}

/* A node that joins tells an address: a name would have to be looked up. Seeds may tell names. */
static void test_names(void **state)
{
    struct known *known = calloc(1, sizeof(*known));
    struct config_peer peer, said;
    struct config config = {.node = 0, .peers = &peer, .peer_count = 1};
    struct error err;

    (void)state;
    assert_non_null(known);
    set_peer(&peer, 1, "");
    known_configure(known, &config, keys[0]);
    assert_int_equal(
        known_hear_endpoint(known, &known->node[0], "tcp://a.example:7400", false, &err),
        ADTOPK_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "tcp://a.example:7400 has a name"));
    assert_int_equal(
        known_hear_endpoint(known, &known->node[0], "tcp://[fd00::1]:7400", false, &err),
        ADTOPK_OK);
    assert_string_equal(known->node[0].next, "tcp://[fd00::1]:7400");
    set_peer(&said, 2, "tcp://b.example:7400");
    assert_int_equal(known_hear_node(known, 7, &said, false, &err), ADTOPK_OK);
    free(known);
}

/* A node that is named as a seed again is asked anew: its list may have changed meanwhile. */
static void test_seed_again(void **state)
{
    struct known *known = calloc(1, sizeof(*known));
    struct config_peer peer;

    (void)state;
    assert_non_null(known);
    set_peer(&peer, 1, "tcp://10.0.0.1:7400");
    peer.seed = true;
    known_configure_node(known, &peer)->told_by = 7;
    assert_int_equal(known_configure_node(known, &peer)->told_by, 7);
    peer.seed = false;
    (void)known_configure_node(known, &peer);
    peer.seed = true;
    assert_int_equal(known_configure_node(known, &peer)->told_by, 0);
    free(known);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_exposure),
        cmocka_unit_test(test_configuration_counts),
        cmocka_unit_test(test_learned_key),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_seed_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
