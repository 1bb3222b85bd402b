#include "local_rank.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "client/src/patience.h"

#define SESSIONS 64 /* sessions that the daemon can have */

struct daemon daemon_;
volatile sig_atomic_t rank_alarms;

int rank_daemon_start(void **state)
{
    (void)state;
    return daemon_start(&daemon_, SESSIONS);
}

int rank_daemon_stop(void **state)
{
    const int status = daemon_.pid > 0 ? daemon_stop(&daemon_) : 0;

    (void)state;
    daemon_remove(&daemon_);
    return status;
}

void rank_daemon_kill(void)
{
    assert_int_equal(kill(daemon_.pid, SIGKILL), 0);
    assert_int_equal(waitpid(daemon_.pid, NULL, 0), daemon_.pid);
    daemon_.pid = 0;
}

void rank_daemon_pause(void)
{
    pid_t pid;
    int status;

    assert_int_equal(kill(daemon_.pid, SIGSTOP), 0);
    do {
        pid = waitpid(daemon_.pid, &status, WUNTRACED);
    } while (pid < 0 && errno == EINTR); /* tests raise signals meanwhile */
    assert_int_equal(pid, daemon_.pid);
    assert_true(WIFSTOPPED(status));
}

void rank_daemon_continue(void)
{
    assert_int_equal(kill(daemon_.pid, SIGCONT), 0);
}

static void on_alarm(int number)
{
    (void)number;
    rank_alarms++;
}

void rank_alarm_every(int us)
{
    struct sigaction action = {.sa_handler = on_alarm};
    const struct itimerval timer = {{0, us}, {0, us}};

    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &timer, NULL), 0);
}

void assert_status(
    const adtopk_context *context, enum adtopk_status got, enum adtopk_status expected)
{
    if (got != expected) {
        fail_msg("status %s (%s), not %s", adtopk_status_name(got), adtopk_message(context),
            adtopk_status_name(expected));
    }
}

void assert_says(const adtopk_context *context, const char *words)
{
    if (strstr(adtopk_message(context), words) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", adtopk_message(context), words);
    }
}

struct adtopk_options rank_options(const char *job)
{
    return (struct adtopk_options){.size = sizeof(struct adtopk_options),
        .address = daemon_.address,
        .job = job,
        .has_rank = 1,
        .world_size = 1};
}

static adtopk_context *open_with(const struct adtopk_options *options)
{
    adtopk_context *context = NULL;

    assert_status(NULL, adtopk_open(options, &context), ADTOPK_OK);
    return context;
}

adtopk_context *rank_open(const char *job)
{
    const struct adtopk_options options = rank_options(job);

    return open_with(&options);
}

adtopk_context *rank_registered(const char *job, struct rank_wish wish)
{
    struct adtopk_options options = rank_options(job);
    adtopk_context *context;

    options.interruptible = wish.interruptible;
    context = open_with(&options);
    for (uint32_t i = 0; i < wish.tensors; i++) {
        char name[16];
        const struct adtopk_tensor_spec spec = {.size = sizeof spec,
            .name = name,
            .dims = 1,
            .shape = {wish.numel},
            .forms = wish.forms};
        uint32_t number;

        (void)snprintf(name, sizeof name, "w%u", i);
        assert_status(context, adtopk_register(context, &spec, &number), ADTOPK_OK);
        assert_int_equal(number, i);
    }
    return context;
}

adtopk_context *rank_ready(const char *job, struct rank_wish wish)
{
    adtopk_context *context = rank_registered(job, wish);

    assert_status(context, adtopk_commit(context), ADTOPK_OK);
    return context;
}

enum adtopk_status rank_receive(adtopk_context *context, struct client_reply *reply)
{
    const struct client_patience patience = client_stubborn(PATIENCE_MS);

    client_lock(context);
    return client_unlock(context, client_receive(context, &patience, reply));
}

void rank_fill(float *gradient, uint64_t numel, uint64_t step, uint32_t tensor)
{
    for (uint64_t i = 0; i < numel; i++) {
        gradient[i] = i % 3 == 0 ? 0.0f : (float)(step * 31 + tensor * 7 + i) * 0.25f;
    }
}

void rank_push(adtopk_context *context, uint32_t tensor)
{
    float *gradient = adtopk_gradient(context, tensor);

    rank_fill(gradient, context->tensor[tensor].numel, adtopk_step(context), tensor);
    assert_status(context, adtopk_push_tensor(context, tensor, NULL), ADTOPK_OK);
}

static void push_copy(adtopk_context *context, uint32_t tensor)
{
    float gradient[RANK_NUMEL_MAX];

    rank_fill(gradient, context->tensor[tensor].numel, adtopk_step(context), tensor);
    assert_status(context, adtopk_push_tensor(context, tensor, gradient), ADTOPK_OK);
    memset(gradient, 0, sizeof gradient); /* the push copied it */
}

void rank_assert_update(adtopk_context *context, uint64_t step, uint32_t tensor)
{
    const unsigned forms = context->tensor[tensor].forms;
    struct adtopk_update update = {.size = sizeof update};
    float expected[RANK_NUMEL_MAX], parameters[RANK_NUMEL_MAX] = {0};

    assert_status(context, adtopk_update(context, tensor, &update), ADTOPK_OK);
    assert_int_equal(update.numel, context->tensor[tensor].numel);
    assert_int_equal(update.step, step);
    assert_int_equal(update.dense != NULL, (forms & ADTOPK_FORM_DENSE) != 0);
    assert_int_equal(update.index != NULL, (forms & ADTOPK_FORM_LIST) != 0);
    rank_fill(expected, update.numel, step, tensor);
    adtopk_apply_sgd(parameters, &update, -1.0f);
    assert_memory_equal(parameters, expected, update.numel * sizeof(float));
    if (update.dense != NULL) {
        assert_memory_equal(update.dense, expected, update.numel * sizeof(float));
    }
}

void rank_train(adtopk_context *context)
{
    const uint64_t step = adtopk_step(context);

    for (uint32_t i = 0; i < context->tensors; i++) {
        if (i % 2 == 1) {
            push_copy(context, i);
        } else {
            rank_push(context, i);
        }
    }
    assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
    assert_int_equal(adtopk_step(context), step + 1);
    for (uint32_t i = 0; i < context->tensors; i++) {
        rank_assert_update(context, step, i);
    }
}
