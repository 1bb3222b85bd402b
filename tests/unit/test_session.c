/* A trainer's session over any connection: requests by state, registrations, verdicts and losses.
 * Also one planted violation for each rule of ownership (daemon/session/README.md). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "daemon/local/local_session.h"
#include "daemon/session/answer.h"
#include "daemon/session/joining.h"
#include "proto/local.h"
#include "tests/host/aborts.h"

#define OPEN ADTOPK__LOCAL_REQUEST__KIND_OPEN
#define REGISTER ADTOPK__LOCAL_REQUEST__KIND_REGISTER
#define COMMIT ADTOPK__LOCAL_REQUEST__KIND_COMMIT
#define MAPPED ADTOPK__LOCAL_REQUEST__KIND_MAPPED
#define LEAVE ADTOPK__LOCAL_REQUEST__KIND_LEAVE

/* A door for which this test is the connection and the core. */
struct scene {
    uv_loop_t loop;
    struct doors doors;
    struct door door;
    struct session session;
    unsigned events[EVENT_RANK_LOST + 1];
    enum adtopk_status answer; /* the core's answer */
    bool takes_no_arena;       /* the core accepts a commit and forgets the arena */
    bool has_no_results;       /* the job failed in the turn in which it became ready */
    unsigned brings; /* how often the client says that it commits as it returns; 0: it does not */
    unsigned added, arenas, freed;
    char lost[ERROR_TEXT_SIZE]; /* the last loss that the core was told */
    Adtopk__LocalReply__KindCase sent;
    char error[ERROR_TEXT_SIZE]; /* the last error that the client was told */
    const char *fault;           /* the fault of the next send */
};

static struct scene *scene_of(struct session *session)
{
    return session->door->doors->context;
}

/* ---- a core ---- */

static enum adtopk_status take_event(void *context, struct event *event, struct error *err)
{
    struct scene *scene = context;

    assert_in_range(event->type, 0, EVENT_RANK_LOST);
    scene->events[event->type]++;
    assert_true(event->session == scene->session.id);
    if (event->type == EVENT_RANK_LOST) {
        (void)snprintf(scene->lost, sizeof scene->lost, "%s", event->reason);
        session_take_back(&scene->doors, event->session);
    }
    if (event->type == EVENT_RANK_COMMIT && !scene->takes_no_arena) {
        assert_non_null(session_lend(&scene->doors, event->session, scene->session.lent, 100, err));
        /* The session lends its arena already. */
        assert_null(session_lend(&scene->doors, event->session, scene->session.lent - 1, 100, err));
    }
    return scene->answer == ADTOPK_OK ? ADTOPK_OK
                                      : error_set(err, scene->answer, "the core's word");
}

/* ---- a connection: the smallest row ---- */

static const char *send_reply(struct session *session, Adtopk__LocalReply *reply)
{
    struct scene *scene = scene_of(session);

    scene->sent = reply->kind_case;
    if (reply->kind_case == ADTOPK__LOCAL_REPLY__KIND_ERROR) {
        (void)snprintf(scene->error, sizeof scene->error, "%s", reply->error->text);
    }
    return scene->fault;
}

static void has_moved(struct session *session)
{
    (void)session;
}

static enum adtopk_status add_two(
    struct session *session, const struct tensor_spec *spec, struct error *err)
{
    struct scene *scene = scene_of(session);

    if (scene->added == 2) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for %s", spec->name);
    }
    scene->added++;
    return ADTOPK_OK;
}

static const void *make_arena(
    struct session *session, unsigned batch, uint64_t *size, struct error *err)
{
    (void)batch;
    (void)size;
    (void)err;
    scene_of(session)->arenas++;
    return "an arena";
}

static void give_back(struct session *session)
{
    scene_of(session)->arenas = 0; /* of all batches */
}

static enum adtopk_status find_results(struct session *session, const struct action *action,
    Adtopk__LocalReady *ready, struct error *err)
{
    (void)action;
    (void)ready;
    return scene_of(session)->has_no_results ? error_set(err, ADTOPK_ERR_STATE, "no results")
                                             : ADTOPK_OK;
}

static void tell_progress(struct session *session, const struct action *action)
{
    (void)session;
    (void)action;
}

