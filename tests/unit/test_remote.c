/* Remote sessions and clients that say what they should not: each is refused with a sentence, and
 * the session beside goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "proto/keyfile.h"
#include "proto/remote.h"
#include "remote_host.h"

#define NUMEL 1000u

static struct remote_host host;
static struct raw_trainer bystander;
static uint64_t bystander_step;
static float ones[NUMEL];

static struct remote_stats stats(void)
{
    struct remote_stats found;

    remote_stats(host.remote, &found);
    return found;
}

static int start(void **state)
{
    (void)state;
    for (unsigned i = 0; i < NUMEL; i++) {
        ones[i] = 1;
    }
    remote_host_start(&host, (struct remote_config){.owner = 7, .max_sessions = 8});
    raw_open(&bystander, &host, NULL, NULL, NULL);
    raw_join(&bystander, "bystander", 1, NUMEL);
    bystander_step = 0;
    return 0;
}

/* One step, whose update is the gradient. */
static void take_step(struct raw_trainer *raw, uint64_t step)
{
    const Adtopk__RemoteReply *reply;

    raw_push(raw, 0, step, 0, ones, sizeof ones);
    raw_step_end(raw, step);
    reply = raw_receive(raw, 5000);
    assert_non_null(reply);
    assert_int_equal(reply->kind_case, ADTOPK__REMOTE_REPLY__KIND_UPDATE);
    assert_int_equal(reply->update->span, NUMEL);
    assert_int_equal(raw->part_size, sizeof ones);
    assert_memory_equal(raw->part, ones, sizeof ones);
    reply = raw_receive(raw, 5000);
    assert_non_null(reply);
    assert_int_equal(reply->kind_case, ADTOPK__REMOTE_REPLY__KIND_STEP);
    assert_int_equal(reply->step->number, step);
}

static int stop(void **state)
{
    (void)state;
    take_step(&bystander, bystander_step);
    raw_close(&bystander);
    remote_host_run(&host, 50);
    remote_host_stop(&host);
    return 0;
}

/* Joined, and about to do something wrong. */
static void join(struct raw_trainer *raw)
{
    raw_open(raw, &host, NULL, NULL, NULL);
    raw_join(raw, "job", 2, NUMEL);
}

static void assert_refused(struct raw_trainer *raw, const char *words)
{
    raw_expect_error(raw, ADTOPK_ERR_PROTOCOL, words);
    remote_host_run(&host, 20);
    assert_int_equal(stats().protocol_errors, 1);
    assert_int_equal(stats().sessions, 1); /* the bystander */
    raw_close(raw);
}

/* ---- pushes ---- */

static void test_push_twice(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_push(&raw, 1, 0, 0, ones, sizeof ones);
    assert_non_null(raw_receive(&raw, 5000));
    raw_push(&raw, 1, 0, 0, ones, sizeof ones);
    assert_refused(&raw, "tensor 1 was pushed twice in step 0");
}

static void test_push_beyond_the_tensor(void **state)
{
    struct raw_trainer raw;
    uint8_t bytes[4 * NUMEL + 1] = {0};

    (void)state;
    join(&raw);
    raw_push(&raw, 0, 0, 0, bytes, sizeof bytes);
    assert_refused(&raw, "a piece of 4001 bytes at 0 of tensor 0, which has 4000");
}

static void test_push_out_of_order(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_push(&raw, 0, 0, UINT64_MAX - 3, ones, 8);
    assert_refused(&raw, "come next");
}

static void test_push_interleaved(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_push(&raw, 0, 0, 0, ones, 8);
    raw_push(&raw, 1, 0, 8, ones, 8);
    assert_refused(&raw, "from 8 on of tensor 0 come next");
}

static void test_push_nothing(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_push(&raw, 0, 0, 0, NULL, 0);
    assert_refused(&raw, "a piece of 0 bytes");
}

static void test_push_unknown_tensor(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_push(&raw, 2, 0, 0, ones, 8);
    assert_refused(&raw, "a push of tensor 2, and there are 2");
}

static void test_push_in_another_step(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_push(&raw, 0, 1, 0, ones, 8);
    assert_refused(&raw, "step 0 is open");
}

