/* Requests about one job, and those that change something: documents, tickets, time limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "control_host.h"

/* Checks the number of "unmatched_rules". */
static void assert_unmatched(const cJSON *object, int count)
{
    const cJSON *rules = cJSON_GetObjectItemCaseSensitive(object, "unmatched_rules");

    assert_true(cJSON_IsArray(rules));
    assert_int_equal(cJSON_GetArraySize(rules), count);
    for (int i = 0; i < count; i++) {
        assert_string_equal(cJSON_GetArrayItem(rules, i)->valuestring, "lost*");
    }
}

/* ------------------------------------------------------------------ requests */

static char *text_of(const char *text)
{
    return (char *)(uintptr_t)text; /* the messages have no const */
}

static void send_tensors(int fd, const char *job, uint32_t first)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    Adtopk__ControlTensors tensors = ADTOPK__CONTROL_TENSORS__INIT;

    tensors.job = text_of(job);
    tensors.first = first;
    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_TENSORS;
    request.tensors = &tensors;
    send_message(fd, &request);
}

static void send_get(int fd, const char *job)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    Adtopk__ControlPolicyGet get = ADTOPK__CONTROL_POLICY_GET__INIT;

    get.job = text_of(job);
    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_POLICY_GET;
    request.policy_get = &get;
    send_message(fd, &request);
}

static void send_set(int fd, const char *job, const char *policy, uint32_t timeout_ms)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    Adtopk__ControlPolicySet set = ADTOPK__CONTROL_POLICY_SET__INIT;

    set.job = text_of(job);
    set.policy = text_of(policy);
    set.merge = 1;
    set.check_version = 1;
    set.if_version = 2;
    set.timeout_ms = timeout_ms;
    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_POLICY_SET;
    request.policy_set = &set;
    send_message(fd, &request);
}

static void send_log(int fd, const char *job)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    Adtopk__ControlPolicyLog log = ADTOPK__CONTROL_POLICY_LOG__INIT;

    log.job = text_of(job);
    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_POLICY_LOG;
    request.policy_log = &log;
    send_message(fd, &request);
}

static void send_verify(int fd, const char *job)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    Adtopk__ControlVerify verify = ADTOPK__CONTROL_VERIFY__INIT;

    verify.job = text_of(job);
    verify.timeout_ms = 600000;
    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_VERIFY;
    request.verify = &verify;
    send_message(fd, &request);
}

static void send_checkpoint(int fd, const char *job, uint32_t timeout_ms)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    Adtopk__ControlCheckpoint checkpoint = ADTOPK__CONTROL_CHECKPOINT__INIT;

    checkpoint.job = text_of(job);
    checkpoint.timeout_ms = timeout_ms;
    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_CHECKPOINT;
    request.checkpoint = &checkpoint;
    send_message(fd, &request);
}

static void send_ranks(int fd, const char *job, uint32_t timeout_ms)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    Adtopk__ControlRanks ranks = ADTOPK__CONTROL_RANKS__INIT;

    ranks.job = text_of(job);
    ranks.timeout_ms = timeout_ms;
    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_RANKS;
    request.ranks = &ranks;
    send_message(fd, &request);
}

static cJSON *drain(struct daemon *daemon, int fd, bool undo)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    Adtopk__ControlDrain message = ADTOPK__CONTROL_DRAIN__INIT;

    message.undo = undo;
    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_DRAIN;
    request.drain = &message;
    send_message(fd, &request);
    return receive_document(daemon, fd);
}

/* ------------------------------------------------------------------ documents */

