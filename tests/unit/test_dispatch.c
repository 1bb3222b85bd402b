/*
 * Control messages, one by one, from a peer that the test plays: the job that each concerns,
 * messages that come too late, and a coordinator's reaction to a refusal.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/inspect.h"
#include "proto/utf8.h"
#include "tests/fuzz/peer_host.h"
#include "tests/host/words.h"

#define OTHER_SESSION 1000u

ProtobufCMessage *__real_codec_unpack(const ProtobufCMessageDescriptor *type, const void *bytes,
    size_t size, size_t limit, struct error *err);
ProtobufCMessage *__wrap_codec_unpack(const ProtobufCMessageDescriptor *type, const void *bytes,
    size_t size, size_t limit, struct error *err);

/* There is no memory to read the next message, which the core does, or the name of its job. */
static bool no_message, no_head;

ProtobufCMessage *__wrap_codec_unpack(const ProtobufCMessageDescriptor *type, const void *bytes,
    size_t size, size_t limit, struct error *err)
{
    if ((no_message && type == &adtopk__peer_message__descriptor) ||
        (no_head && type == &adtopk__peer_head__descriptor)) {
        no_message = false;
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory to read a message");
        return NULL;
    }
    return __real_codec_unpack(type, bytes, size, limit, err);
}

static void send_fail(struct pair *pair)
{
    struct words words;
    Adtopk__PeerFail *fail = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_FAIL);

    fail->status = ADTOPK_ERR_PEER;
    fail->text = (char *)(uintptr_t) "rank 1 is gone";
    fail->node = PEER;
    pair_send_message(pair, &words.message);
    pair_wait(pair, 1000);
}

/* The peer's daemon stops after this many steps. */
static void send_stop(struct pair *pair, uint64_t steps)
{
    struct words words;
    Adtopk__PeerFail *fail = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_FAIL);

    fail->status = ADTOPK_ERR_PEER;
    fail->text = (char *)(uintptr_t) "node 1: its daemon is stopping";
    fail->node = PEER;
    fail->steps_done = steps;
    pair_send_message(pair, &words.message);
    pair_wait(pair, 1000);
}

static void send_state(struct pair *pair, uint32_t view, bool refused)
{
    struct words words;
    Adtopk__PeerState *answer = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_STATE);

    answer->view = view;
    answer->refused = refused;
    answer->fresh = true;
    pair_send_message(pair, &words.message);
    pair_wait(pair, 1000);
}

static void send_prepare(struct pair *pair, uint32_t view)
{
    struct words words;
    Adtopk__PeerPrepare *prepare = words_begin(&words, ADTOPK__PEER_MESSAGE__KIND_PREPARE);
    uint32_t members[2] = {PEER, pair->node};
    uint64_t incarnations[2] = {pair->peer_incarnation, links_incarnation(pair->peer, pair->node)};
    uint64_t jobs[2] = {pair->peer_job, pair->core_job};
    uint32_t ranks[2] = {1, 1};
    uint64_t since[2] = {0, 0};
    Adtopk__PeerView known = ADTOPK__PEER_VIEW__INIT;

    known.view = view - 1;
    known.members = members;
    known.ranks = ranks;
    known.since = since;
    known.n_members = known.n_ranks = known.n_since = known.founders = 2;
    prepare->known = known.view > 0 ? &known : NULL;
    prepare->view = view;
    prepare->members = members;
    prepare->incarnations = incarnations;
    prepare->jobs = jobs;
    prepare->ranks = ranks;
    prepare->run = 7;
    prepare->n_members = prepare->n_incarnations = prepare->n_jobs = prepare->n_ranks = 2;
    pair_send_message(pair, &words.message);
    pair_wait(pair, 1000);
}

static void lose_rank(struct pair *pair, const char *reason)
{
    pair_event(pair, (struct event){.type = EVENT_RANK_LOST, .reason = reason});
    pair->session = 0;
    pair_pump(pair);
}

/* A host whose rank died when the peer had joined its job. */
static void init_after_an_attempt(struct pair *pair)
{
    pair_init(pair, 0, NULL, 0);
    pair_send_join(pair, 0, false);
    pair_wait(pair, 1000);
    lose_rank(pair, "it was killed");
}

/* A failure of the attempt before, to which the peer belonged, does not end this attempt. */
static void test_failure_of_the_attempt_before(void **state)
{
    struct pair pair;

    (void)state;
    init_after_an_attempt(&pair);
    pair_open(&pair);
    assert_int_equal(pair.core_job, 2);
    pair.core_job = 0; /* the peer did not know it when it failed */
    pair.run = 0;
    send_fail(&pair);
    assert_int_not_equal(pair.session, 0);
    pair.peer_job = 2; /* the peer's next attempt fails before it could join */
    send_fail(&pair);
    assert_int_equal(pair.session, 0);
    pair_free(&pair);
}

