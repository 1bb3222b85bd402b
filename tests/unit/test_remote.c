/* Remote sessions: opening, routing ids, flow, ends and keys. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "daemon/remote/trainer.h"
#include "proto/keyfile.h"
#include "proto/remote.h"
#include "remote_scene.h"
#include "zmq_signals.h"

#define LARGE (UINT64_C(1) << 28) /* bytes of an arena */

/* ---- opening ---- */

static void test_other_version(void **state)
{
    struct raw_trainer raw;

    (void)state;
    raw_open(&raw, &host, NULL, NULL, NULL);
    raw_open_request(&raw, "job", 99);
    raw_expect_error(&raw, ADTOPK_ERR_PROTOCOL, "speaks protocol 99");
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
    REMOTE_AWAIT(&host, stats().strays == 2);
    assert_null(raw_receive(&raw, 200));
    assert_int_equal(stats().strays, 2);
    assert_int_equal(stats().door.sessions, 1);
    raw_close(&raw);
}

/* A user may have six of eight sessions, and the bystander has one of them. */
static void test_share(void **state)
{
    struct raw_trainer raw[6];

    (void)state;
    for (unsigned i = 0; i < 6; i++) {
        raw_open(&raw[i], &host, NULL, NULL, NULL);
        raw_open_request(&raw[i], "job", REMOTE_VERSION);
        if (i < 5) {
            assert_non_null(raw_receive(&raw[i], PATIENCE_MS));
        }
    }
    raw_expect_error(&raw[5], ADTOPK_ERR_DENIED,
        "user 7 has 6 sessions on this daemon already, and one user may have 6 (user_sessions)");
    assert_int_equal(stats().door.refused, 1);
    for (unsigned i = 0; i < 6; i++) {
        raw_close(&raw[i]);
    }
}

/* Another limit, which also counts the user's sessions at the other door. */
static void test_limit_of_a_user(void **state)
{
    struct session there[2] = {{.uid = 7}, {.uid = 7}};
    struct door other = {.max_sessions = 4};
    struct raw_trainer raw[3];

    (void)state;
    host.doors.limits.user_sessions = 5;
    assert_int_equal(door_open(&other, &host.doors, NULL), ADTOPK_OK);
    door_enter(&other, &there[0]);
    door_enter(&other, &there[1]);
    for (unsigned i = 0; i < 3; i++) {
        raw_open(&raw[i], &host, NULL, NULL, NULL);
        raw_open_request(&raw[i], "job", REMOTE_VERSION);
        if (i < 2) {
            assert_non_null(raw_receive(&raw[i], PATIENCE_MS));
        }
    }
    raw_expect_error(&raw[2], ADTOPK_ERR_DENIED,
        "user 7 has 5 sessions on this daemon already, and one user may have 5 (user_sessions)");
    assert_non_null(
        strstr(host.warning, "refused a trainer of uid 7, a process at 127.0.0.1: user 7 has"));
    for (unsigned i = 0; i < 3; i++) {
        raw_close(&raw[i]);
    }
    door_leave(&there[0]);
    door_leave(&there[1]);
    door_free(&other);
}

static void test_never_committed(void **state)
{
    struct raw_trainer raw;

    (void)state;
    host.doors.limits.commit_ms = 200;
    raw_open(&raw, &host, NULL, NULL, NULL);
    raw_open_request(&raw, "job", REMOTE_VERSION);
    assert_non_null(raw_receive(&raw, PATIENCE_MS));
    raw_register(&raw, 3, NUMEL, 2);
    raw_expect_error(&raw, ADTOPK_ERR_TIMEOUT, "nothing was committed within 200 ms");
    assert_int_equal(host.view.lost, 1);
    assert_int_equal(stats().door.sessions, 1);
    raw_close(&raw);
}

/* Commits more than any machine has memory for. */
static void commit_too_much(struct raw_trainer *raw)
{
    raw_open(raw, &host, NULL, NULL, NULL);
    raw_open_request(raw, "job", REMOTE_VERSION);
    assert_non_null(raw_receive(raw, PATIENCE_MS));
    raw_register(raw, 3, UINT64_C(1) << 44, 2);
    raw_request(raw, ADTOPK__LOCAL_REQUEST__KIND_COMMIT);
}