static void test_jobs_and_peers(void **state)
{
    struct daemon *daemon = *state;
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    Adtopk__ControlJobs jobs = ADTOPK__CONTROL_JOBS__INIT;
    Adtopk__ControlPeers peers = ADTOPK__CONTROL_PEERS__INIT;
    int fd = connect_client(daemon);
    cJSON *document;

    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_JOBS;
    request.jobs = &jobs;
    send_message(fd, &request);
    document = receive_document(daemon, fd);
    assert_number(document, "node", 3);
    assert_string_equal(text(element(document, "jobs", 0), "name"), "digits");
    assert_number(element(document, "jobs", 0), "policy_version", 2);
    assert_number(element(document, "jobs", 0), "policy_step", 20);
    assert_number(element(document, "jobs", 0), "policy_next_version", 3);
    assert_number(element(document, "jobs", 0), "policy_next_step", 50);
    assert_number(element(document, "jobs", 0), "elements", 303);
    assert_number(element(document, "jobs", 1), "tensors", BIG_JOB_TENSORS);
    cJSON_Delete(document);

    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_PEERS;
    request.peers = &peers;
    send_message(fd, &request);
    document = receive_document(daemon, fd);
    assert_string_equal(text(element(document, "peers", 0), "state"), "up");
    assert_number(element(document, "peers", 0), "bytes_sent", 123);
    assert_number(element(document, "peers", 0), "resent", 4);
    assert_number(element(document, "peers", 0), "reopened", 2);
    assert_number(element(document, "peers", 0), "resent_bytes", 567);
    assert_number(element(document, "peers", 0), "copied_bytes", 5678);
    assert_number(element(document, "peers", 0), "checked_bytes", 56789);
    assert_number(element(document, "peers", 0), "round_trip_us", 250);
    cJSON_Delete(document);
    (void)close(fd);
}

static void test_tensors(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    cJSON *document;

    send_tensors(fd, "digits/r7", 1);
    document = receive_document(daemon, fd);
    assert_number(document, "tensors_count", 3);
    assert_number(document, "first", 1);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "tensors")), 2);
    assert_string_equal(text(element(document, "tensors", 0), "name"), "layer1.weight");
    assert_string_equal(text(element(document, "tensors", 0), "scope"), "rank");
    assert_string_equal(text(element(document, "tensors", 0), "values"), "bf16");
    assert_string_equal(text(element(document, "tensors", 0), "indices"), "rice");
    assert_number(element(document, "tensors", 0), "density", 0.1);
    assert_number(document, "tensors_omitted", 0);
    cJSON_Delete(document);

    daemon->core.job[1].key = (struct job_key){.owner = 5, .name = "big", .run_id = "1"};
    send_tensors(fd, "big", 100);
    document = receive_document(daemon, fd);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "tensors")), 1024);
    assert_number(document, "tensors_omitted", BIG_JOB_TENSORS - 100 - 1024);
    cJSON_Delete(document);
    send_tensors(fd, "big", UINT32_MAX);
    document = receive_document(daemon, fd);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "tensors")), 0);
    cJSON_Delete(document);
    (void)close(fd);
}

static void test_policy(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    cJSON *document;

    send_get(fd, "1000:digits");
    document = receive_document(daemon, fd);
    assert_string_equal(text(document, "run_id"), "r7");
    assert_number(document, "owner", 1000);
    assert_number(document, "version", 2);
    assert_number(document, "step", 20);
    assert_number(document, "next_version", 3);
    assert_number(cJSON_GetObjectItem(document, "policy"), "density", 0.1);
    cJSON_Delete(document);

    send_get(fd, ""); /* the default of the daemon, with every key */
    document = receive_document(daemon, fd);
    assert_null(cJSON_GetObjectItem(document, "name"));
    assert_number(cJSON_GetObjectItem(document, "policy"), "density", 0.25);
    assert_string_equal(text(cJSON_GetObjectItem(document, "policy"), "sparsifier"), "topk");
    cJSON_Delete(document);

    daemon->core.changes = 2;
    send_log(fd, "digits");
    document = receive_document(daemon, fd);
    assert_number(document, "version", 2);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "changes")), 2);
    assert_number(element(document, "changes", 0), "version", 2);
    assert_number(element(document, "changes", 0), "step", 20);
    assert_number(element(document, "changes", 1), "node", 5);
    assert_number(element(document, "changes", 1), "uid", 1000);
    assert_number(element(document, "changes", 1), "pid", 77);
    cJSON_Delete(document);
    (void)close(fd);
}

/* The changes can be read after the job has ended. Another run of the same name has its own. */
static void test_policy_log_of_an_ended_job(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    cJSON *document;

    daemon->core.changes = 2;
    history_record(&daemon->history, &daemon->core, 1);
    daemon->core.changes = 0;
    send_log(fd, "digits"); /* the job lives */
    document = receive_document(daemon, fd);
    assert_string_equal(text(document, "state"), "active");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "changes")), 0);
    cJSON_Delete(document);
    daemon->core.jobs = 0;
    send_log(fd, "digits");
    document = receive_document(daemon, fd);
    assert_string_equal(text(document, "state"), "done");
    assert_number(document, "version", 2);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "changes")), 2);
    assert_number(element(document, "changes", 0), "step", 20);
    assert_number(element(document, "changes", 1), "version", 1);
    cJSON_Delete(document);
    send_log(fd, "others");
    assert_refused(daemon, fd, ADTOPK_ERR_ARGUMENT, "no job \"others\"");
}

