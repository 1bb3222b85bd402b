/* Remote clients that send wrong messages. Each is refused with a sentence, and the session beside
 * it goes on. */
#include "proto/remote.h"
#include "remote_scene.h"

static void assert_refused(struct raw_trainer *raw, const char *words)
{
    raw_expect_error(raw, ADTOPK_ERR_PROTOCOL, words);
    REMOTE_AWAIT(&host, stats().door.sessions == 1); /* the bystander */
    assert_int_equal(stats().door.protocol_errors, 1);
    assert_int_equal(stats().door.sessions, 1);
    raw_close(raw);
}

/* ---- pushes ---- */

static void test_push_twice(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_push(&raw, 1, 0, 0, ones, sizeof ones);
    assert_non_null(raw_receive(&raw, PATIENCE_MS));
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

static void test_push_begins_again(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_push(&raw, 0, 0, 0, ones, 8);
    raw_push(&raw, 1, 0, 0, ones, 16);
    raw_push(&raw, 0, 0, 0, ones, 8);
    assert_refused(&raw, "bytes of tensor 0 from 0 on, and those from 8 on come next");
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

/* A tensor of a batch that is not committed has no arena yet. */
static void test_push_uncommitted_tensor(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_register(&raw, 1, NUMEL, 2);
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

static void test_push_before_ready(void **state)
{
    struct raw_trainer raw;

    (void)state;
    raw_open(&raw, &host, NULL, NULL, NULL);
    raw_open_request(&raw, "job", REMOTE_VERSION);
    assert_non_null(raw_receive(&raw, PATIENCE_MS));
    raw_register(&raw, 1, NUMEL, 2);
    raw_push(&raw, 0, 0, 0, ones, 8);
    assert_refused(&raw, "came in state \"open\"");
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
    reply = raw_receive(&raw, PATIENCE_MS);
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

/* Nobody is told so of a message of very many parts: its connection ends. */
static void test_very_many_parts(void **state)
{
    const uint64_t lost = stats().door.lost;
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_send_parts(&raw, 100000, 0);
    REMOTE_AWAIT(&host, stats().door.lost == lost + 1);
    assert_int_equal(stats().door.lost, lost + 1);
    raw_close(&raw);
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
    assert_refused(&raw, "request 1 came in state \"ready\"");
}

static void test_mapped_twice(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_request(&raw, ADTOPK__LOCAL_REQUEST__KIND_MAPPED);
    assert_refused(&raw, "request 4 came in state \"ready\"");
}

/* A message is over the limit: libzmq ends the connection, and that ends the session. */
static void test_too_long(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_send_parts(&raw, 1, REMOTE_OP_SIZE + 1);
    REMOTE_AWAIT(&host, stats().door.lost == 1);
    assert_int_equal(stats().door.lost, 1);
    assert_int_equal(stats().door.sessions, 1);
    raw_close(&raw);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(push_twice),
        TEST(push_beyond_the_tensor),
        TEST(push_out_of_order),
        TEST(push_begins_again),
        TEST(push_nothing),
        TEST(push_unknown_tensor),
        TEST(push_uncommitted_tensor),
        TEST(push_in_another_step),
        TEST(push_after_the_end),
        TEST(push_before_ready),
        TEST(op),
        TEST(op_of_another_size),
        TEST(op_too_large),
        TEST(unknown_op),
        TEST(lost_message),
        TEST(acknowledges_too_much),
        TEST(malformed),
        TEST(too_many_parts),
        TEST(very_many_parts),
        TEST(unwanted_part),
        TEST(open_twice),
        TEST(mapped_twice),
        TEST(too_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
