/* The documents of the control socket show the state of the core. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "control_host.h"

static void test_status(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    unsigned replies;
    cJSON *document = ask(daemon, fd, NULL, &replies);
    const cJSON *job = element(document, "jobs", 0);

    assert_int_equal(replies, 1);
    assert_number(document, "schema", 1);
    assert_string_equal(text(document, "version"), ADTOPK_VERSION);
    assert_number(document, "node", 3);
    assert_number(document, "pid", getpid());
    assert_number(document, "uptime_s", 0);
    assert_string_equal(text(document, "incarnation"), "0000000000abcdef");
    assert_number(document, "sessions", 9);
    assert_number(cJSON_GetObjectItem(document, "trainers"), "opened", 20);
    assert_number(cJSON_GetObjectItem(document, "trainers"), "refused", 3);
    assert_number(cJSON_GetObjectItem(document, "trainers"), "keys", 4);
    assert_number(cJSON_GetObjectItem(document, "trainers"), "handshakes", 5);
    assert_number(cJSON_GetObjectItem(document, "trainers"), "lost", 6);
    assert_number(cJSON_GetObjectItem(document, "trainers"), "protocol_errors", 1);
    assert_number(cJSON_GetObjectItem(document, "loop"), "longest_iteration_us", 1840);
    assert_number(cJSON_GetObjectItem(document, "loop"), "longest_iteration_last_minute_us", 310);
    assert_number(cJSON_GetObjectItem(document, "loop"), "cpu_us", 72000);
    assert_number(cJSON_GetObjectItem(document, "workers"), "threads", 2);
    assert_number(cJSON_GetObjectItem(document, "workers"), "busy_us", 51000);
    assert_number(cJSON_GetObjectItem(document, "log"), "left_out", 7);
    assert_number(cJSON_GetObjectItem(document, "log"), "lost", 5);
    assert_number(element(document, "peers", 0), "node", 1);
    assert_string_equal(text(element(document, "peers", 0), "state"), "up");
    assert_string_equal(text(element(document, "peers", 0), "incarnation"), "ffffffffffffffff");
    assert_number(element(document, "peers", 0), "reopened", 2);
    assert_string_equal(text(element(document, "peers", 1), "state"), "down");
    assert_string_equal(text(job, "name"), "digits");
    assert_string_equal(text(job, "run_id"), "r7");
    assert_string_equal(text(job, "state"), "active");
    assert_string_equal(text(job, "waiting_for"), "rank 3 to push");
    assert_string_equal(text(job, "reason"), "");
    assert_number(cJSON_GetObjectItem(document, "strangers"), "packets", 0);
    assert_number(job, "owner", 1000);
    assert_number(job, "world_size", 4);
    assert_number(job, "local_ranks", 2);
    assert_number(job, "nodes", 2);
    assert_number(job, "view", 1);
    assert_number(job, "steps_done", 40);
    /* An invalid byte must not make the document invalid. */
    assert_string_equal(text(element(document, "jobs", 1), "name"), "b?g \"\xC3\xBC\"");
    cJSON_Delete(document);
    (void)close(fd);
}