/* Of several ended runs the last one counts. */
static void test_policy_log_of_the_last_run(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    cJSON *document;

    for (unsigned run = 0; run < HISTORY_JOBS_A_USER + 2; run++) {
        daemon->core.job[0].id = 100 + run;
        (void)snprintf(daemon->core.job[0].key.run_id, CORE_KEY_SIZE, "r%u", run);
        history_record(&daemon->history, &daemon->core, 1);
    }
    daemon->core.jobs = 0;
    assert_int_equal(daemon->history.count, HISTORY_JOBS_A_USER);
    send_log(fd, "digits");
    document = receive_document(daemon, fd);
    assert_string_equal(text(document, "run_id"), "r17");
    cJSON_Delete(document);
    send_log(fd, "digits/r2");
    cJSON_Delete(receive_document(daemon, fd));
    send_log(fd, "digits/r1");
    assert_refused(daemon, fd, ADTOPK_ERR_ARGUMENT, "no job");
}

static void test_which_job(void **state)
{
    static const char *const names[] = {"digits", "digits/r7", "1000:digits", "1000:digits/r7",
        "di..s", "digits/r..", "1000:..", "1..:d..t../..7", "....7"};
    static const char *const others[] = {"digit", "digits/", "digits/r", "digits/r77", "0:digits",
        ":digits", "1000:", "/r7", "di..x", "..8", "digits/r7..7", "..s..s..s", "d.s"};
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        send_get(fd, names[i]);
        cJSON_Delete(receive_document(daemon, fd));
    }
    (void)close(fd);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        fd = connect_client(daemon);
        send_get(fd, others[i]);
        assert_refused(daemon, fd, ADTOPK_ERR_ARGUMENT, "has ranks on this node");
    }
    daemon->core.job[1].key = (struct job_key){.owner = 7, .name = "digits", .run_id = "r7"};
    fd = connect_client(daemon);
    send_get(fd, "digits/r7");
    assert_refused(daemon, fd, ADTOPK_ERR_ARGUMENT, "fits 2 jobs: 1000:digits/r7, 7:digits/r7");
    fd = connect_client(daemon);
    send_get(fd, "7:digits");
    cJSON_Delete(receive_document(daemon, fd));
    (void)close(fd);

    history_record(&daemon->history, &daemon->core, 1);
    daemon->core.jobs = 0;
    fd = connect_client(daemon);
    send_get(fd, "digits");
    assert_refused(daemon, fd, ADTOPK_ERR_STATE, "\"digits\" has ended");
}

static void test_longest_names(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    struct job_key *key = &daemon->core.job[0].key;
    char name[200];

    key->owner = UINT32_MAX;
    memset(key->name, 'n', CORE_KEY_SIZE - 1);
    memset(key->run_id, 'r', CORE_KEY_SIZE - 1);
    (void)snprintf(name, sizeof(name), "%u:%s/%s", key->owner, key->name, key->run_id);
    send_get(fd, name);
    cJSON_Delete(receive_document(daemon, fd));
    daemon->core.job[1].key = *key;
    daemon->core.job[1].key.owner--;
    send_get(fd, key->name);
    assert_refused(daemon, fd, ADTOPK_ERR_ARGUMENT, " fits 2 jobs: 4294967295:nnn");
}

/* ------------------------------------------------------------------ changes */