static void test_push_after_the_end(void **state)
{
    struct raw_trainer raw;

    (void)state;
    raw_open(&raw, &host, NULL, NULL, NULL);
    raw_join(&raw, "silent", 2, NUMEL);
    raw_step_end(&raw, 0);
    raw_push(&raw, 0, 0, 0, ones, 8);
    assert_refused(&raw, "step 0 is ended");
}

static void test_end_in_a_push(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_push(&raw, 0, 0, 0, ones, 8);
    raw_step_end(&raw, 0);
    assert_refused(&raw, "in the middle of a push of tensor 0");
}

static void test_push_before_ready(void **state)
{
    struct raw_trainer raw;

    (void)state;
    raw_open(&raw, &host, NULL, NULL, NULL);
    raw_open_request(&raw, "job", REMOTE_VERSION);
    assert_non_null(raw_receive(&raw, 5000));
    raw_register(&raw, 1, NUMEL, 2);
    raw_push(&raw, 0, 0, 0, ones, 8);
    assert_refused(&raw, "came in state 0");
}

/* ---- operations ---- */

static void send_op(struct raw_trainer *raw, uint32_t kind, uint32_t size, size_t part)
{
    Adtopk__RemoteOp op = ADTOPK__REMOTE_OP__INIT;
    Adtopk__RemoteRequest message = ADTOPK__REMOTE_REQUEST__INIT;

    op.kind = kind;
    op.size = size;
    message.kind_case = ADTOPK__REMOTE_REQUEST__KIND_OP;
    message.op = &op;
    raw_send(raw, &message, ones, part);
}

static void test_op(void **state)
{
    struct raw_trainer raw;
    const Adtopk__RemoteReply *reply;

    (void)state;
    join(&raw);
    send_op(&raw, 2, 400, 400);
    reply = raw_receive(&raw, 5000);
    assert_non_null(reply);
    assert_int_equal(reply->kind_case, ADTOPK__REMOTE_REPLY__KIND_OP_DONE);
    assert_int_equal(raw.part_size, 400);
    assert_memory_equal(raw.part, ones, 400);
    raw_close(&raw);
}

static void test_op_of_another_size(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    send_op(&raw, 2, 400, 396);
    assert_refused(&raw, "operation 2 with 400 bytes, 396 of them here");
}

static void test_op_too_large(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    send_op(&raw, 1, CORE_OP_SIZE + 1, 4);
    assert_refused(&raw, "operation 1 with 1048577 bytes");
}

static void test_unknown_op(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    send_op(&raw, 3, 0, 0);
    assert_refused(&raw, "operation 3");
}

/* ---- messages ---- */

static void test_lost_message(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw.sent++;
    raw_step_end(&raw, 0);
    assert_refused(&raw, "message 7 came after message 5");
}

static void test_acknowledges_too_much(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw.received += 100;
    raw_step_end(&raw, 0);
    raw.received -= 100;
    assert_refused(&raw, "message 103 was taken");
}

static void test_malformed(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_send_parts(&raw, 1, 100);
    assert_refused(&raw, "message");
}

static void test_too_many_parts(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_send_parts(&raw, 1000, 10);
    assert_refused(&raw, "too many parts");
}

static void test_unwanted_part(void **state)
{
    struct raw_trainer raw;
    Adtopk__RemoteStepEnd end = ADTOPK__REMOTE_STEP_END__INIT;
    Adtopk__RemoteRequest message = ADTOPK__REMOTE_REQUEST__INIT;

    (void)state;
    join(&raw);
    message.kind_case = ADTOPK__REMOTE_REQUEST__KIND_STEP_END;
    message.step_end = &end;
    raw_send(&raw, &message, ones, 40);
    assert_refused(&raw, "came with a part of 40 bytes");
}

static void test_open_twice(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_open_request(&raw, "job", REMOTE_VERSION);
    assert_refused(&raw, "request 1 came in state 3");
}

static void test_commit_twice(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_request(&raw, ADTOPK__LOCAL_REQUEST__KIND_COMMIT);
    assert_refused(&raw, "request 3 came in state 3");
}

