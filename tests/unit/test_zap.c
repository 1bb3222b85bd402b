/* The doorkeeper, asked directly: whom it lets in, and its answers to questions of any shape. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <poll.h>
#include <zmq.h>

#include <cmocka.h>

#include "daemon/transport/clock.h"
#include "daemon/transport/socket.h"
#include "daemon/transport/zap.h"

#define FRAMES_MAX 12

struct fixture {
    void *zmq, *asker;
    struct allow allow;
    struct token_table tokens;
    struct refusals refusals;
    struct zap zap;
    struct keyfile_pair known, unknown;
    bool signals; /* come while a question is answered */
    unsigned warnings;
    char warning[512];
};

struct frame {
    const void *bytes;
    size_t size;
};

static bool signals;

int __real_zmq_send(void *socket, const void *bytes, size_t size, int flags);
int __wrap_zmq_send(void *socket, const void *bytes, size_t size, int flags);

/* With signals every other call ends as if one came. */
int __wrap_zmq_send(void *socket, const void *bytes, size_t size, int flags)
{
    static bool now;

    now = signals && !now;
    if (now) {
        errno = EINTR;
        return -1;
    }
    return __real_zmq_send(socket, bytes, size, flags);
}

static void keep_warning(void *context, const char *line)
{
    struct fixture *fixture = context;

    fixture->warnings++;
    (void)snprintf(fixture->warning, sizeof(fixture->warning), "%s", line);
}

static int start(void **state)
{
    struct fixture *fixture = calloc(1, sizeof(*fixture));

    assert_non_null(fixture);
    fixture->zmq = zmq_ctx_new();
    fixture->refusals = (struct refusals){.warn = keep_warning, .context = fixture};
    fixture->zap = (struct zap){
        .allow = &fixture->allow, .tokens = &fixture->tokens, .refusals = &fixture->refusals};
    assert_true(zap_open(&fixture->zap, fixture->zmq));
    fixture->asker = zmq_socket(fixture->zmq, ZMQ_REQ);
    assert_int_equal(zmq_connect(fixture->asker, "inproc://zeromq.zap.01"), 0);
    assert_int_equal(zmq_curve_keypair(fixture->known.public_key, fixture->known.secret_key), 0);
    assert_int_equal(
        zmq_curve_keypair(fixture->unknown.public_key, fixture->unknown.secret_key), 0);
    assert_int_equal(allow_add(&fixture->allow, fixture->known.public_key, 3, NULL), ADTOPK_OK);
    *state = fixture;
    return 0;
}

static int stop(void **state)
{
    struct fixture *fixture = *state;

    (void)zmq_close(fixture->asker);
    zap_close(&fixture->zap);
    (void)zmq_ctx_term(fixture->zmq);
    allow_clear(&fixture->allow);
    token_clear(&fixture->tokens);
    free(fixture);
    return 0;
}

/* Asks, and checks the form of the answer. True if the answer is yes, with the user's name. */
static bool ask(struct fixture *fixture, const struct frame *frames, size_t count, char user[64])
{
    char answer[6][64];
    int size[6];

    for (size_t i = 0; i < count; i++) {
        assert_true(zmq_send(fixture->asker, frames[i].bytes, frames[i].size,
                        i + 1 < count ? ZMQ_SNDMORE : 0) >= 0);
    }
    for (int i = 0; i < 60000 && (socket_events(fixture->asker) & ZMQ_POLLIN) == 0; i++) {
        signals = fixture->signals;
        (void)zap_serve(&fixture->zap, 1);
        signals = false;
        (void)poll(NULL, 0, i > 10 ? 1 : 0);
    }
    for (int i = 0; i < 6; i++) {
        size[i] = zmq_recv(fixture->asker, answer[i], sizeof(answer[i]) - 1, ZMQ_DONTWAIT);
        assert_in_range(size[i], 0, 63);
        answer[i][size[i]] = '\0';
    }
    assert_string_equal(answer[0], "1.0");
    assert_string_equal(answer[3], "");
    assert_string_equal(answer[5], "");
    (void)snprintf(user, 64, "%s", answer[4]);
    if (strcmp(answer[2], "200") == 0) {
        assert_string_equal(
            answer[1], frames[1].bytes); /* libzmq would not accept another number */
        return true;
    }
    assert_string_equal(answer[2], "300");
    assert_string_equal(user, "");
    return false;
}