static void note_free(struct session *session)
{
    scene_of(session)->freed++;
}

static const struct connection connection = {
    .version = LOCAL_VERSION,
    .linger_ms = 1000,
    .send = send_reply,
    .moved = has_moved,
    .add = add_two,
    .arena = make_arena,
    .give_back = give_back,
    .ready = find_results,
    .progress = tell_progress,
    .free = note_free,
};

static int set_up(void **state)
{
    static struct scene scene;

    scene = (struct scene){.doors = {.event = take_event, .context = &scene},
        .door = {.connection = &connection, .loop = &scene.loop, .max_sessions = 4},
        .session = {.uid = 5, .pid = 9, .peer = "process 9"}};
    assert_int_equal(door_open(&scene.door, &scene.doors, NULL), ADTOPK_OK);
    session_begin(&scene.session, &scene.door, 1);
    *state = &scene;
    return 0;
}

/* Whatever a test did, the daemon can stop, and then everything is freed. */
static int tear_down(void **state)
{
    struct scene *scene = *state;

    if (scene->door.sessions != NULL) {
        session_stop(&scene->door, false);
        session_drop(&scene->session);
    }
    assert_int_equal(scene->arenas, 0);
    assert_int_equal(scene->freed, 1);
    assert_int_equal(scene->door.used, 0);
    door_free(&scene->door);
    return 0;
}

/* ---- requests of a client ---- */

static void ask(struct scene *scene, Adtopk__LocalRequest__KindCase kind)
{
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    Adtopk__LocalOpen open = ADTOPK__LOCAL_OPEN__INIT;
    char job[] = "job";
    char run[] = "run";

    open.version = LOCAL_VERSION;
    open.job = job;
    open.run_id = run;
    open.world_size = 1;
    open.rank = 3;
    open.run = scene->brings > 0 ? 7 : 0;
    open.batches = scene->brings;
    request.kind_case = kind;
    request.open = &open; /* the other requests have no content */
    joining_take(&scene->session, &request);
}

/* Takes a session along the happy path to a state. */
static void reach(struct scene *scene, enum session_state state)
{
    const struct action ready = {
        .type = ACTION_READY, .session = scene->session.id, .job = 8, .batches = 1};

    ask(scene, OPEN);
    if (state >= SESSION_ARENA) {
        ask(scene, COMMIT);
    }
    if (state >= SESSION_MAPPED) {
        ask(scene, MAPPED);
    }
    if (state >= SESSION_READY) {
        answer_apply(&scene->doors, &ready);
    }
    assert_int_equal(scene->session.state, state);
}

static void act(struct scene *scene, enum action_type type)
{
    static const struct error why = {.code = ADTOPK_ERR_PEER, .text = "rank 7 is gone"};
    const struct action action = {
        .type = type, .session = scene->session.id, .error = &why, .number = 4, .batches = 1};

    answer_apply(&scene->doors, &action);
}

/* ---- the protocol ---- */

static void test_requests_by_state(void **state)
{
    static const struct {
        Adtopk__LocalRequest__KindCase kind;
        const char *states;
    } allowed[] = {
        {OPEN, "connected"},
        {REGISTER, "open ready"},
        {COMMIT, "open ready"},
        {MAPPED, "arena"},
        {ADTOPK__LOCAL_REQUEST__KIND_RESIDUAL, "ready"},
        {LEAVE, "open arena mapped ready"},
        {ADTOPK__LOCAL_REQUEST__KIND__NOT_SET, ""},
    };
    struct error err;

    (void)state;
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) {
        for (unsigned at = 0; at < SESSION_STATES; at++) {
            const char *name = protocol_name((enum session_state)at);
            const enum adtopk_status status =
                protocol_allow((enum session_state)at, allowed[i].kind, &err);

            if (strstr(allowed[i].states, name) != NULL) {
                assert_int_equal(status, ADTOPK_OK);
                assert_true(allowed[i].kind != LEAVE ||
                            protocol_may_move((enum session_state)at, SESSION_LEAVING));
            } else {
                assert_int_equal(status, ADTOPK_ERR_PROTOCOL);
                assert_non_null(strstr(err.text, name));
            }
        }
    }
}

