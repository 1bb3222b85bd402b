/* Gradients, pushes and the ends of steps, in one thread or in two. */
#include <adtopk/members.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/integration/trainer.h"

bool trainer_gradients(struct trainer *trainer, char **word)
{
    trainer->source.kind = strcmp(word[1], "integer") == 0  ? GRADIENTS_INTEGER
                           : strcmp(word[1], "random") == 0 ? GRADIENTS_RANDOM
                                                            : GRADIENTS_ZERO;
    trainer->source.seed = strtoull(word[2], NULL, 10);
    return printf("ok\n") > 0;
}

bool trainer_poison(struct trainer *trainer, char **word)
{
    trainer->poison_step = strtoull(word[1], NULL, 10);
    trainer->poison_tensor = (uint32_t)strtoul(word[2], NULL, 10);
    trainer->poison = strcmp(word[3], "nan") == 0 ? NAN : INFINITY;
    return printf("ok\n") > 0;
}

bool trainer_scale(struct trainer *trainer, char **word)
{
    trainer->scale = strtof(word[1], NULL);
    return printf("ok\n") > 0;
}

bool trainer_skip(struct trainer *trainer, char **word)
{
    trainer->skipped += strtoull(word[1], NULL, 10);
    return printf("ok\n") > 0;
}

static void trainer_write_gradient(struct trainer *trainer, uint32_t t)
{
    const struct trainer_tensor *tensor = &trainer->tensor[t];
    void *gradient = trainer->device != NULL ? tensor->made : adtopk_gradient(trainer->context, t);
    const uint64_t step = adtopk_step(trainer->context);

    trainer->source.step = step + trainer->skipped;
    for (uint64_t i = 0; gradient != NULL && i < tensor->numel; i++) {
        gradients_store(gradient, tensor->dtype, i,
            trainer_factor(trainer) * gradients_value(&trainer->source, tensor->dtype, t, i));
    }
    if (gradient != NULL && trainer->poison != 0 && trainer->poison_step == step &&
        trainer->poison_tensor == t) {
        gradients_store(gradient, tensor->dtype, tensor->numel - 1, trainer->poison);
    }
}

static enum adtopk_status trainer_push_tensor(struct trainer *trainer, uint32_t t)
{
    struct trainer_tensor *tensor = &trainer->tensor[t];
    struct adtopk_push_spec push = {.size = sizeof push, .tensor = t, .scale = trainer->scale};

    trainer_write_gradient(trainer, t);
    tensor->pushed = true;
    if (trainer->device != NULL) {
        return trainer_device_push(trainer, tensor, &push);
    }
    return trainer->scale != 0 ? adtopk_push(trainer->context, &push)
                               : adtopk_push_tensor(trainer->context, t, NULL);
}

bool trainer_push(struct trainer *trainer, char **word)
{
    return trainer_done(
        trainer, trainer_push_tensor(trainer, (uint32_t)strtoul(word[1], NULL, 10)));
}

bool trainer_write(struct trainer *trainer, char **word)
{
    trainer_write_gradient(trainer, (uint32_t)strtoul(word[1], NULL, 10));
    return trainer_done(trainer, ADTOPK_OK);
}

bool trainer_written(struct trainer *trainer, char **word)
{
    const uint32_t t = (uint32_t)strtoul(word[1], NULL, 10);
    const uint64_t bytes =
        trainer->tensor[t].numel * (trainer->tensor[t].dtype == ADTOPK_F32 ? 4 : 2);
    const uint8_t *gradient = adtopk_gradient(trainer->context, t);
    uint64_t hash = 0xcbf29ce484222325u;

    for (uint64_t i = 0; i < bytes; i++) {
        hash = (hash ^ gradient[i]) * 0x100000001b3u;
    }
    return printf("ok %016" PRIx64 "\n", hash) > 0;
}

struct trainer_pusher {
    struct trainer *trainer;
    uint32_t tensor;
    enum adtopk_status status;
};

static void *trainer_push_beside(void *argument)
{
    struct trainer_pusher *pusher = argument;

    pusher->status = trainer_push_tensor(pusher->trainer, pusher->tensor);
    return NULL;
}