/* A message over the limit: libzmq ends the connection, which ends the session. */
static void test_too_long(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_send_parts(&raw, 1, REMOTE_OP_SIZE + 1);
    remote_host_run(&host, 500);
    assert_int_equal(stats().lost, 1);
    assert_int_equal(stats().sessions, 1);
    raw_close(&raw);
}

/* ---- opening ---- */

static void test_other_version(void **state)
{
    struct raw_trainer raw;

    (void)state;
    raw_open(&raw, &host, NULL, NULL, NULL);
    raw_open_request(&raw, "job", 99);
    raw_expect_error(&raw, ADTOPK_ERR_PROTOCOL, "version 99");
    raw_close(&raw);
}

static void test_refused_by_the_core(void **state)
{
    struct raw_trainer raw;

    (void)state;
    raw_open(&raw, &host, NULL, NULL, NULL);
    raw_open_request(&raw, "refused", REMOTE_VERSION);
    raw_expect_error(&raw, ADTOPK_ERR_DENIED, "refused");
    raw_close(&raw);
}

static void test_something_else_first(void **state)
{
    struct raw_trainer raw;

    (void)state;
    raw_open(&raw, &host, NULL, NULL, NULL);
    raw_step_end(&raw, 0);
    raw_send_parts(&raw, 3, 1000);
    assert_null(raw_receive(&raw, 200));
    assert_int_equal(stats().strays, 2);
    assert_int_equal(stats().sessions, 1);
    raw_close(&raw);
}

/* Six of eight sessions are a user's share, and the bystander has one of them. */
static void test_share(void **state)
{
    struct raw_trainer raw[6];

    (void)state;
    for (unsigned i = 0; i < 6; i++) {
        raw_open(&raw[i], &host, NULL, NULL, NULL);
        raw_open_request(&raw[i], "job", REMOTE_VERSION);
        if (i < 5) {
            assert_non_null(raw_receive(&raw[i], 5000));
        }
    }
    raw_expect_error(&raw[5], ADTOPK_ERR_DENIED, "6 remote trainers, 6 of them yours");
    assert_int_equal(stats().refused, 1);
    for (unsigned i = 0; i < 6; i++) {
        raw_close(&raw[i]);
    }
}

static void test_memory(void **state)
{
    struct raw_trainer raw;
    const Adtopk__RemoteReply *reply;

    (void)state;
    raw_open(&raw, &host, NULL, NULL, NULL);
    raw_open_request(&raw, "job", REMOTE_VERSION);
    assert_non_null(raw_receive(&raw, 5000));
    raw_register(&raw, 3, UINT64_C(1) << 44, 2);
    raw_request(&raw, ADTOPK__LOCAL_REQUEST__KIND_COMMIT);
    reply = raw_receive(&raw, 5000);
    assert_non_null(reply);
    assert_int_equal(reply->reply->kind_case, ADTOPK__LOCAL_REPLY__KIND_ERROR);
    assert_int_equal(reply->reply->error->status, ADTOPK_ERR_MEMORY);
    assert_false(reply->reply->error->final);
    raw_close(&raw);
}

/* ---- routing ids ---- */

/* While a connection lives nobody else gets its routing id. */
static void test_duplicate_route(void **state)
{
    struct raw_trainer first, second;

    (void)state;
    raw_open(&first, &host, "trainer", NULL, NULL);
    raw_join(&first, "job", 1, NUMEL);
    raw_open(&second, &host, "trainer", NULL, NULL);
    raw_open_request(&second, "other", REMOTE_VERSION);
    assert_null(raw_receive(&second, 300));
    take_step(&first, 0);
    assert_int_equal(stats().sessions, 2);
    raw_close(&second);
    raw_close(&first);
}

/* A new connection under an old routing id does not go on with the session. */
static void test_route_again(void **state)
{
    struct raw_trainer first, second;

    (void)state;
    raw_open(&first, &host, "trainer", NULL, NULL);
    raw_join(&first, "job", 1, NUMEL);
    raw_close(&first);
    remote_host_run(&host, 500);
    assert_int_equal(stats().lost, 1);
    raw_open(&second, &host, "trainer", NULL, NULL);
    second.sent = first.sent;
    raw_push(&second, 0, 0, 0, ones, sizeof ones);
    assert_null(raw_receive(&second, 200));
    assert_int_equal(stats().sessions, 1);
    raw_close(&second);
}