static void test_policy_set(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    cJSON *document;

    send_set(fd, "digits", "{\"density\":0.5}", 1000);
    daemon_turn(daemon);
    assert_int_equal(daemon->events, 1);
    assert_int_equal(daemon->event.type, EVENT_POLICY);
    assert_int_equal(daemon->event.policy.job, 1);
    assert_string_equal(daemon->event.policy.text, "{\"density\":0.5}");
    assert_true(daemon->event.policy.merge);
    assert_int_equal(daemon->event.policy.if_version, 2);
    assert_int_equal(daemon->event.policy.uid, getuid());
    assert_int_equal(daemon->event.policy.pid, getpid());
    assert_non_null(strstr(daemon->log, "amends the policy of job 1000:digits/r7: {\"density\""));

    daemon->core.unmatched = 1;
    daemon_finish(daemon, ACTION_POLICY, daemon->event.policy.ticket, ADTOPK_OK, NULL);
    document = receive_document(daemon, fd);
    assert_string_equal(text(document, "name"), "digits");
    assert_number(document, "version", 3);
    assert_number(document, "step", 39);
    assert_unmatched(document, 1);
    cJSON_Delete(document);
    assert_non_null(
        strstr(daemon->log, "4 policy version 3 of job 1000:digits/r7 holds from step 39"));
    send_get(fd, "digits"); /* the connection stays open */
    document = receive_document(daemon, fd);
    assert_unmatched(document, 1);
    cJSON_Delete(document);
    (void)close(fd);
}

static void test_refused_and_failed_changes(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);

    daemon->refusal = ADTOPK_ERR_POLICY;
    send_set(fd, "digits", "{}", 1000);
    assert_refused(daemon, fd, ADTOPK_ERR_POLICY, "the core says no");
    daemon->refusal = ADTOPK_OK;
    fd = connect_client(daemon);
    send_set(fd, "digits", "{}", 1000);
    daemon_turn(daemon);
    daemon_finish(daemon, ACTION_POLICY, daemon->event.policy.ticket, ADTOPK_ERR_PEER, "node 1");
    assert_refused(daemon, fd, ADTOPK_ERR_PEER, "node 1");
    for (unsigned i = 0; i < 2; i++) {
        fd = connect_client(daemon);
        send_set(fd, "digits", "{}", i == 0 ? 0 : 600001);
        assert_refused(daemon, fd, ADTOPK_ERR_ARGUMENT, "1 to 600000");
    }
    assert_int_equal(daemon->events, 1);
}

static void test_verify(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    cJSON *document;

    for (unsigned i = 0; i < 3; i++) {
        daemon->core.broken = i == 1 ? 2 : UINT32_MAX;
        daemon->core.verified_step = i == 2 ? UINT64_MAX : 39;
        send_verify(fd, "digits");
        daemon_turn(daemon);
        assert_int_equal(daemon->event.type, EVENT_VERIFY);
        assert_int_equal(daemon->event.asked.job, 1);
        daemon_finish(daemon, ACTION_VERIFIED, daemon->event.asked.ticket, ADTOPK_OK, NULL);
        document = receive_document(daemon, fd);
        assert_int_equal(cJSON_IsTrue(cJSON_GetObjectItem(document, "conserved")), i == 0);
        assert_number(document, "step", 39);
        assert_number(document, "tensors", 3);
        assert_number(document, "checked", i == 2 ? 0 : 3);
        assert_number(document, "unbalanced", i == 1 ? 1 : 0);
        if (i == 1) {
            const cJSON *tensor = element(document, "out_of_balance", 0);

            assert_string_equal(text(tensor, "name"), "layer2.weight");
            assert_number(tensor, "residual_magnitude", 1);
            assert_true(element(tensor, "off", 0)->valuedouble == 0);
            assert_true(element(tensor, "off", 1)->valuedouble == -0.5);
            assert_true(number(document, "worst_share_of_tolerance") > 1);
        }
        cJSON_Delete(document);
    }
    send_verify(fd, "digits");
    daemon_turn(daemon);
    daemon->core.jobs = 0;
    daemon_finish(daemon, ACTION_VERIFIED, daemon->event.asked.ticket, ADTOPK_OK, NULL);
    assert_refused(daemon, fd, ADTOPK_ERR_STATE, "ended meanwhile");
}

static void test_checkpoint(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    cJSON *document;

    send_checkpoint(fd, "digits", 1000);
    daemon_turn(daemon);
    assert_int_equal(daemon->event.type, EVENT_CHECKPOINT);
    assert_int_equal(daemon->event.asked.job, 1);
    assert_non_null(strstr(daemon->log, "asks job 1000:digits/r7 for a checkpoint"));
    daemon_finish(daemon, ACTION_CHECKPOINT, daemon->event.asked.ticket, ADTOPK_OK, NULL);
    document = receive_document(daemon, fd);
    assert_string_equal(text(document, "name"), "digits");
    assert_number(document, "step", 39);
    cJSON_Delete(document);

    send_checkpoint(fd, "nothing", 1000);
    assert_refused(daemon, fd, ADTOPK_ERR_ARGUMENT, "no job \"nothing\" has ranks on this node");
    fd = connect_client(daemon);
    daemon->refusal = ADTOPK_ERR_STATE;
    send_checkpoint(fd, "digits", 1000);
    assert_refused(daemon, fd, ADTOPK_ERR_STATE, "the core says no");
}

