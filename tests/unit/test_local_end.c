/* The ends of a session: a job that fails, a daemon that dies or stops, a rank that closes, a
 * second session of the same rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <adtopk/stream.h>

#include "client/src/patience.h"
#include "local_rank.h"

#define NUMEL 1000u

static adtopk_context *open_ready(const char *job, uint32_t tensors, unsigned forms)
{
    return rank_ready(job, (struct rank_wish){.tensors = tensors, .numel = NUMEL, .forms = forms});
}

/* Starts a child that sends a process a signal after `ms`. */
static pid_t kill_later(pid_t victim, int ms)
{
    const pid_t child = fork();

    if (child == 0) {
        sleep_ms(ms);
        (void)kill(victim, SIGKILL);
        _exit(0);
    }
    return child;
}

/* A second context of the same rank is another job, as long as the first one lives. */
static void test_two_contexts(void **state)
{
    adtopk_context *first = open_ready("twice", 1, 0), *second = open_ready("twice", 1, 0);
    adtopk_context *third = open_ready("failing", 1, 0);
    char longest[CLIENT_KEY_MAX + 1];
    const struct adtopk_options options = rank_options(longest);

    (void)state;
    assert_string_equal(first->place.job, "twice");
    assert_string_equal(second->place.job, "twice#2");
    rank_train(second);
    rank_train(first);
    adtopk_close(first);
    first = open_ready("twice", 1, 0);
    assert_string_equal(first->place.job, "twice");
    adtopk_close(first);
    adtopk_close(second);
    assert_status(third, adtopk_step_wait(third), ADTOPK_ERR_PEER);
    first = rank_open("failing"); /* it failed: a new run of the same job */
    assert_string_equal(first->place.job, "failing");
    adtopk_close(first);
    adtopk_close(third);
    memset(longest, 'j', CLIENT_KEY_MAX);
    longest[CLIENT_KEY_MAX] = '\0';
    first = rank_open(longest);
    assert_status(NULL, adtopk_open(&options, &second), ADTOPK_ERR_ARGUMENT);
    assert_says(NULL, "set options.job");
    adtopk_close(first);
}

static void test_job_fails(void **state)
{
    adtopk_context *context = open_ready("failing", 1, 0);
    struct adtopk_update update = {.size = sizeof update};

    (void)state;
    assert_status(context, adtopk_step_wait(context), ADTOPK_ERR_PEER);
    assert_says(context, "rank 7 (process 42)");
    /* The error stays. */
    assert_status(context, adtopk_push_tensor(context, 0, NULL), ADTOPK_ERR_PEER);
    assert_status(context, adtopk_update(context, 0, &update), ADTOPK_ERR_PEER);
    assert_says(context, "rank 7 (process 42)");
    adtopk_close(context);
}

/* The page that all ranks read has room for the beginning of a sentence only. */
static void test_job_fails_at_length(void **state)
{
    adtopk_context *context = open_ready("failing300", 1, 0);
    char sentence[400];

    (void)state;
    (void)snprintf(sentence, sizeof sentence, "rank 7 (process 42) ended: %0300d", 0);
    assert_status(context, adtopk_step_end(context), ADTOPK_OK);
    sleep_ms(100); /* it computes, and looks at the page next */
    assert_status(context, adtopk_step_wait_for(context, 0), ADTOPK_ERR_PEER);
    assert_says(context, sentence);
    adtopk_close(context);
}

/* The job has ended, and the daemon does not know it yet when it takes the next entry. The rank
 * must learn why the job ended, not that nobody knows it. */
static void test_job_fails_meanwhile(void **state)
{
    const struct local_entry entry[] = {{.type = LOCAL_STEP_END, .number = 0},
        {.type = LOCAL_PUSH, .number = 1}, {.type = LOCAL_PUSH, .number = 1}};
    adtopk_context *context = open_ready("failing", 1, 0);

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        ring_writer_put(&context->ring, &entry[i]);
    }
    client_wake(context);
    context->step_state = CLIENT_STEP_ENDED;
    assert_status(context, adtopk_step_wait(context), ADTOPK_ERR_PEER);
    assert_says(context, "rank 7 (process 42)");
    adtopk_close(context);
}

static void test_daemon_dies(void **state)
{
    adtopk_context *context = open_ready("silent", 1, 0);
    adtopk_context *other = open_ready("other", 1, 0);
    pid_t killer;

    (void)state;
    killer = kill_later(daemon_.pid, 50);
    assert_status(context, adtopk_step_wait(context), ADTOPK_ERR_UNREACHABLE);
    assert_says(context, daemon_.path);
    (void)waitpid(killer, NULL, 0);
    (void)waitpid(daemon_.pid, NULL, 0);
    daemon_.pid = 0;
    /* The other rank can still write to memory that nobody reads, without SIGPIPE or SIGBUS. */
    assert_status(other, adtopk_push_tensor(other, 0, NULL), ADTOPK_OK);
    assert_status(other, adtopk_step_wait(other), ADTOPK_ERR_UNREACHABLE);
    adtopk_close(other);
    adtopk_close(context);
}