static void test_life(void **state)
{
    struct scene *scene = *state;

    reach(scene, SESSION_READY);
    assert_int_equal(scene->session.rank, 3);
    assert_int_equal(scene->session.job, 8);
    assert_int_equal(scene->sent, ADTOPK__LOCAL_REPLY__KIND_READY);
    ask(scene, LEAVE);
    assert_int_equal(scene->session.state, SESSION_LEAVING);
    act(scene, ACTION_CLOSED);
    assert_int_equal(scene->sent, ADTOPK__LOCAL_REPLY__KIND_BYE);
    assert_int_equal(scene->session.state, SESSION_CLOSED);
    assert_int_equal(scene->events[EVENT_RANK_LOST], 0);
    session_drop(&scene->session);
    assert_int_equal(scene->freed, 0); /* the core has the arena */
    session_take_back(&scene->doors, scene->session.id);
}

static void ready(struct scene *scene, unsigned batches)
{
    const struct action action = {
        .type = ACTION_READY, .session = scene->session.id, .job = 8, .batches = batches};

    scene->sent = 0;
    answer_apply(&scene->doors, &action);
}

/* A rank returns with three batches, of which the last is not in force yet. */
static void test_returns_with_batches(void **state)
{
    struct scene *scene = *state;

    scene->brings = 3;
    ask(scene, OPEN);
    for (unsigned batch = 1; batch <= 3; batch++) {
        assert_int_equal(scene->session.state, SESSION_OPEN);
        ask(scene, COMMIT);
        assert_int_equal(scene->session.state, SESSION_ARENA);
        ask(scene, MAPPED);
    }
    assert_int_equal(scene->session.state, SESSION_MAPPED);
    assert_int_equal(scene->arenas, 3);
    ready(scene, 2);
    assert_int_equal(scene->sent, ADTOPK__LOCAL_REPLY__KIND_READY);
    assert_int_equal(scene->session.batches, 2);
    assert_int_equal(scene->session.state, SESSION_MAPPED);
    ready(scene, 2);
    assert_int_equal(scene->sent, 0);
    ready(scene, 3);
    assert_int_equal(scene->session.state, SESSION_READY);
}

/* If the core refuses one of its batches the session ends, as the core has the arenas before. */
static void test_refused_when_it_returns(void **state)
{
    struct scene *scene = *state;

    scene->brings = 2;
    ask(scene, OPEN);
    ask(scene, COMMIT);
    ask(scene, MAPPED);
    scene->answer = ADTOPK_ERR_MEMORY;
    ask(scene, COMMIT);
    assert_int_equal(scene->session.verdict, VERDICT_END);
}

/* A request that the core refuses changes nothing. */
static void test_refused_by_the_core(void **state)
{
    struct scene *scene = *state;

    reach(scene, SESSION_OPEN);
    scene->answer = ADTOPK_ERR_MEMORY;
    ask(scene, COMMIT);
    assert_int_equal(scene->session.state, SESSION_OPEN);
    assert_int_equal(scene->arenas, 0); /* it came back */
    answer_emptied(&scene->doors);
    assert_true(session_execute(&scene->session));
    assert_string_equal(scene->error, "the core's word");
    assert_int_equal(scene->session.state, SESSION_OPEN);
    scene->answer = ADTOPK_OK;
    ask(scene, COMMIT);
    scene->answer = ADTOPK_ERR_STATE;
    ask(scene, LEAVE);
    assert_int_equal(scene->session.state, SESSION_ARENA);
    assert_int_equal(scene->session.verdict, VERDICT_END);
}

static void test_open_refused(void **state)
{
    struct scene *scene = *state;

    scene->answer = ADTOPK_ERR_DENIED;
    ask(scene, OPEN);
    assert_int_equal(scene->session.state, SESSION_ENDED);
    assert_string_equal(scene->error, "the core's word");
    session_lost(&scene->session, "hung up");
    assert_int_equal(scene->events[EVENT_RANK_LOST], 0); /* the core never knew it */
}