/* Of this node at once; of all when they have answered. */
static void test_ranks(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    cJSON *document;

    send_ranks(fd, "digits", 0);
    document = receive_document(daemon, fd);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "ranks")), 2);
    assert_number(element(document, "ranks", 1), "node", 3);
    assert_null(cJSON_GetObjectItem(document, "others"));
    cJSON_Delete(document);

    daemon->core.job[0].nodes = 3;
    send_ranks(fd, "digits", 10000);
    daemon_turn(daemon);
    assert_int_equal(daemon->event.type, EVENT_RANKS);
    assert_int_equal(daemon->event.asked.job, 1);
    daemon_finish(daemon, ACTION_RANKS, daemon->event.asked.ticket, ADTOPK_OK, NULL);
    document = receive_document(daemon, fd);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "ranks")), 4);
    assert_number(element(document, "ranks", 2), "rank", 1);
    assert_number(element(document, "ranks", 2), "node", 6);
    assert_number(element(document, "ranks", 2), "pid", 99);
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(element(document, "others", 0), "answered")));
    assert_number(element(document, "others", 1), "node", 8);
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(element(document, "others", 1), "answered")));
    assert_number(document, "ranks_omitted", 0);
    cJSON_Delete(document);

    send_ranks(fd, "", 0); /* the other job does not train */
    document = receive_document(daemon, fd);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "jobs")), 1);
    assert_number(element(cJSON_GetObjectItem(document, "jobs")->child, "ranks", 1), "rank", 2);
    cJSON_Delete(document);

    send_ranks(fd, "", 10000); /* as of a script whose variable is empty */
    assert_refused(daemon, fd, ADTOPK_ERR_ARGUMENT, "no job \"\" has ranks on this node");
}

static void test_drain(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    unsigned replies;
    cJSON *document;

    for (int undo = 0; undo < 2; undo++) {
        assert_int_equal(control_is_draining(daemon->control), undo);
        document = drain(daemon, fd, undo);
        assert_int_equal(cJSON_IsTrue(cJSON_GetObjectItem(document, "draining")), !undo);
        assert_number(document, "sessions", 9);
        cJSON_Delete(document);
        document = ask(daemon, fd, NULL, &replies);
        assert_int_equal(cJSON_IsTrue(cJSON_GetObjectItem(document, "draining")), !undo);
        cJSON_Delete(document);
    }
    assert_non_null(strstr(daemon->log, "4 draining, no new ranks: asked by uid"));
    (void)close(fd);
}

/* ------------------------------------------------------------------ waiting */

static void test_client_that_goes_while_it_waits(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    uint64_t ticket;

    send_set(fd, "digits", "{}", 600000);
    daemon_turn(daemon);
    ticket = daemon->event.policy.ticket;
    (void)close(fd);
    daemon_turn(daemon);
    daemon_finish(daemon, ACTION_POLICY, ticket, ADTOPK_OK, NULL);
    assert_non_null(strstr(daemon->log, "whose client has gone"));
    assert_serves(daemon);
    daemon_finish(daemon, ACTION_POLICY, 4711, ADTOPK_OK, NULL); /* a ticket that no client has */
    assert_serves(daemon);
}

static void serve_for(struct daemon *daemon, unsigned ms)
{
    uint64_t end = uv_hrtime() + ms * UINT64_C(1000000);

    while (uv_hrtime() < end) {
        (void)uv_run(&daemon->loop, UV_RUN_NOWAIT);
        (void)usleep(1000);
    }
}

/* A client that waits is not idle. The daemon reads its other messages afterwards. */
static void test_client_that_waits_for_long(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    unsigned replies;

    send_set(fd, "digits", "{}", 600000);
    send_request(fd, NULL);
    serve_for(daemon, 3 * IDLE_MS);
    daemon_finish(daemon, ACTION_POLICY, daemon->event.policy.ticket, ADTOPK_OK, NULL);
    assert_string_equal(daemon->note, "");
    cJSON_Delete(receive_document(daemon, fd));
    assert_string_equal(daemon->note, "the job waits for rank 3 to push");
    cJSON_Delete(receive_document(daemon, fd));
    cJSON_Delete(ask(daemon, fd, NULL, &replies));
    (void)close(fd);
}