#define TEXT(text) ((struct frame){text, strlen(text)})

static bool ask_key(struct fixture *fixture, const char *key, const char *domain, char user[64])
{
    uint8_t bytes[32];
    const struct frame frames[] = {TEXT("1.0"), TEXT("7"), TEXT(domain), TEXT("10.0.0.9"), TEXT(""),
        TEXT("CURVE"), {bytes, sizeof(bytes)}};

    assert_non_null(zmq_z85_decode(bytes, key));
    return ask(fixture, frames, 7, user);
}

static void test_signals(void **state)
{
    struct fixture *fixture = *state;
    char user[64];

    fixture->signals = true;
    for (unsigned i = 0; i < 3; i++) {
        assert_true(ask_key(fixture, fixture->known.public_key, SOCKET_DOMAIN_CONTROL, user));
        assert_string_equal(user, fixture->known.public_key);
    }
}

static bool ask_token(
    struct fixture *fixture, const char *node, const uint8_t token[TOKEN_BYTES], char user[64])
{
    char text[TOKEN_TEXT_SIZE];
    const struct frame frames[] = {TEXT("1.0"), TEXT("8"), TEXT(SOCKET_DOMAIN_BULK),
        TEXT("10.0.0.9"), TEXT(""), TEXT("PLAIN"), TEXT(node), {text, TOKEN_TEXT_SIZE - 1}};

    assert_non_null(zmq_z85_encode(text, token, TOKEN_BYTES));
    return ask(fixture, frames, 8, user);
}

static void test_keys(void **state)
{
    struct fixture *fixture = *state;
    char user[64];

    assert_true(ask_key(fixture, fixture->known.public_key, SOCKET_DOMAIN_CONTROL, user));
    assert_string_equal(user, fixture->known.public_key);
    assert_int_equal(fixture->warnings, 0);

    assert_false(ask_key(fixture, fixture->unknown.public_key, SOCKET_DOMAIN_CONTROL, user));
    assert_int_equal(fixture->refusals.budget[REFUSAL_KEY].count, 1);
    assert_non_null(strstr(fixture->warning, "10.0.0.9"));
    assert_non_null(strstr(fixture->warning, fixture->unknown.public_key));

    assert_false(ask_key(fixture, fixture->known.public_key, SOCKET_DOMAIN_BULK, user));
    allow_remove(&fixture->allow, 3);
    assert_false(ask_key(fixture, fixture->known.public_key, SOCKET_DOMAIN_CONTROL, user));
    assert_int_equal(fixture->refusals.budget[REFUSAL_KEY].count, 2);
}

static void test_tokens(void **state)
{
    static const char *const no_nodes[] = {"", "4", "03x", "65539", "65535", "000003", "-1", "3 "};
    struct fixture *fixture = *state;
    uint8_t token[TOKEN_BYTES];
    char user[64];

    assert_true(
        token_issue(&fixture->tokens, 3, fixture->known.public_key, transport_now_us(), token));
    for (size_t i = 0; i < sizeof(no_nodes) / sizeof(no_nodes[0]); i++) {
        assert_false(ask_token(fixture, no_nodes[i], token, user));
        assert_int_equal(fixture->refusals.budget[REFUSAL_TOKEN].count, i + 1);
    }
    assert_true(ask_token(fixture, "3", token, user));
    assert_string_equal(user, fixture->known.public_key);
    assert_false(ask_token(fixture, "3", token, user)); /* used */
    assert_non_null(strstr(fixture->warning, "node 3"));
    assert_non_null(strstr(fixture->warning, "no valid token"));

    /* The key was removed between the grant and the connection. */
    assert_true(
        token_issue(&fixture->tokens, 3, fixture->known.public_key, transport_now_us(), token));
    allow_remove(&fixture->allow, 3);
    assert_false(ask_token(fixture, "3", token, user));
}

/* libzmq asks in one form only. The answer to every other form is no, and the next question is
 * answered. */