/* ---- flow ---- */

/* A trainer that does not take what it is sent gets no more than the window. */
static void test_slow_trainer(void **state)
{
    static float gradient[4u << 20];
    struct raw_trainer raw;
    uint64_t received = 0;

    (void)state;
    for (size_t i = 0; i < sizeof gradient / sizeof gradient[0]; i++) {
        gradient[i] = (float)i + 1;
    }
    raw_open(&raw, &host, NULL, NULL, NULL);
    raw_join(&raw, "slow", 1, sizeof gradient / sizeof gradient[0]);
    for (size_t at = 0; at < sizeof gradient; at += REMOTE_PIECE) {
        Adtopk__RemoteRequest message = ADTOPK__REMOTE_REQUEST__INIT;
        Adtopk__RemotePush push = ADTOPK__REMOTE_PUSH__INIT;

        push.offset = at;
        message.kind_case = ADTOPK__REMOTE_REQUEST__KIND_PUSH;
        message.push = &push;
        raw_send(&raw, &message, (const uint8_t *)gradient + at, REMOTE_PIECE);
        remote_host_run(&host, 1);
    }
    while (raw_receive(&raw, 300) != NULL) {
        received++;
    }
    assert_int_equal(received, REMOTE_WINDOW);
    raw_step_end(&raw, 0); /* with it comes what was taken */
    while (raw.reply->kind_case != ADTOPK__REMOTE_REPLY__KIND_STEP) {
        if (raw_receive(&raw, 300) == NULL) {
            raw_acknowledge(&raw);
        } else if (raw.reply->kind_case == ADTOPK__REMOTE_REPLY__KIND_UPDATE) {
            assert_memory_equal(
                raw.part, (const uint8_t *)gradient + 4 * raw.reply->update->first, raw.part_size);
            received++;
        }
    }
    assert_int_equal(received, sizeof gradient / REMOTE_PIECE);
    assert_int_equal(raw.reply->kind_case, ADTOPK__REMOTE_REPLY__KIND_STEP);
    raw_close(&raw);
}

static void test_lost_is_told(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_close(&raw);
    remote_host_run(&host, 300);
    assert_int_equal(stats().lost, 1);
    assert_int_equal(host.view.lost, 1);
    assert_non_null(strstr(host.view.reason, "127.0.0.1: its connection broke"));
    assert_int_equal(stats().sessions, 1);
}

static void test_failing_job(void **state)
{
    struct raw_trainer raw;

    (void)state;
    raw_open(&raw, &host, NULL, NULL, NULL);
    raw_join(&raw, "failing", 1, NUMEL);
    raw_step_end(&raw, 0);
    raw_expect_error(&raw, ADTOPK_ERR_PEER, "rank 7 (process 42) ended");
    raw_close(&raw);
}

/* ---- keys ---- */

static void make_pair(struct keyfile_pair *pair)
{
    assert_int_equal(zmq_curve_keypair(pair->public_key, pair->secret_key), 0);
}