/* The daemon tells a client that no job waits. */
static void test_waiting_for_nothing(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);

    daemon->core.job[0].waiting_for[0] = '\0';
    send_set(fd, "digits", "{}", CONTROL_NOTE_MS + IDLE_MS);
    assert_refused(daemon, fd, ADTOPK_ERR_TIMEOUT, "goes on with it all the same");
    assert_string_equal(daemon->note, "");
}

/* The daemon learns only later for what the job waits. */
static void test_waiting_for_something_in_the_end(void **state)
{
    struct daemon *daemon = *state;
    char *waiting_for = daemon->core.job[0].waiting_for;
    int fd = connect_client(daemon);

    waiting_for[0] = '\0';
    send_set(fd, "digits", "{}", 600000);
    serve_for(daemon, CONTROL_NOTE_MS + IDLE_MS);
    (void)strcpy(waiting_for, "node 2");
    serve_for(daemon, 2 * IDLE_MS);
    daemon_finish(daemon, ACTION_POLICY, daemon->event.policy.ticket, ADTOPK_OK, NULL);
    cJSON_Delete(receive_document(daemon, fd));
    assert_string_equal(daemon->note, "the job waits for node 2");
    (void)close(fd);
}

static void test_time_limit(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);

    send_set(fd, "digits", "{}", 50);
    assert_refused(daemon, fd, ADTOPK_ERR_TIMEOUT,
        "no outcome within 50 ms; the daemon goes on with "
        "it all the same; the job waits for rank 3");
    daemon_finish(daemon, ACTION_POLICY, daemon->event.policy.ticket, ADTOPK_OK, NULL);
    assert_serves(daemon);
}

/* Clients that ask and leave cause work in the core. There is a limit to that. */
static void test_too_many_tickets(void **state)
{
    struct daemon *daemon = *state;
    int fd;

    for (unsigned i = 0; i < CONTROL_PENDING; i++) {
        fd = connect_client(daemon);
        send_verify(fd, "digits");
        daemon_turn(daemon);
        (void)close(fd);
        daemon_turn(daemon);
    }
    assert_int_equal(daemon->events, CONTROL_PENDING);
    fd = connect_client(daemon);
    send_verify(fd, "digits");
    assert_refused(
        daemon, fd, ADTOPK_ERR_STATE, "64 requests are under way on this node already, of 64");
    daemon_finish(daemon, ACTION_VERIFIED, 1, ADTOPK_OK, NULL);
    fd = connect_client(daemon);
    send_verify(fd, "digits");
    daemon_turn(daemon);
    assert_int_equal(daemon->events, CONTROL_PENDING + 1);
    (void)close(fd);
}

static void test_closing_while_a_client_waits(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    unsigned replies;
    uint32_t status;

    send_verify(fd, "digits");
    daemon_turn(daemon);
    control_close(daemon->control);
    daemon->control = NULL;
    assert_null(receive_answer(daemon, fd, &status, &replies));
    (void)close(fd);
}

#define WITH_DAEMON(test) cmocka_unit_test_setup_teardown(test, daemon_setup, daemon_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_DAEMON(test_jobs_and_peers),
        WITH_DAEMON(test_tensors),
        WITH_DAEMON(test_policy),
        WITH_DAEMON(test_policy_log_of_an_ended_job),
        WITH_DAEMON(test_policy_log_of_the_last_run),
        WITH_DAEMON(test_which_job),
        WITH_DAEMON(test_longest_names),
        WITH_DAEMON(test_policy_set),
        WITH_DAEMON(test_refused_and_failed_changes),
        WITH_DAEMON(test_verify),
        WITH_DAEMON(test_checkpoint),
        WITH_DAEMON(test_ranks),
        WITH_DAEMON(test_drain),
        WITH_DAEMON(test_client_that_goes_while_it_waits),
        WITH_DAEMON(test_client_that_waits_for_long),
        WITH_DAEMON(test_waiting_for_nothing),
        WITH_DAEMON(test_waiting_for_something_in_the_end),
        WITH_DAEMON(test_time_limit),
        WITH_DAEMON(test_too_many_tickets),
        WITH_DAEMON(test_closing_while_a_client_waits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