/* The core does not compare a join of the attempt before, which ended on both nodes, with this
 * attempt. */
static void test_join_of_the_attempt_before(void **state)
{
    struct pair pair;

    (void)state;
    init_after_an_attempt(&pair);
    pair_open(&pair);
    pair.core_job = 0;
    pair.run = 0;
    pair.policy_hash ^= 1; /* the attempt before had another policy */
    pair_send_join(&pair, 0, false);
    pair_wait(&pair, 1000);
    assert_int_not_equal(pair.session, 0);
    pair.peer_job = 2;
    pair_send_join(&pair, 0, false);
    pair_wait(&pair, 1000);
    assert_int_equal(pair.session, 0);
    pair_free(&pair);
}

/* Numbers begin again when the peer's daemon does. */
static void test_failure_after_a_restart(void **state)
{
    struct pair pair;

    (void)state;
    init_after_an_attempt(&pair);
    pair_restart_peer(&pair);
    pair_open(&pair);
    pair.core_job = 0;
    pair.run = 0;
    send_fail(&pair);
    assert_int_equal(pair.session, 0);
    pair_free(&pair);
}

static struct job_info job_named(const struct pair *pair, const char *name)
{
    struct job_info info = {.state = "none"};

    for (uint32_t i = 0; core_job_info(pair->host.core, i, &info); i++) {
        if (strcmp(info.key.name, name) == 0) {
            return info;
        }
    }
    return (struct job_info){.state = "none"};
}

/* Of two coordinators that propose the same number, the member refuses the second and names a
 * higher one. */
static void test_refused_by_a_member(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair, 0, NULL, 0);
    pair_send_join(&pair, 0, false);
    pair_wait(&pair, 1000);
    assert_int_equal(pair.view, 1);
    send_state(&pair, 1, true);
    assert_string_equal(job_named(&pair, "job").state, "prepared");
    assert_int_equal(pair.view, 2);
    send_state(&pair, 2, false);
    assert_string_equal(job_named(&pair, "job").state, "active");
    assert_int_equal(job_named(&pair, "job").view, 2);
    pair_free(&pair);
}

/* The daemon keeps no store, so its job cannot have been in a run to which a peer claims to return.
 */
static void test_refuses_a_claimed_run(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair, 0, NULL, 0);
    pair.forgetful = true;
    pair_restart_core(&pair);
    pair.run = 7;
    pair_send_join(&pair, 0, false);
    pair_wait(&pair, 1000);
    assert_string_equal(job_named(&pair, "job").state, "forming");
    assert_string_equal(pair.failure,
        "job 'job', run '1', begins on node 0, which cannot return to "
        "an earlier run of it; use another run id");
    pair.run = 0;
    pair_send_join(&pair, 0, false);
    pair_wait(&pair, 1000);
    assert_string_equal(job_named(&pair, "job").state, "prepared");
    assert_int_not_equal(pair.run, 7);
    pair_free(&pair);
}

static void test_refuses_a_second_coordinator(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair, 2, NULL, 0);
    pair_send_join(&pair, 0, false);
    send_prepare(&pair, 1);
    assert_int_equal(pair.view, 1);
    assert_false(pair.refused);
    send_prepare(&pair, 1);
    assert_int_equal(pair.view, 1);
    assert_true(pair.refused);
    pair_free(&pair);
}

static void take_step(struct pair *pair, uint64_t step)
{
    for (uint32_t t = 0; t < HOST_TENSORS; t++) {
        pair_event(
            pair, (struct event){.type = EVENT_RANK_PUSH, .step = {.tensor = t, .number = step}});
    }
    pair_event(
        pair, (struct event){.type = EVENT_RANK_STEP_END, .step = {.tensor = 0, .number = step}});
    pair_wait(pair, 1000);
}

/* A job ends at the earliest step after which a member wants to stop. */
static void test_a_sooner_stop(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair, 0, NULL, REFLEX_FRAME);
    pair_send_join(&pair, 0, false);
    pair_wait(&pair, 1000);
    send_state(&pair, 1, false);
    take_step(&pair, 0);
    send_stop(&pair, UINT64_MAX);
    send_stop(&pair, 3);
    send_stop(&pair, 2);
    send_stop(&pair, 4);
    assert_string_equal(job_named(&pair, "job").state, "active");
    take_step(&pair, 1);
    assert_string_equal(job_named(&pair, "job").state, "none");
    pair_free(&pair);
}

/* Proposes a change of the policy and calls it off at once. */
static void propose_in_vain(struct pair *pair, uint32_t attempt)
{
    Adtopk__PeerPolicy policy = ADTOPK__PEER_POLICY__INIT;
    struct words words;

    policy.version = 1;
    policy.step = pair->step + 2;
    policy.text = (char *)(uintptr_t) "{\"density\":0.02}";
    words_policy(
        &words, &(struct words_of_policy){.part = 1, .policy = &policy, .attempt = attempt});
    pair_send_message(pair, &words.message);
    words_policy(&words, &(struct words_of_policy){.part = 3,
                             .version = 1,
                             .status = ADTOPK_ERR_STATE,
                             .node = PEER,
                             .text = (char *)(uintptr_t) "it is off"});
    pair_send_message(pair, &words.message);
    pair_wait(pair, 1000);
}