static void test_keys(void **state)
{
    struct keyfile_pair server, known, other, stranger;
    struct remote_owner owners[2] = {{.uid = 5}, {.uid = 6}};
    struct remote_host guarded;
    struct raw_trainer raw, second, refused;
    struct error err;

    (void)state;
    make_pair(&server);
    make_pair(&known);
    make_pair(&other);
    make_pair(&stranger);
    memcpy(owners[0].key, known.public_key, sizeof owners[0].key);
    memcpy(owners[1].key, other.public_key, sizeof owners[1].key);
    remote_host_start(
        &guarded, (struct remote_config){.pair = &server, .owners = owners, .owner_count = 2});
    raw_open(&raw, &guarded, "route", &known, server.public_key);
    raw_join(&raw, "job", 1, NUMEL);
    take_step(&raw, 0);
    /* Another user takes over neither the routing id nor the session. */
    raw_open(&second, &guarded, "route", &other, server.public_key);
    second.sent = raw.sent;
    raw_push(&second, 0, 1, 0, ones, sizeof ones);
    assert_null(raw_receive(&second, 300));
    raw_open(&refused, &guarded, NULL, &stranger, server.public_key);
    raw_open_request(&refused, "job", REMOTE_VERSION);
    assert_null(raw_receive(&refused, 300));
    assert_true(guarded.warnings > 0);
    assert_non_null(strstr(guarded.warning, stranger.public_key));
    raw_close(&refused);
    raw_open(&refused, &guarded, NULL, NULL, NULL);
    raw_open_request(&refused, "job", REMOTE_VERSION);
    assert_null(raw_receive(&refused, 300));
    raw_close(&refused);
    raw_close(&second);
    take_step(&raw, 1);
    /* The key is taken off the list. */
    assert_int_equal(remote_reload(guarded.remote, &server, &owners[1], 1, &err), ADTOPK_OK);
    raw_expect_error(&raw, ADTOPK_ERR_DENIED, "taken off the list");
    raw_close(&raw);
    raw_open(&raw, &guarded, NULL, &other, server.public_key);
    raw_join(&raw, "job", 1, NUMEL);
    raw_close(&raw);
    remote_host_run(&guarded, 50);
    remote_host_stop(&guarded);
}

/* The daemon itself gets another key. */
static void test_new_key(void **state)
{
    struct keyfile_pair server, next, known;
    struct remote_owner owner = {.uid = 5};
    struct remote_host guarded;
    struct raw_trainer raw, late;
    struct remote_stats found;
    struct error err;

    (void)state;
    make_pair(&server);
    make_pair(&next);
    make_pair(&known);
    memcpy(owner.key, known.public_key, sizeof owner.key);
    remote_host_start(
        &guarded, (struct remote_config){.pair = &server, .owners = &owner, .owner_count = 1});
    raw_open(&raw, &guarded, NULL, &known, server.public_key);
    raw_join(&raw, "job", 1, NUMEL);
    assert_int_equal(remote_reload(guarded.remote, &next, &owner, 1, &err), ADTOPK_OK);
    remote_host_run(&guarded, 500);
    remote_stats(guarded.remote, &found);
    assert_int_equal(found.lost, 1); /* nobody goes on under the old one */
    raw_open(&late, &guarded, NULL, &known, next.public_key);
    raw_join(&late, "other", 1, NUMEL);
    raw_close(&late);
    raw_close(&raw);
    remote_host_run(&guarded, 50);
    remote_host_stop(&guarded);
}

static void test_bad_endpoints(void **state)
{
    static const struct remote_ops ops = {.event = NULL};
    const char *const wrong[] = {"tcp://127.0.0.1", "ipc:///tmp/x", "nonsense", "tcp://1.2.3.4:1"};
    uv_loop_t loop;

    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct remote_config config = {
            .listen = wrong[i], .timeout_ms = 5000, .heartbeat_ms = 1000};
        struct error err = {.code = ADTOPK_OK};

        assert_null(remote_create(&loop, &config, &ops, NULL, &err));
        assert_non_null(strstr(err.text, wrong[i]));
    }
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(push_twice),
        TEST(push_beyond_the_tensor),
        TEST(push_out_of_order),
        TEST(push_interleaved),
        TEST(push_nothing),
        TEST(push_unknown_tensor),
        TEST(push_in_another_step),
        TEST(push_after_the_end),
        TEST(end_in_a_push),
        TEST(push_before_ready),
        TEST(op),
        TEST(op_of_another_size),
        TEST(op_too_large),
        TEST(unknown_op),
        TEST(lost_message),
        TEST(acknowledges_too_much),
        TEST(malformed),
        TEST(too_many_parts),
        TEST(unwanted_part),
        TEST(open_twice),
        TEST(commit_twice),
        TEST(too_long),
        TEST(other_version),
        TEST(refused_by_the_core),
        TEST(something_else_first),
        TEST(share),
        TEST(memory),
        TEST(duplicate_route),
        TEST(route_again),
        TEST(slow_trainer),
        TEST(lost_is_told),
        TEST(failing_job),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_new_key),
        cmocka_unit_test(test_bad_endpoints),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