/* Pushes a tensor in another thread, and ends the step as soon as that push has begun: from then on
 * the tensor counts as pushed. */
bool trainer_race(struct trainer *trainer, char **word)
{
    struct trainer_pusher pusher = {
        .trainer = trainer, .tensor = (uint32_t)strtoul(word[1], NULL, 10)};
    pthread_t thread;
    enum adtopk_status status = ADTOPK_ERR_STATE;

    if (pthread_create(&thread, NULL, trainer_push_beside, &pusher) != 0) {
        return trainer_refuse("no thread");
    }
    while (status == ADTOPK_ERR_STATE) {
        status = adtopk_wait_for(trainer->context, pusher.tensor, 0);
    }
    if (status == ADTOPK_PENDING) {
        status = adtopk_step_end(trainer->context);
    }
    (void)pthread_join(thread, NULL);
    return trainer_done(trainer, pusher.status != ADTOPK_OK ? pusher.status : status);
}

/* Waits for the step and takes its updates. */
static enum adtopk_status trainer_finish(struct trainer *trainer)
{
    enum adtopk_status status = trainer_step_wait(trainer);

    for (uint32_t t = 0; status == ADTOPK_OK && t < trainer->tensors; t++) {
        trainer_add_given(trainer, t);
        status = trainer_take(trainer, t);
    }
    for (uint32_t t = 0; t < trainer->tensors; t++) {
        trainer->tensor[t].pushed = false;
    }
    if (trainer->trace != NULL) {
        (void)fflush(trainer->trace);
    }
    trainer->accepted += status == ADTOPK_OK;
    trainer->withdrawn += status == ADTOPK_NONFINITE;
    return status;
}

/* If ranks join from this step on, they get what the others have instead of parameters. */
static enum adtopk_status trainer_greet(struct trainer *trainer)
{
    struct adtopk_members members = {.size = sizeof members};
    uint64_t shared[] = {trainer->accepted, trainer->withdrawn, trainer->hash};
    enum adtopk_status status = adtopk_members(trainer->context, &members);

    if (status != ADTOPK_OK || members.joined == 0 ||
        members.joined != adtopk_step(trainer->context) || trainer->rude) {
        return status;
    }
    status = adtopk_broadcast(trainer->context, shared, sizeof shared, (int)members.root);
    trainer->accepted = shared[0];
    trainer->withdrawn = shared[1];
    trainer->hash = shared[2];
    return status;
}

bool trainer_members(struct trainer *trainer, char **word)
{
    struct adtopk_members members = {.size = sizeof members};
    const enum adtopk_status status = adtopk_members(trainer->context, &members);

    (void)word;
    if (status != ADTOPK_OK) {
        return trainer_fail(trainer, status);
    }
    return printf("ok %u %u %u %u %" PRIu64 "\n", members.ranks, members.lost, members.place,
               members.root, members.joined) > 0;
}

bool trainer_rude(struct trainer *trainer, char **word)
{
    (void)word;
    trainer->rude = true;
    return trainer_done(trainer, ADTOPK_OK);
}

bool trainer_pace(struct trainer *trainer, char **word)
{
    trainer->pace_ns = atoi(word[1]) * 1000000L;
    return trainer_done(trainer, ADTOPK_OK);
}

/* Pushes the tensors that are left and finishes the step. */
static enum adtopk_status trainer_one_step(struct trainer *trainer)
{
    const enum adtopk_status greeted = trainer_greet(trainer);
    const struct timespec computes = {.tv_nsec = trainer->pace_ns};

    if (greeted != ADTOPK_OK) {
        return greeted;
    }
    if (trainer->pace_ns > 0) {
        (void)nanosleep(&computes, NULL);
    }
    for (uint32_t t = 0; t < trainer->tensors; t++) {
        const enum adtopk_status status =
            trainer->tensor[t].pushed ? ADTOPK_OK : trainer_push_tensor(trainer, t);
        if (status != ADTOPK_OK) {
            return status;
        }
    }
    return trainer_finish(trainer);
}