static void test_memory(void **state)
{
    struct raw_trainer raw;
    const Adtopk__RemoteReply *reply;

    (void)state;
    commit_too_much(&raw);
    reply = raw_receive(&raw, PATIENCE_MS);
    assert_non_null(reply);
    assert_int_equal(reply->reply->kind_case, ADTOPK__LOCAL_REPLY__KIND_ERROR);
    assert_int_equal(reply->reply->error->status, ADTOPK_ERR_MEMORY);
    assert_false(reply->reply->error->final);
    raw_close(&raw);
}

/* Of this process. */
static uint64_t mapped_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long long pages = 0;

    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu", &pages), 1);
    (void)fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* A large arena takes long to give back. A thread does that, and the end waits for it. */
static void test_large_arena(void **state)
{
    struct raw_trainer raw;
    const uint64_t before = mapped_bytes();

    (void)state;
    raw_open(&raw, &host, NULL, NULL, NULL);
    raw_join(&raw, "job", 1, LARGE / sizeof(float));
    assert_true(mapped_bytes() >= before + LARGE);
    raw_request(&raw, ADTOPK__LOCAL_REQUEST__KIND_LEAVE);
    REMOTE_AWAIT(&host, stats().door.sessions == 1);
    assert_true(stats().gradient_bytes < LARGE); /* the bystander's */
    REMOTE_AWAIT(&host, mapped_bytes() < before + LARGE);
    assert_true(mapped_bytes() < before + LARGE);
    raw_close(&raw);
}

/* A trainer gives up before the answer to its commit: its goodbye comes right behind. */
static void test_leaves_behind_a_refusal(void **state)
{
    struct raw_trainer raw;

    (void)state;
    commit_too_much(&raw);
    raw_request(&raw, ADTOPK__LOCAL_REQUEST__KIND_LEAVE);
    REMOTE_AWAIT(&host, stats().door.sessions == 1);
    assert_int_equal(stats().door.sessions, 1); /* the bystander */
    assert_int_equal(host.view.lost, 0);
    assert_int_equal(stats().strays, 0);
    raw_close(&raw);
}

/* ---- routing ids ---- */

/* While a connection lives no other one gets its routing id. */
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
    assert_int_equal(stats().door.sessions, 2);
    raw_close(&second);
    raw_close(&first);
}

/* A new connection with an old routing id does not continue the session. */
static void test_route_again(void **state)
{
    struct raw_trainer first, second;

    (void)state;
    raw_open(&first, &host, "trainer", NULL, NULL);
    raw_join(&first, "job", 1, NUMEL);
    raw_close(&first);
    REMOTE_AWAIT(&host, stats().door.lost == 1);
    assert_int_equal(stats().door.lost, 1);
    raw_open(&second, &host, "trainer", NULL, NULL);
    second.sent = first.sent;
    raw_push(&second, 0, 0, 0, ones, sizeof ones);
    assert_null(raw_receive(&second, 200));
    assert_int_equal(stats().door.sessions, 1);
    raw_close(&second);
}

/* ---- flow ---- */

/* A trainer that does not take its messages gets no more than the window. */
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
    for (; received < REMOTE_WINDOW; received++) {
        assert_non_null(raw_receive(&raw, PATIENCE_MS));
    }
    assert_null(raw_receive(&raw, 300));
    raw_step_end(&raw, 0); /* it acknowledges the messages, too */
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

/* Takes messages until the step is over. Returns how many updates were among them. */
static unsigned take_updates(struct raw_trainer *raw, const void *gradient)
{
    unsigned updates = 0;

    while (raw_receive(raw, PATIENCE_MS) != NULL &&
           raw->reply->kind_case != ADTOPK__REMOTE_REPLY__KIND_STEP) {
        assert_int_equal(raw->reply->kind_case, ADTOPK__REMOTE_REPLY__KIND_UPDATE);
        assert_memory_equal(raw->part, gradient, raw->part_size);
        updates++;
    }
    return updates;
}

/* Another push comes between the pieces of one. One that is not complete was not made, and the next
 * step's begins with its first byte. */
static void test_push_in_pieces(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_push(&raw, 0, 0, 0, ones, 8);
    raw_push(&raw, 1, 0, 0, ones, sizeof ones);
    raw_push(&raw, 0, 0, 8, ones, sizeof ones - 8);
    raw_step_end(&raw, 0);
    assert_int_equal(take_updates(&raw, ones), 2);
    raw_push(&raw, 0, 1, 0, ones, 8);
    raw_push(&raw, 1, 1, 0, ones, sizeof ones);
    raw_step_end(&raw, 1);
    assert_int_equal(take_updates(&raw, ones), 1);
    raw_push(&raw, 0, 2, 0, ones, sizeof ones);
    raw_step_end(&raw, 2);
    assert_int_equal(take_updates(&raw, ones), 1);
    raw_close(&raw);
}