/* A plan that is no longer wanted takes memory until the worker has made it. */
static void test_proposals_in_vain(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair, 2, NULL, REFLEX_COMMIT);
    pair_send_join(&pair, 0, false);
    send_prepare(&pair, 1);
    assert_string_equal(job_named(&pair, "job").state, "active");
    pair.host.hold = true;
    for (uint32_t i = 1; i <= 32; i++) {
        propose_in_vain(&pair, i);
    }
    assert_in_range(pair.host.helds, 1, 8);
    host_compute(&pair.host);
    pair.host.hold = false;
    propose_in_vain(&pair, 33);
    assert_int_equal(pair.host.helds, 0);
    assert_string_equal(job_named(&pair, "job").state, "active");
    pair_free(&pair);
}

/* While nodes agree on another view, a rank that is between two steps reads its residual. The
 * agreement may take as long as a node is away. */
static void test_reading_in_a_view_change(void **state)
{
    float values[4];
    struct event read = {.type = EVENT_RANK_READ, .read = {0, 0, 4, values}};
    struct pair pair;

    (void)state;
    pair_init(&pair, 2, NULL, REFLEX_COMMIT);
    pair_send_join(&pair, 0, false);
    send_prepare(&pair, 1);
    assert_string_equal(job_named(&pair, "job").state, "active");
    pair.reflexes = 0;
    send_prepare(&pair, 2);
    assert_string_equal(job_named(&pair, "job").state, "prepared");
    read.session = pair.session;
    assert_int_equal(host_event(&pair.host, read), ADTOPK_OK);
    pair_free(&pair);
}

/* Opens a rank of a second job, which begins to form beside the host's. */
static void open_other(struct pair *pair)
{
    pair_event(pair,
        (struct event){.type = EVENT_RANK_OPEN,
            .session = OTHER_SESSION,
            .open = {
                .key = {.owner = 1, .name = "other", .run_id = "1"}, .rank = 0, .world_size = 2}});
    assert_string_equal(job_named(pair, "other").state, "forming");
}

/* If there is no memory to read a message, the job that it names ends, and no other job. */
static void test_no_memory_for_a_message(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair, 0, NULL, 0);
    open_other(&pair);
    no_message = true;
    pair_send_join(&pair, 0, false);
    pair_wait(&pair, 1000);
    assert_string_equal(job_named(&pair, "job").state, "none");
    assert_string_equal(job_named(&pair, "other").state, "forming");
    pair_free(&pair);
}

/* There is not even memory to read which job a message concerns. */
static void test_no_memory_for_a_name(void **state)
{
    struct pair pair;

    (void)state;
    pair_init(&pair, 0, NULL, 0);
    open_other(&pair);
    no_message = no_head = true;
    pair_send_join(&pair, 0, false);
    pair_wait(&pair, 1000);
    no_head = false;
    assert_string_equal(job_named(&pair, "job").state, "none");
    assert_string_equal(job_named(&pair, "other").state, "none");
    pair_free(&pair);
}

/* A reason with characters of two bytes. The longest sentence ends in the middle of one. */
static void test_long_reason(void **state)
{
    char reason[300], fault[UTF8_FAULT_SIZE];
    struct pair pair;

    (void)state;
    for (size_t i = 0; i + 2 < sizeof(reason); i += 2) {
        (void)memcpy(reason + i, "\xC3\xBC", 3);
    }
    for (unsigned shift = 0; shift < 2; shift++) {
        pair_init(&pair, 0, NULL, 0);
        reason[0] = shift == 0 ? '\xC3' : 'x';
        reason[1] = shift == 0 ? '\xBC' : 'x';
        lose_rank(&pair, reason + shift);
        assert_non_null(strstr(pair.failure, "rank 0 is gone: "));
        assert_false(utf8_name_fault(pair.failure, fault));
        pair_free(&pair);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failure_of_the_attempt_before),
        cmocka_unit_test(test_join_of_the_attempt_before),
        cmocka_unit_test(test_failure_after_a_restart),
        cmocka_unit_test(test_refused_by_a_member),
        cmocka_unit_test(test_refuses_a_claimed_run),
        cmocka_unit_test(test_refuses_a_second_coordinator),
        cmocka_unit_test(test_a_sooner_stop),
        cmocka_unit_test(test_proposals_in_vain),
        cmocka_unit_test(test_reading_in_a_view_change),
        cmocka_unit_test(test_no_memory_for_a_message),
        cmocka_unit_test(test_no_memory_for_a_name),
        cmocka_unit_test(test_long_reason),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