static void test_daemon_stops(void **state)
{
    adtopk_context *context = open_ready("silent", 1, 0);

    (void)state;
    assert_status(context, adtopk_step_end(context), ADTOPK_OK);
    assert_int_equal(daemon_stop(&daemon_), 0);
    assert_int_equal(access(daemon_.path, F_OK), -1);
    assert_status(context, adtopk_step_wait(context), ADTOPK_ERR_UNREACHABLE);
    assert_says(context, "stops");
    adtopk_close(context);
}

static void test_forked_child(void **state)
{
    adtopk_context *context = open_ready("fork", 1, 0);
    struct client_words words = {.count = 0};
    int status = -1;
    struct error err;
    pid_t child;

    (void)state;
    assert_int_equal(client_watch_add(context, &words, &err), ADTOPK_OK);
    rank_train(context);
    context->tensor[0].shown = &child; /* as if it were on a GPU */
    assert_ptr_equal(adtopk_device_update(context, 0), &child);
    child = fork();
    if (child == 0) {
        const bool refused = adtopk_push_tensor(context, 0, NULL) == ADTOPK_ERR_STATE &&
                             adtopk_step_wait(context) == ADTOPK_ERR_STATE &&
                             strstr(adtopk_message(context), "forked") != NULL;
        const bool hidden =
            adtopk_gradient(context, 0) == NULL && adtopk_device_update(context, 0) == NULL;
        const struct daemon own = {.pid = getpid()};
        const int before = daemon_descriptors(&own);

        adtopk_close(context); /* its copy only, with the socket and two descriptors for sleep */
        _exit(refused && hidden && daemon_descriptors(&own) == before - 3 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    context->tensor[0].shown = NULL;
    rank_train(context);
    adtopk_close(context);
}

static void *open_again(void *job)
{
    return rank_open(job);
}

/* Another thread opens a context when the process forks, and holds the lock of the list of
 * contexts. It looks there at the first context, whose lock the test holds. */
static void test_forked_while_opening(void **state)
{
    static char job[] = "forked";
    adtopk_context *context = open_ready(job, 1, 0);
    void *second = NULL;
    int status = -1;
    pthread_t opens;
    pid_t child;

    (void)state;
    client_lock(context);
    assert_int_equal(pthread_create(&opens, NULL, open_again, job), 0);
    sleep_ms(100);
    child = fork();
    if (child == 0) {
        (void)alarm(PATIENCE_MS / 1000);
        adtopk_close(context);
        context = rank_open("child"); /* a process of its own may have contexts of its own */
        adtopk_close(context);
        _exit(0);
    }
    (void)client_unlock(context, ADTOPK_OK);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(pthread_join(opens, &second), 0);
    assert_string_equal(adtopk_job(second), "forked#2");
    adtopk_close(second);
    adtopk_close(context);
}

static void test_closing_frees_everything(void **state)
{
    const int descriptors = daemon_descriptors(&daemon_);

    (void)state;
    for (int i = 0; i < 20; i++) {
        adtopk_context *context = open_ready("closing", 2, 0);

        rank_train(context);
        adtopk_close(context);
    }
    assert_int_equal(daemon_settle(&daemon_, descriptors, 0, PATIENCE_MS), 0);
    assert_int_equal(daemon_.view->lost, 0); /* all have left */
    assert_int_equal(daemon_.view->stats.door.sessions, 0);
    assert_int_equal(daemon_.view->stats.gradient_bytes, 0);
    assert_int_equal(daemon_.view->stats.result_bytes, 0);
    assert_int_equal(daemon_.view->stats.store_bytes, 0);
}

#define LOCAL_TEST(name) cmocka_unit_test_setup_teardown(name, rank_daemon_start, rank_daemon_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LOCAL_TEST(test_two_contexts),
        LOCAL_TEST(test_job_fails),
        LOCAL_TEST(test_job_fails_at_length),
        LOCAL_TEST(test_job_fails_meanwhile),
        LOCAL_TEST(test_daemon_dies),
        LOCAL_TEST(test_daemon_stops),
        LOCAL_TEST(test_forked_child),
        LOCAL_TEST(test_forked_while_opening),
        LOCAL_TEST(test_closing_frees_everything),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