/* What uv_hrtime() does: with it, every look at the clock finds that the time of an iteration is
 * over. */
static bool hurried;

uint64_t __real_uv_hrtime(void);
uint64_t __wrap_uv_hrtime(void);

uint64_t __wrap_uv_hrtime(void)
{
    static uint64_t looks;

    return hurried ? __real_uv_hrtime() + UINT64_C(1000000000) * ++looks : __real_uv_hrtime();
}

/* Messages to the trainer of the job so far. */
static uint64_t sent_to(const char *job)
{
    struct session *one = host.remote->door.sessions;

    while (strcmp(one->key.name, job) != 0) {
        one = one->next;
    }
    return trainer_of(one)->route.sent;
}

/* Each iteration has time for one message only, and the trainers take turns. */
static void test_turns(void **state)
{
    enum { TRAINERS = 3, PIECES = 12, FLOATS = PIECES * (REMOTE_PIECE / 4) };
    static const char *const name[TRAINERS] = {"one", "two", "three"};
    static float gradient[FLOATS];
    struct raw_trainer raw[TRAINERS];
    uint64_t before[TRAINERS], sent[TRAINERS] = {0};
    unsigned waited[TRAINERS] = {0}, over = 0;

    (void)state;
    for (unsigned i = 0; i < FLOATS; i++) {
        gradient[i] = 1;
    }
    for (unsigned i = 0; i < TRAINERS; i++) {
        raw_open(&raw[i], &host, NULL, NULL, NULL);
        raw_join(&raw[i], name[i], 1, FLOATS);
        before[i] = sent_to(name[i]);
    }
    hurried = true;
    for (unsigned i = 0; i < TRAINERS; i++) {
        for (size_t at = 0; at < sizeof gradient; at += REMOTE_PIECE) {
            raw_push(&raw[i], 0, 0, at, (const uint8_t *)gradient + at, REMOTE_PIECE);
        }
    }
    while (over < TRAINERS) {
        if (!remote_host_turn(&host)) {
            sleep_ms(1); /* the pushes are on their way */
        }
        over = 0;
        for (unsigned i = 0; i < TRAINERS; i++) {
            const uint64_t now = sent_to(name[i]) - before[i];

            waited[i] = now == 0 || now > sent[i] ? 0 : waited[i] + 1;
            sent[i] = now;
            over += now == PIECES ? 1 : 0;
            assert_true(now == PIECES || waited[i] <= TRAINERS);
        }
    }
    hurried = false;
    for (unsigned i = 0; i < TRAINERS; i++) {
        raw_close(&raw[i]);
    }
}

