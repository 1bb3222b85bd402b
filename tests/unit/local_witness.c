#include "local_witness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#define NUMEL 5000u

struct daemon daemon_;
adtopk_context *witness;
int descriptors, mappings;

void assert_status(
    const adtopk_context *context, enum adtopk_status got, enum adtopk_status expected)
{
    if (got != expected) {
        fail_msg("status %s (%s), not %s", adtopk_status_name(got), adtopk_message(context),
            adtopk_status_name(expected));
    }
}

void assert_has(const char *text, const char *word)
{
    if (strstr(text, word) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", text, word);
    }
}

enum adtopk_status try_open(const char *job, adtopk_context **context)
{
    const struct adtopk_options options = {.size = sizeof options,
        .address = daemon_.address,
        .job = job,
        .has_rank = 1,
        .world_size = 1,
        .connect_timeout_ms = -1};

    return adtopk_open(&options, context);
}

adtopk_context *open_job(const char *job)
{
    const struct adtopk_tensor_spec spec = {
        .size = sizeof spec, .name = "w", .dims = 1, .shape = {NUMEL}};
    adtopk_context *context = NULL;
    uint32_t tensor;

    assert_status(NULL, try_open(job, &context), ADTOPK_OK);
    assert_status(context, adtopk_register(context, &spec, &tensor), ADTOPK_OK);
    return context;
}

adtopk_context *open_ready(const char *job)
{
    adtopk_context *context = open_job(job);

    assert_status(context, adtopk_commit(context), ADTOPK_OK);
    return context;
}

void train(adtopk_context *context)
{
    float *gradient = adtopk_gradient(context, 0);
    const uint64_t step = adtopk_step(context);
    struct adtopk_update update = {.size = sizeof update};

    for (uint32_t i = 0; i < NUMEL; i++) {
        gradient[i] = (float)(i + step);
    }
    assert_status(context, adtopk_push_tensor(context, 0, NULL), ADTOPK_OK);
    assert_status(context, adtopk_step_wait(context), ADTOPK_OK);
    assert_status(context, adtopk_update(context, 0, &update), ADTOPK_OK);
    assert_memory_equal(update.dense, gradient, NUMEL * sizeof(float));
}

int witness_start(void **state)
{
    (void)state;
    if (daemon_start(&daemon_, SESSIONS) != 0) {
        return -1;
    }
    witness = open_ready("witness");
    train(witness);
    sleep_ms(20); /* until the daemon has closed the descriptors that it sent */
    descriptors = daemon_descriptors(&daemon_);
    mappings = daemon_mappings(&daemon_);
    return 0;
}

/* Waits a second and a half for everything that the session cost to be free. A client has a second
 * of that to read why its session ended. */
int witness_stop(void **state)
{
    int status = daemon_settle(&daemon_, descriptors, mappings, 1500);

    (void)state;
    if (status != 0) {
        (void)fprintf(stderr, "%d of %d descriptors, %d of %d mappings left\n",
            daemon_descriptors(&daemon_), descriptors, daemon_mappings(&daemon_), mappings);
    }
    train(witness);
    adtopk_close(witness);
    status |= daemon_stop(&daemon_);
    daemon_remove(&daemon_);
    return status;
}