static bool trainer_report(struct trainer *trainer, enum adtopk_status status)
{
    if (status != ADTOPK_OK && status != ADTOPK_NONFINITE) {
        return trainer_fail(trainer, status);
    }
    return printf("ok %s %" PRIu64 " %" PRIu64 " %016" PRIx64 "\n", adtopk_status_name(status),
               trainer->accepted, trainer->withdrawn, trainer->hash) > 0;
}

static bool trainer_take_steps(struct trainer *trainer, uint64_t end)
{
    enum adtopk_status status = ADTOPK_OK;

    while (adtopk_step(trainer->context) < end) {
        status = trainer_one_step(trainer);
        if (status != ADTOPK_OK && status != ADTOPK_NONFINITE) {
            break;
        }
    }
    return trainer_report(trainer, status);
}

bool trainer_steps(struct trainer *trainer, char **word)
{
    return trainer_take_steps(trainer, adtopk_step(trainer->context) + strtoull(word[1], NULL, 10));
}

bool trainer_until(struct trainer *trainer, char **word)
{
    return trainer_take_steps(trainer, strtoull(word[1], NULL, 10));
}

/* A thread that ends the step without pushing the other tensors, and waits for it. */
struct trainer_waiter {
    adtopk_context *context;
    int ms;
    enum adtopk_status status;
};

static void *trainer_wait_beside(void *argument)
{
    struct trainer_waiter *waiter = argument;

    waiter->status = adtopk_step_wait_for(waiter->context, waiter->ms);
    return NULL;
}

/* Looks in the middle of the other thread's wait. */
bool trainer_look_beside(struct trainer *trainer, char **word)
{
    struct trainer_waiter waiter = {.context = trainer->context, .ms = atoi(word[1])};
    const struct timespec half = {.tv_nsec = waiter.ms / 2 * 1000000L};
    enum adtopk_status status;
    pthread_t thread;

    if (pthread_create(&thread, NULL, trainer_wait_beside, &waiter) != 0) {
        return trainer_refuse("no thread");
    }
    (void)nanosleep(&half, NULL);
    status = adtopk_step_wait_for(trainer->context, 0);
    (void)pthread_join(thread, NULL);
    return printf("ok %s %s\n", adtopk_status_name(status), adtopk_status_name(waiter.status)) > 0;
}

bool trainer_finish_step(struct trainer *trainer, char **word)
{
    (void)word;
    return trainer_report(trainer, trainer_finish(trainer));
}

bool trainer_wait(struct trainer *trainer, char **word)
{
    return trainer_done(
        trainer, adtopk_wait(trainer->context, (uint32_t)strtoul(word[1], NULL, 10)));
}

bool trainer_update_step(struct trainer *trainer, char **word)
{
    struct adtopk_update update = {.size = sizeof update};
    const enum adtopk_status status =
        adtopk_update(trainer->context, (uint32_t)strtoul(word[1], NULL, 10), &update);

    return status == ADTOPK_OK ? printf("ok %" PRIu64 "\n", update.step) > 0
                               : trainer_fail(trainer, status);
}

/* Here "pending" is an answer too. */
bool trainer_look(struct trainer *trainer, char **word)
{
    const enum adtopk_status status = adtopk_step_wait_for(trainer->context, atoi(word[1]));

    return status == ADTOPK_PENDING ? printf("ok pending\n") > 0 : trainer_done(trainer, status);
}

bool trainer_descriptor(struct trainer *trainer, char **word)
{
    int descriptor;

    (void)word;
    return trainer_done(trainer, adtopk_descriptor(trainer->context, &descriptor));
}

bool trainer_doze(struct trainer *trainer, char **word)
{
    struct pollfd on = {.events = POLLIN};
    const enum adtopk_status status = adtopk_descriptor(trainer->context, &on.fd);

    if (status != ADTOPK_OK) {
        return trainer_fail(trainer, status);
    }
    return printf(poll(&on, 1, atoi(word[1])) > 0 ? "ok\n" : "ok pending\n") > 0;
}

bool trainer_arm(struct trainer *trainer, char **word)
{
    (void)word;
    return trainer_done(trainer, adtopk_arm(trainer->context));
}