static void test_lost_is_told(void **state)
{
    struct raw_trainer raw;

    (void)state;
    join(&raw);
    raw_close(&raw);
    REMOTE_AWAIT(&host, stats().door.lost == 1);
    assert_int_equal(stats().door.lost, 1);
    assert_int_equal(host.view.lost, 1);
    assert_non_null(strstr(host.view.reason, "a process at 127.0.0.1 lost its connection"));
    assert_int_equal(stats().door.sessions, 1);
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
    /* Another user gets neither the routing id nor the session. */
    raw_open(&second, &guarded, "route", &other, server.public_key);
    second.sent = raw.sent;
    raw_push(&second, 0, 1, 0, ones, sizeof ones);
    assert_null(raw_receive(&second, 300));
    raw_open(&refused, &guarded, NULL, &stranger, server.public_key);
    raw_open_request(&refused, "job", REMOTE_VERSION);
    REMOTE_AWAIT(&guarded, guarded.warnings > 0);
    assert_null(raw_receive(&refused, 300));
    assert_true(guarded.warnings > 0);
    assert_non_null(strstr(guarded.warning, stranger.public_key));
    raw_close(&refused);
    raw_open(&refused, &guarded, NULL, NULL, NULL);
    raw_open_request(&refused, "job", REMOTE_VERSION);
    assert_null(raw_receive(&refused, 300));
    raw_close(&refused);
    raw_close(&second);
    raw_open(&second, &guarded, NULL, &other, server.public_key);
    raw_join(&second, "parts", 1, NUMEL);
    raw_send_parts(&second, 4, 10);
    raw_expect_error(&second, ADTOPK_ERR_PROTOCOL, "too many parts");
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

/* Starts a host with keys, which one trainer may enter. Makes both pairs of keys. */
static void start_guarded(struct remote_host *guarded, struct keyfile_pair *server,
    struct keyfile_pair *known, struct remote_owner *owner)
{
    make_pair(server);
    make_pair(known);
    memcpy(owner->key, known->public_key, sizeof owner->key);
    remote_host_start(
        guarded, (struct remote_config){.pair = server, .owners = owner, .owner_count = 1});
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
    make_pair(&next);
    start_guarded(&guarded, &server, &known, &owner);
    raw_open(&raw, &guarded, NULL, &known, server.public_key);
    raw_join(&raw, "job", 1, NUMEL);
    assert_int_equal(remote_reload(guarded.remote, &next, &owner, 1, &err), ADTOPK_OK);
    REMOTE_AWAIT(&guarded, (remote_stats(guarded.remote, &found), found.door.lost == 1));
    assert_int_equal(found.door.lost, 1); /* no session goes on under the old key */
    raw_open(&late, &guarded, NULL, &known, next.public_key);
    raw_join(&late, "other", 1, NUMEL);
    raw_close(&late);
    raw_close(&raw);
    remote_host_run(&guarded, 50);
    remote_host_stop(&guarded);
}

/* What zmq_bind() does: real, or failing. */
static bool bind_fails;

int __real_zmq_bind(void *socket, const char *endpoint);
int __wrap_zmq_bind(void *socket, const char *endpoint);

int __wrap_zmq_bind(void *socket, const char *endpoint)
{
    errno = EMFILE;
    return bind_fails ? -1 : __real_zmq_bind(socket, endpoint);
}

/* Where listening under the new key fails, the next reload tries it again. */
static void test_reload_again(void **state)
{
    struct keyfile_pair server, next, known;
    struct remote_owner owner = {.uid = 5};
    struct remote_host guarded;
    struct raw_trainer raw;
    struct error err;

    (void)state;
    make_pair(&next);
    start_guarded(&guarded, &server, &known, &owner);
    bind_fails = true;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(remote_reload(guarded.remote, &next, &owner, 1, &err), ADTOPK_ERR_SYSTEM);
        assert_non_null(strstr(err.text, "bind again"));
    }
    bind_fails = false;
    assert_int_equal(remote_reload(guarded.remote, &next, &owner, 1, &err), ADTOPK_OK);
    raw_open(&raw, &guarded, NULL, &known, next.public_key);
    raw_join(&raw, "job", 1, NUMEL);
    raw_close(&raw);
    remote_host_run(&guarded, 50);
    remote_host_stop(&guarded);
}

static void test_signals_between_parts(void **state)
{
    struct raw_trainer raw;

    (void)state;
    raw_open(&raw, &host, NULL, NULL, NULL);
    raw_join(&raw, "job", 1, NUMEL);
    zmq_signals(true);
    for (uint64_t step = 0; step < 10; step++) {
        take_step(&raw, step);
    }
    zmq_signals(false);
    assert_true(zmq_signals_count() >= 5);
    raw_close(&raw);
}

static void test_bad_endpoints(void **state)
{
    struct doors doors = {.event = NULL};
    const char *const wrong[] = {"tcp://127.0.0.1", "ipc:///tmp/x", "nonsense", "tcp://1.2.3.4:1"};
    uv_loop_t loop;

    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct remote_config config = {
            .listen = wrong[i], .timeout_ms = 5000, .heartbeat_ms = 1000};
        struct error err = {.code = ADTOPK_OK};

        assert_null(remote_create(&loop, &config, &doors, NULL, &err));
        assert_non_null(strstr(err.text, wrong[i]));
    }
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(other_version),
        TEST(refused_by_the_core),
        TEST(something_else_first),
        TEST(share),
        TEST(limit_of_a_user),
        TEST(never_committed),
        TEST(memory),
        TEST(large_arena),
        TEST(leaves_behind_a_refusal),
        TEST(duplicate_route),
        TEST(route_again),
        TEST(slow_trainer),
        TEST(push_in_pieces),
        TEST(turns),
        TEST(lost_is_told),
        TEST(failing_job),
        TEST(signals_between_parts),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_new_key),
        cmocka_unit_test(test_reload_again),
        cmocka_unit_test(test_bad_endpoints),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