static void test_shapes(void **state)
{
    static char large[4096];
    struct fixture *fixture = *state;
    struct frame frames[FRAMES_MAX];
    uint8_t key[32];
    char user[64];

    assert_non_null(zmq_z85_decode(key, fixture->known.public_key));
    for (size_t count = 1; count <= FRAMES_MAX; count++) {
        for (size_t odd = 0; odd < count; odd++) {
            const struct frame good[] = {TEXT("1.0"), TEXT("9"), TEXT(SOCKET_DOMAIN_CONTROL),
                TEXT("::1"), TEXT(""), TEXT("CURVE"), {key, sizeof(key)}};

            for (size_t i = 0; i < FRAMES_MAX; i++) {
                frames[i] = i < 7 ? good[i] : TEXT("more");
            }
            frames[odd] = (struct frame){large, sizeof(large)};
            assert_false(ask(fixture, frames, count, user));
            frames[odd] = odd < 7 ? good[odd] : TEXT("");
            assert_int_equal(ask(fixture, frames, count, user), count == 7);
        }
    }
    frames[0] = TEXT("2.0");
    assert_false(ask(fixture, frames, 7, user));
    frames[0] = TEXT("1.0");
    frames[5] = TEXT("NULL");
    assert_false(ask(fixture, frames, 6, user));
    frames[5] = TEXT("GSSAPI");
    assert_false(ask(fixture, frames, 7, user));
    frames[5] = TEXT("CURVE");
    frames[6].size = 31;
    assert_false(ask(fixture, frames, 7, user));
    assert_true(ask_key(fixture, fixture->known.public_key, SOCKET_DOMAIN_CONTROL, user));
}

/* A flood of one kind is limited in the log, and does not hide others. */
static void test_limits(void **state)
{
    struct fixture *fixture = *state;

    for (int i = 0; i < 1000; i++) {
        refusals_add(&fixture->refusals, REFUSAL_HANDSHAKE, "flood");
    }
    assert_in_range(fixture->warnings, REFUSAL_BURST, REFUSAL_BURST + 2); /* it may be slow */
    assert_string_equal(fixture->warning, "flood");
    assert_int_equal(fixture->refusals.budget[REFUSAL_HANDSHAKE].count, 1000);
    refusals_add(&fixture->refusals, REFUSAL_TOKEN, "other");
    assert_string_equal(fixture->warning, "other");
    fixture->refusals.budget[REFUSAL_HANDSHAKE].refilled_us =
        transport_now_us() - 1000000; /* a second goes by */
    refusals_add(&fixture->refusals, REFUSAL_HANDSHAKE, "a flood that does not end");
    assert_string_equal(fixture->warning, "other");
    fixture->refusals.budget[REFUSAL_HANDSHAKE].refilled_us -= REFUSAL_REFILL_US;
    refusals_add(&fixture->refusals, REFUSAL_HANDSHAKE, "later");
    assert_non_null(strstr(fixture->warning, "later (and 9"));
    assert_non_null(strstr(fixture->warning, " more of this sort before)"));
}

static void test_budget(void **state)
{
    struct fixture *fixture = *state;

    assert_false(zap_serve(&fixture->zap, 10)); /* there is no question */
    assert_int_equal(zmq_send(fixture->asker, "1.0", 3, 0), 3);
    for (int i = 0; i < 60000 && (socket_events(fixture->zap.socket) & ZMQ_POLLIN) == 0; i++) {
        (void)poll(NULL, 0, 1);
    }
    assert_true(zap_serve(&fixture->zap, 0));
    assert_false(zap_serve(&fixture->zap, 1));
}

static void test_one_a_context(void **state)
{
    struct fixture *fixture = *state;
    struct zap second = {.socket = NULL};

    assert_false(zap_open(&second, fixture->zmq));
    assert_null(second.socket);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_keys, start, stop),
        cmocka_unit_test_setup_teardown(test_signals, start, stop),
        cmocka_unit_test_setup_teardown(test_tokens, start, stop),
        cmocka_unit_test_setup_teardown(test_shapes, start, stop),
        cmocka_unit_test_setup_teardown(test_limits, start, stop),
        cmocka_unit_test_setup_teardown(test_budget, start, stop),
        cmocka_unit_test_setup_teardown(test_one_a_context, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