static void test_stats_of_one_job(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    unsigned replies;
    cJSON *document = ask(daemon, fd, "digits", &replies);
    const cJSON *job = element(document, "jobs", 0);
    const cJSON *phases = cJSON_GetObjectItemCaseSensitive(job, "phase_seconds");
    const cJSON *tensor = element(job, "tensors_detail", 2);

    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "jobs")), 1);
    assert_number(document, "schema", 1);
    assert_string_equal(text(job, "name"), "digits");
    assert_number(job, "steps", 40);
    assert_number(job, "steps_withdrawn", 2);
    assert_number(job, "tensors", 3);
    assert_number(job, "elements", 303);
    assert_number(job, "rounds", 80);
    assert_number(job, "rounds_retried", 5);
    assert_number(job, "dense_bytes", 48480);
    assert_number(job, "wire_bytes_sent", 9000);
    assert_number(job, "payload_bytes", 8000);
    assert_number(job, "sparse_bytes_sent", 6000);
    assert_number(job, "nonzeros_sent", 1500);
    assert_number(job, "bits_per_nonzero", 32);
    assert_number(job, "residual_mean", 0.025);
    assert_number(job, "residual_step", 39);
    assert_number(job, "unbalanced", 2);
    assert_number(job, "predicted_us", 900);
    assert_number(job, "measured_us", 1000);
    assert_number(phases, "collect", 1);
    assert_number(phases, "select", 2);
    assert_number(phases, "exchange", 3);
    assert_number(phases, "reduce", 4);
    assert_number(phases, "settle", 0.5);
    assert_number(job, "tensors_omitted", 0);
    assert_string_equal(text(tensor, "name"), "layer2.weight");
    assert_string_equal(text(tensor, "dtype"), "bf16");
    assert_number(tensor, "elements", 102);
    assert_true(element(tensor, "input", 1)->valuedouble == -2);
    assert_true(element(tensor, "applied", 0)->valuedouble == 0.25);
    assert_number(tensor, "residual_magnitude", 1);
    assert_number(tensor, "residual_step", 39);
    cJSON_Delete(document);
    (void)close(fd);
}

static void test_long_document(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    unsigned replies;
    cJSON *document = ask(daemon, fd, "", &replies);
    const cJSON *job = element(document, "jobs", 1);

    assert_true(replies > 3);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "jobs")), 2);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(job, "bits_per_nonzero")));
    assert_int_equal(
        cJSON_GetArraySize(cJSON_GetObjectItem(job, "tensors_detail")), 1021); /* three before */
    assert_number(job, "tensors_omitted", BIG_JOB_TENSORS - 1021);
    assert_string_equal(text(element(job, "tensors_detail", 1020), "name"), "layer1020.weight");
    assert_number(element(document, "links", 0), "bytes_sent", 123);
    assert_number(element(document, "links", 0), "resent", 4);
    assert_number(element(document, "links", 0), "reopened", 2);
    cJSON_Delete(document);
    cJSON_Delete(ask(daemon, fd, NULL, &replies)); /* the connection stays open */
    (void)close(fd);
}

static void test_ended_jobs(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    unsigned replies;
    cJSON *document;

    history_record(&daemon->history, &daemon->core, 2);
    history_record(&daemon->history, &daemon->core, 77); /* of no job */
    daemon->core.job[0].steps_done = 41;
    history_record(&daemon->history, &daemon->core, 1);
    document = ask(daemon, fd, NULL, &replies);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "jobs")), 2);
    assert_string_equal(text(element(document, "jobs", 0), "state"), "active");
    cJSON_Delete(document);

    daemon->core.jobs = 0; /* both jobs end */
    document = ask(daemon, fd, "digits", &replies);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "jobs")), 1);
    assert_string_equal(text(element(document, "jobs", 0), "state"), "done");
    assert_number(element(document, "jobs", 0), "steps", 41);
    assert_number(element(document, "jobs", 0), "tensors", 3);
    assert_number(element(document, "jobs", 0), "tensors_omitted", 3);
    cJSON_Delete(document);

    daemon->core.jobs = 1; /* the first is started again, and ends again and again */
    daemon->core.job[0].steps_done = 5;
    for (unsigned i = 0; i < 3 * HISTORY_JOBS_A_USER; i++) {
        history_record(&daemon->history, &daemon->core, 1);
    }
    assert_int_equal(daemon->history.count, 2);
    for (unsigned i = 0; i < 3 * HISTORY_JOBS_A_USER; i++) {
        daemon->core.job[0].id = 1000 + i;
        daemon->core.job[0].steps_done = i;
        history_record(&daemon->history, &daemon->core, 1);
    }
    daemon->core.jobs = 0;
    document = ask(daemon, fd, NULL, &replies);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "jobs")),
        1 + HISTORY_JOBS_A_USER); /* the other user's job is the first */
    assert_number(element(document, "jobs", 1), "steps_done", 2 * HISTORY_JOBS_A_USER);
    assert_number(
        element(document, "jobs", HISTORY_JOBS_A_USER), "steps_done", 3 * HISTORY_JOBS_A_USER - 1);
    cJSON_Delete(document);
    (void)close(fd);
}