static void test_lost_once(void **state)
{
    struct scene *scene = *state;

    reach(scene, SESSION_ARENA);
    session_lost(&scene->session, "hung up");
    session_lost(&scene->session, "hung up");
    assert_int_equal(scene->events[EVENT_RANK_LOST], 1);
    assert_string_equal(scene->lost, "process 9 hung up");
    assert_int_equal(scene->door.stats.lost, 1);
    assert_int_equal(scene->arenas, 0);
}

/* A client that does not read has lost its session. */
static void test_fault_of_sending(void **state)
{
    struct scene *scene = *state;

    reach(scene, SESSION_MAPPED);
    scene->fault = "does not read";
    act(scene, ACTION_FAILED);
    assert_int_equal(scene->session.state, SESSION_CLOSED);
    assert_int_equal(scene->events[EVENT_RANK_LOST], 0); /* the core itself reported the failure */
}

static void test_wrong_request(void **state)
{
    struct scene *scene = *state;

    reach(scene, SESSION_OPEN);
    ask(scene, MAPPED);
    assert_int_equal(scene->session.state, SESSION_ENDED);
    assert_int_equal(scene->door.stats.protocol_errors, 1);
    assert_non_null(strstr(scene->lost, "process 9 broke the protocol: request"));
    act(scene, ACTION_FAILED); /* ignored, because the session has ended */
}

/* A push at a wrong time is a mistake of the trainer: the others hear only what it was. */
static void test_push_at_a_wrong_time(void **state)
{
    const struct error why = {.code = ADTOPK_ERR_STATE, .text = "rank 1 must broadcast first"};
    struct scene *scene = *state;

    reach(scene, SESSION_MAPPED);
    session_judge(&scene->session, VERDICT_REFUSE, &why);
    answer_emptied(&scene->doors);
    assert_true(session_execute(&scene->session));
    assert_int_equal(scene->session.state, SESSION_ENDED);
    assert_string_equal(scene->lost, "process 9: rank 1 must broadcast first");
}

/* The first refused tensor ends the registration. Later ones change nothing. */
static void test_register(void **state)
{
    struct scene *scene = *state;
    Adtopk__LocalTensor tensor[4];
    Adtopk__LocalTensor *list[4];
    Adtopk__LocalRegister batch = ADTOPK__LOCAL_REGISTER__INIT;
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    uint64_t shape = 3;
    char name[4][8];

    for (size_t i = 0; i < 4; i++) {
        adtopk__local_tensor__init(&tensor[i]);
        (void)snprintf(name[i], sizeof name[i], "t%zu", i);
        tensor[i].name = name[i];
        tensor[i].n_shape = 1;
        tensor[i].shape = &shape;
        tensor[i].forms = LOCAL_FORM_LIST;
        list[i] = &tensor[i];
    }
    batch.n_tensors = 4;
    batch.tensors = list;
    request.kind_case = REGISTER;
    request.register_ = &batch;
    reach(scene, SESSION_OPEN);
    joining_take(&scene->session, &request);
    joining_take(&scene->session, &request);
    assert_int_equal(scene->session.tensors, 2);
    assert_int_equal(scene->events[EVENT_RANK_REGISTER], 3);
    ask(scene, COMMIT);
    assert_int_equal(scene->session.verdict, VERDICT_ERROR);
    assert_non_null(strstr(scene->session.verdict_error.text, "t2"));
    assert_int_equal(scene->events[EVENT_RANK_COMMIT], 0);
}

static void test_verdict(void **state)
{
    const struct error why = {.code = ADTOPK_ERR_STATE, .text = "why"};
    struct scene *scene = *state;

    reach(scene, SESSION_MAPPED);
    assert_false(session_execute(&scene->session));
    session_judge(&scene->session, VERDICT_END, &why);
    assert_true(session_execute(&scene->session));
    assert_int_equal(scene->session.state, SESSION_MAPPED); /* it waits */
    answer_emptied(&scene->doors);
    assert_true(session_execute(&scene->session));
    assert_int_equal(scene->session.state, SESSION_ENDED);
    assert_string_equal(scene->lost, "process 9: why");
    assert_false(session_execute(&scene->session));
}

