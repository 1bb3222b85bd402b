/*
 * A trainer as of version 1.0 of the client interface, alone in its job. The program that was built
 * from this file then is kept beside it, and every later library must run it
 * (tests/data/README.md). So this file does not change: what later versions add is tested
 * elsewhere.
 *
 * usage: client-1.0 ADDRESS
 */
#include <adtopk/adtopk.h>

#include <poll.h>
#include <stdio.h>
#include <string.h>

#define NUMEL 600
#define STEPS 50

static int check(adtopk_context *context, enum adtopk_status status, const char *what)
{
    if (status != ADTOPK_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, adtopk_status_name(status), adtopk_message(context));
    }
    return status == ADTOPK_OK;
}

static adtopk_context *join(const char *address)
{
    struct adtopk_options options = {.size = sizeof options,
        .address = address,
        .job = "client-1.0",
        .run_id = "1",
        .group = "all",
        .has_rank = 1,
        .world_size = 1,
        .policy = "{\"sparsifier\": \"dense\"}",
        .interruptible = 1};
    adtopk_context *context = NULL;
    enum adtopk_status status;

    if (!check(NULL, adtopk_open(&options, &context), "open")) {
        return NULL;
    }
    for (int i = 0; i < 2; i++) {
        struct adtopk_tensor_spec spec = {.size = sizeof spec,
            .name = i == 0 ? "first" : "second",
            .dtype = ADTOPK_F32,
            .dims = 2,
            .shape = {20, NUMEL / 20},
            .forms = ADTOPK_FORM_DENSE,
            .memory = ADTOPK_HOST};
        uint32_t tensor = 9;

        if (!check(context, adtopk_register(context, &spec, &tensor), "register") ||
            tensor != (uint32_t)i) {
            return NULL;
        }
    }
    while ((status = adtopk_commit_for(context, 10)) == ADTOPK_PENDING) {
    }
    return check(context, status, "commit") ? context : NULL;
}

static int push(adtopk_context *context, float *gradient)
{
    struct adtopk_push_spec spec = {
        .size = sizeof spec, .tensor = 1, .memory = ADTOPK_HOST, .gradient = gradient, .scale = 1};
    float *shared = adtopk_gradient(context, 0);

    for (int i = 0; i < NUMEL; i++) {
        gradient[i] = (float)(adtopk_step(context) + (uint64_t)i);
    }
    memcpy(shared, gradient, NUMEL * sizeof *gradient);
    return check(context, adtopk_push_tensor(context, 0, NULL), "push") &&
           check(context, adtopk_push(context, &spec), "push");
}

static enum adtopk_status wait_by_poll(adtopk_context *context)
{
    struct pollfd readable = {.events = POLLIN};
    enum adtopk_status status = adtopk_descriptor(context, &readable.fd);

    while (status == ADTOPK_OK && (status = adtopk_step_wait_for(context, 0)) == ADTOPK_PENDING) {
        status = adtopk_arm(context);
        if (status == ADTOPK_PENDING) {
            poll(&readable, 1, 1000);
            status = ADTOPK_OK;
        }
    }
    return status;
}

static int apply(adtopk_context *context, const float *gradient)
{
    for (uint32_t tensor = 0; tensor < 2; tensor++) {
        struct adtopk_update update = {.size = sizeof update};
        float parameters[NUMEL] = {0};

        if (!check(context, adtopk_update(context, tensor, &update), "update")) {
            return 0;
        }
        adtopk_apply_sgd(parameters, &update, -1.0f);
        if (update.numel != NUMEL || update.step + 1 != adtopk_step(context) ||
            memcmp(parameters, gradient, sizeof parameters) != 0) {
            fprintf(stderr, "the update is not the gradient\n");
            return 0;
        }
    }
    return 1;
}

static int train(adtopk_context *context)
{
    float gradient[NUMEL];

    for (int step = 0; step < STEPS; step++) {
        enum adtopk_status status;

        if (!push(context, gradient) || !check(context, adtopk_wait(context, 0), "wait")) {
            return 0;
        }
        while ((status = adtopk_wait_for(context, 1, 1)) == ADTOPK_PENDING) {
        }
        if (!check(context, status, "wait_for") ||
            !check(context, adtopk_step_end(context), "step_end") ||
            !check(context, step % 2 == 0 ? wait_by_poll(context) : adtopk_step_wait(context),
                "step_wait") ||
            !apply(context, gradient)) {
            return 0;
        }
    }
    return 1;
}

int main(int argc, char **argv)
{
    adtopk_context *context = argc == 2 ? join(argv[1]) : NULL;
    float sum = 3;
    int done;

    if (context == NULL) {
        return 1;
    }
    done = train(context) &&
           check(context, adtopk_broadcast(context, &sum, sizeof sum, 0), "broadcast") &&
           check(context, adtopk_allreduce(context, &sum, 1), "allreduce") &&
           check(context, adtopk_barrier(context), "barrier") && adtopk_rank(context) == 0 &&
           adtopk_world_size(context) == 1 && adtopk_commit(context) == ADTOPK_ERR_STATE;
    printf("%s with version %s\n", done ? "trained" : "failed", adtopk_version());
    adtopk_close(context);
    return done ? 0 : 1;
}