static unsigned kept_of(const struct history *history, uint32_t owner)
{
    unsigned count = 0;

    for (uint32_t i = 0; i < history->count; i++) {
        count += history->job[i].info.key.owner == owner ? 1 : 0;
    }
    return count;
}

static void end_jobs(struct daemon *daemon, uint32_t owner, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        daemon->core.job[0].id = owner * 1000 + i;
        daemon->core.job[0].key.owner = owner;
        history_record(&daemon->history, &daemon->core, 1);
    }
}

/* Many jobs of one user do not push out the ended jobs of others. */
static void test_ended_jobs_of_several_users(void **state)
{
    struct daemon *daemon = *state;

    daemon->core.jobs = 1;
    end_jobs(daemon, 1, 2);
    end_jobs(daemon, 2, 100);
    assert_int_equal(kept_of(&daemon->history, 1), 2);
    assert_int_equal(kept_of(&daemon->history, 2), HISTORY_JOBS_A_USER);
    for (uint32_t owner = 3; owner < 40; owner++) {
        end_jobs(daemon, owner, 5);
    }
    assert_int_equal(daemon->history.count, HISTORY_JOBS);
    for (uint32_t owner = 1; owner < 40; owner++) {
        assert_in_range(kept_of(&daemon->history, owner), 1, 5);
    }
}

static void test_strangers(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    unsigned replies;
    cJSON *document;
    const cJSON *strangers;

    daemon->core.refused =
        (struct link_refused){.packets = 9, .strangers = 4, .source = 2, .destination = 65534};
    document = ask(daemon, fd, NULL, &replies);
    strangers = cJSON_GetObjectItem(document, "strangers");
    assert_number(strangers, "packets", 4);
    assert_number(strangers, "source", 2);
    assert_number(strangers, "destination", 65534);
    cJSON_Delete(document);
    (void)close(fd);
}

/* A job that fails is recorded with its reason. Other jobs are not recorded. */
static void test_failed_jobs(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    struct job_info failed;
    unsigned replies;
    cJSON *document;

    (void)strcpy(daemon->core.job[0].reason, "rank 3 (process 42) ended");
    assert_false(history_failed(&daemon->history, &daemon->core, 77, &failed));
    assert_int_equal(daemon->history.count, 0);
    assert_true(history_failed(&daemon->history, &daemon->core, 1, &failed));
    assert_true(history_failed(&daemon->history, &daemon->core, 1, &failed));
    assert_int_equal(daemon->history.count, 1);
    assert_string_equal(failed.reason, "rank 3 (process 42) ended");
    document = ask(daemon, fd, NULL, &replies); /* the core still has it */
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "jobs")), 2);
    cJSON_Delete(document);
    daemon->core.jobs = 0;
    document = ask(daemon, fd, NULL, &replies);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "jobs")), 1);
    assert_string_equal(text(element(document, "jobs", 0), "name"), "digits");
    assert_string_equal(text(element(document, "jobs", 0), "state"), "failed");
    assert_string_equal(text(element(document, "jobs", 0), "waiting_for"), "");
    assert_string_equal(text(element(document, "jobs", 0), "reason"), "rank 3 (process 42) ended");
    assert_number(element(document, "jobs", 0), "steps_done", 40);
    assert_number(element(document, "jobs", 0), "local_ranks", 0);
    assert_true(cJSON_IsNumber(cJSON_GetObjectItem(element(document, "jobs", 0), "ended_s")));
    cJSON_Delete(document);
    (void)close(fd);
}

static void test_unknown_job(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);

    send_request(fd, "nobody");
    assert_refused(daemon, fd, ADTOPK_ERR_ARGUMENT, "\"nobody\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_status, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(test_stats_of_one_job, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(test_long_document, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(test_ended_jobs, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(
            test_ended_jobs_of_several_users, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(test_failed_jobs, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(test_strangers, daemon_setup, daemon_teardown),
        cmocka_unit_test_setup_teardown(test_unknown_job, daemon_setup, daemon_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