/* The core's own reason comes first, so the verdict has no effect. */
static void test_verdict_after_the_reason(void **state)
{
    struct scene *scene = *state;

    scene->has_no_results = true;
    reach(scene, SESSION_MAPPED);
    act(scene, ACTION_READY);
    assert_int_equal(scene->session.verdict, VERDICT_END);
    act(scene, ACTION_FAILED);
    assert_string_equal(scene->error, "rank 7 is gone");
    answer_emptied(&scene->doors);
    (void)session_execute(&scene->session);
    assert_string_equal(scene->error, "rank 7 is gone");
    assert_int_equal(scene->events[EVENT_RANK_LOST], 0);
}

static void test_deadlines(void **state)
{
    struct scene *scene = *state;

    scene->doors.limits.commit_ms = 200;
    reach(scene, SESSION_OPEN);
    scene->loop.time = 199;
    assert_true(session_expire(&scene->door));
    assert_int_equal(scene->session.state, SESSION_OPEN);
    scene->loop.time = 200;
    assert_true(session_expire(&scene->door));
    assert_int_equal(scene->session.state, SESSION_ENDED);
    assert_non_null(strstr(scene->error, "nothing was committed within 200 ms"));
    scene->loop.time = 1200;
    assert_false(session_expire(&scene->door));
    assert_int_equal(scene->session.state, SESSION_CLOSED);
}

/* ---- planted violations of the rules of ownership ---- */

static void close_a_known_rank(void *context)
{
    session_close(context);
}

static void free_a_lent_arena(void *context)
{
    struct session *session = context;

    session->users = 0;
    door_leave(session);
}

static void drop_once_too_often(void *context)
{
    struct session *session = context;

    session_drop(session);
    session_drop(session);
}

static void accept_without_an_arena(void *context)
{
    struct scene *scene = context;

    scene->takes_no_arena = true;
    ask(scene, COMMIT);
}

static void speak_after_the_last_word(void *context)
{
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;
    struct session *session = context;

    session_end(session, ADTOPK_ERR_PEER, "over");
    session_send(session, &reply);
}

static void take_before_the_verdict(void *context)
{
    const struct error why = {.code = ADTOPK_ERR_STATE, .text = "why"};
    struct scene *scene = context;

    session_judge(&scene->session, VERDICT_END, &why);
    ask(scene, LEAVE);
}

static void train_without_mapping(void *context)
{
    session_move(context, SESSION_READY);
}

static void stop_with_a_session(void *context)
{
    door_free(context);
}

static void forget_what_waits_to_be_sent(void *context)
{
    struct local_session session = {.outbox = {.count = 1}};

    (void)context;
    local_session_free(&session.base);
}

static void forget_an_arena(void *context)
{
    struct local_session session = {.gradients = {{.bytes = context}}};

    local_session_free(&session.base);
}

static void test_planted(void **state)
{
    struct scene *scene = *state;

    assert_aborts(stop_with_a_session, &scene->door, "door->sessions == NULL");
    reach(scene, SESSION_OPEN);
    assert_aborts(accept_without_an_arena, scene, "session->lent");
    assert_aborts(train_without_mapping, &scene->session, "protocol_may_move");
    ask(scene, COMMIT);
    assert_aborts(close_a_known_rank, &scene->session, "!session->known");
    assert_aborts(free_a_lent_arena, &scene->session, "session->lent == 0");
    assert_aborts(drop_once_too_often, &scene->session, "session->users > 0");
    assert_aborts(speak_after_the_last_word, &scene->session, "!session->told");
    assert_aborts(take_before_the_verdict, scene, "session->verdict == VERDICT_NONE");
    assert_aborts(forget_what_waits_to_be_sent, scene, "outbox.count == 0");
    assert_aborts(forget_an_arena, scene, "gradients[0].bytes == NULL");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_by_state),
        TEST(test_life),
        TEST(test_returns_with_batches),
        TEST(test_refused_when_it_returns),
        TEST(test_refused_by_the_core),
        TEST(test_open_refused),
        TEST(test_lost_once),
        TEST(test_fault_of_sending),
        TEST(test_wrong_request),
        TEST(test_push_at_a_wrong_time),
        TEST(test_register),
        TEST(test_verdict),
        TEST(test_verdict_after_the_reason),
        TEST(test_deadlines),
        TEST(test_planted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
