/* Steps: push, end, wait. The library keeps the step's number and notes what this rank pushed in
 * it. */
#include <adtopk/checkpoint.h>
#include <adtopk/members.h>

#include "client/src/beside.h"
#include "client/src/comeback.h"
#include "client/src/copy.h"
#include "client/src/device.h"
#include "client/src/sized.h"
#include "proto/loss_scale.h"

/* Opens a step: releases the updates of the last one. */
static enum adtopk_status step_begin(adtopk_context *context, const char *call)
{
    if (context->step_state == CLIENT_STEP_ENDED) {
        return client_refuse(context, ADTOPK_ERR_STATE,
            "%s after step %llu was ended and before adtopk_step_wait()", call,
            (unsigned long long)context->step);
    }
    if (context->step_state == CLIENT_STEP_NEW) {
        context->step_state = CLIENT_STEP_OPEN;
        context->accepted = 0;
        context->withdrawn = false;
    }
    return ADTOPK_OK;
}

/* Brings the gradient to its place, unless the program wrote it there. */
static enum adtopk_status step_bring(
    adtopk_context *context, struct client_tensor *pushed, const struct adtopk_push_spec *push)
{
    if (pushed->on_device) {
        return client_device_push(context, push->tensor, push);
    }
    if (push->gradient != NULL && push->gradient != pushed->gradient) {
        client_copy(pushed->gradient, push->gradient, pushed->bytes);
    }
    return ADTOPK_OK;
}

static enum adtopk_status step_push(adtopk_context *context, const struct adtopk_push_spec *push)
{
    struct client_tensor *pushed = &context->tensor[push->tensor];
    struct local_entry entry = {.type = LOCAL_PUSH,
        .tensor = push->tensor,
        .scale = push->scale,
        .lookahead = pushed->on_device ? push->lookahead : pushed->ahead};
    const uint64_t before = pushed->pushed;
    enum adtopk_status status;

    if (before == context->step + 1 && context->step_state == CLIENT_STEP_OPEN) {
        return client_refuse(context, ADTOPK_ERR_STATE,
            "tensor \"%s\" was pushed twice in step %llu", pushed->name,
            (unsigned long long)context->step);
    }
    status = step_begin(context, "adtopk_push()");
    if (status == ADTOPK_OK && pushed->begun != context->step + 1) {
        status = step_bring(context, pushed, push);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    entry.number = context->step;
    pushed->pushed = context->step + 1;
    status = client_hand_in(context, &entry);
    if (status == ADTOPK_INTERRUPTED) {
        context->tensor[push->tensor].pushed = before; /* the table may have grown meanwhile */
    }
    return status;
}

/* Refuses a gradient that lies in another kind of memory than the tensor's. */
static enum adtopk_status step_check_place(
    adtopk_context *context, const struct adtopk_push_spec *push)
{
    const struct client_tensor *pushed = &context->tensor[push->tensor];
    const bool elsewhere = push->gradient != NULL && push->gradient != pushed->gradient;

    if (push->memory != ADTOPK_HOST && push->memory != ADTOPK_CUDA) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\": the kind of memory %d is unknown", pushed->name, (int)push->memory);
    }
    if (pushed->on_device && elsewhere && push->memory != ADTOPK_CUDA) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" was registered with ADTOPK_CUDA, and a gradient in host memory is "
            "pushed",
            pushed->name);
    }
    if (!pushed->on_device && (push->memory != ADTOPK_HOST || push->stream != NULL)) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\" was registered with ADTOPK_HOST, and a gradient in CUDA memory, or in a "
            "stream, is pushed",
            pushed->name);
    }
    return ADTOPK_OK;
}

static enum adtopk_status step_push_tensor(
    adtopk_context *context, uint32_t tensor, const void *gradient)
{
    const struct adtopk_push_spec push = {
        .size = sizeof push, .tensor = tensor, .gradient = gradient, .scale = 1};
    enum adtopk_status status = client_enter_tensor(context, "adtopk_push_tensor()", tensor, false);

    if (status == ADTOPK_OK) {
        status = step_check_place(context, &push);
    }
    return status == ADTOPK_OK ? step_push(context, &push) : status;
}

enum adtopk_status adtopk_push_tensor(
    adtopk_context *context, uint32_t tensor, const void *gradient)
{
    client_lock(context);
    return client_unlock(context, step_push_tensor(context, tensor, gradient));
}

/* Refuses a push that no rank may make, or that this version does not support. */
static enum adtopk_status step_check_push(
    adtopk_context *context, const struct adtopk_push_spec *push)
{
    const char *name = context->tensor[push->tensor].name;

    if (push->scale != 0 && !loss_scale_is_valid(push->scale)) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\": the loss scale is %g, and must be from 2^-126 to 2^126", name,
            (double)push->scale);
    }
    if (!(push->lookahead >= 0 && push->lookahead <= 1) ||
        (push->lookahead > 0 && context->tensor[push->tensor].pending == NULL)) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\": lookahead is %g, and must be from 0 to 1, and 0 without "
            "adtopk_device_pending()",
            name, (double)push->lookahead);
    }
    if (push->flags != 0 || push->reserved != 0) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "tensor \"%s\": this version has no flags for a push, and %s is %u", name,
            push->flags != 0 ? "flags" : "reserved",
            push->flags != 0 ? push->flags : push->reserved);
    }
    return step_check_place(context, push);
}

static enum adtopk_status step_push_spec(
    adtopk_context *context, const struct adtopk_push_spec *push)
{
    enum adtopk_status status = client_enter(context);
    struct adtopk_push_spec known = {.size = sizeof known};

    if (status == ADTOPK_OK) {
        status = client_take(context, "struct adtopk_push_spec", push, &known, sizeof known);
    }
    if (status == ADTOPK_OK) {
        status = client_enter_tensor(context, "adtopk_push()", known.tensor, false);
    }
    if (status == ADTOPK_OK) {
        status = step_check_push(context, &known);
    }
    return status == ADTOPK_OK ? step_push(context, &known) : status;
}

enum adtopk_status adtopk_push(adtopk_context *context, const struct adtopk_push_spec *push)
{
    client_lock(context);
    return client_unlock(context, step_push_spec(context, push));
}

/* ---- the end ---- */

/* Checks as client_enter() does, and that the tensors are committed. A program can read a completed
 * step even after the session's end. */
static enum adtopk_status step_enter(adtopk_context *context, const char *call, bool reads)
{
    const enum adtopk_status status = reads ? client_enter_to_read(context) : client_enter(context);

    if (status == ADTOPK_OK && context->commit != CLIENT_COMMIT_DONE) {
        return client_refuse(context, ADTOPK_ERR_STATE, "%s before adtopk_commit()", call);
    }
    return status;
}

enum adtopk_status client_step_end(adtopk_context *context)
{
    enum adtopk_status status = step_enter(context, "adtopk_step_end()", false);
    struct local_entry entry = {.type = LOCAL_STEP_END};

    if (status == ADTOPK_OK) {
        status = step_begin(context, "adtopk_step_end()");
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    context->step_state = CLIENT_STEP_ENDED;
    entry.number = context->step;
    status = client_hand_in(context, &entry);
    if (status == ADTOPK_INTERRUPTED) {
        context->step_state = CLIENT_STEP_OPEN;
    }
    return status;
}

enum adtopk_status adtopk_step_end(adtopk_context *context)
{
    client_lock(context);
    return client_unlock(context, client_step_end(context));
}

/* ---- waiting for a tensor ---- */

/* Whether the daemon has delivered the tensor's round of this step. A daemon that was started again
 * behind the step does not say so. */
static bool step_is_delivered(const adtopk_context *context, uint64_t tensor)
{
    const uint64_t word = atomic_load(&context->ring.page->delivered[tensor]);

    return word >> 8 >= context->step + 1 ||
           atomic_load(&context->ring.page->steps_done) > context->step;
}

enum adtopk_status client_step_post_wait(adtopk_context *context, uint32_t tensor)
{
    const struct local_entry entry = {
        .type = LOCAL_WAIT, .tensor = tensor, .number = context->step};
    enum adtopk_status status;

    if (step_is_delivered(context, tensor) || context->tensor[tensor].posted == context->step + 1) {
        return ADTOPK_OK;
    }
    context->tensor[tensor].posted = context->step + 1;
    status = client_hand_in(context, &entry);
    if (status == ADTOPK_INTERRUPTED) {
        context->tensor[tensor].posted = 0;
    }
    return status;
}

static enum adtopk_status step_await_tensor(
    adtopk_context *context, uint32_t tensor, const struct client_patience *patience)
{
    enum adtopk_status status = ADTOPK_OK;

    if (patience->deadline_ns != 0) {
        status = client_step_post_wait(context, tensor);
    }
    return status == ADTOPK_OK
               ? context->transport->wait(context, step_is_delivered, tensor, patience)
               : status;
}

/* Reads the result of the tensor's round, which is over. */
static enum adtopk_status step_take_tensor(adtopk_context *context, uint32_t tensor)
{
    const uint64_t word = atomic_load(&context->ring.page->delivered[tensor]);
    const uint32_t result = word >> 8 >= context->step + 1
                                ? (uint32_t)(word & 0xff)
                                : atomic_load(&context->ring.page->step_status);
    const enum adtopk_status status = (enum adtopk_status)result;
    struct client_tensor *awaited = &context->tensor[tensor];

    if (status == ADTOPK_OK) {
        awaited->waited = context->step + 1;
        return client_beside_bring(context);
    }
    return client_refuse(context, status, "tensor \"%s\" of step %llu: %s", awaited->name,
        (unsigned long long)context->step,
        status == ADTOPK_NONFINITE ? "a gradient has NaN or Inf" : adtopk_status_name(status));
}

enum adtopk_status client_step_check_pushed(
    adtopk_context *context, const char *call, uint32_t tensor)
{
    return context->tensor[tensor].pushed == context->step + 1
               ? ADTOPK_OK
               : client_refuse(context, ADTOPK_ERR_STATE,
                     "%s for tensor \"%s\", which was not pushed in step %llu", call,
                     context->tensor[tensor].name, (unsigned long long)context->step);
}

static enum adtopk_status step_wait_tensor(adtopk_context *context, uint32_t tensor, int timeout_ms)
{
    const struct client_patience patience = client_patience(context, timeout_ms);
    const bool ended = context != NULL && context->step_state == CLIENT_STEP_ENDED;
    enum adtopk_status status = client_enter_tensor(context, "adtopk_wait()", tensor, ended);

    if (status != ADTOPK_OK) {
        return status;
    }
    status = client_step_check_pushed(context, "adtopk_wait()", tensor);
    if (status == ADTOPK_OK) {
        status = step_await_tensor(context, tensor, &patience);
    }
    return status == ADTOPK_OK ? step_take_tensor(context, tensor) : status;
}

enum adtopk_status adtopk_wait_for(adtopk_context *context, uint32_t tensor, int timeout_ms)
{
    client_lock(context);
    return client_unlock(context, step_wait_tensor(context, tensor, timeout_ms));
}

enum adtopk_status adtopk_wait(adtopk_context *context, uint32_t tensor)
{
    return adtopk_wait_for(context, tensor, -1);
}

/* ---- who takes part ---- */

static enum adtopk_status step_read_members(adtopk_context *context, struct adtopk_members *members)
{
    enum adtopk_status status = client_enter_to_read(context);
    struct adtopk_members known = {.size = sizeof known};
    const struct local_page *page;
    struct error error;

    if (status != ADTOPK_OK) {
        return status;
    }
    if (client_sized_check("struct adtopk_members", members, &error) != ADTOPK_OK) {
        return client_refuse(context, error.code, "%s", error.text);
    }
    if (context->commit != CLIENT_COMMIT_DONE) {
        return client_refuse(
            context, ADTOPK_ERR_STATE, "adtopk_members() before adtopk_commit() is complete");
    }
    page = context->ring.page;
    known.ranks = atomic_load(&page->ranks);
    known.place = atomic_load(&page->place);
    known.root = atomic_load(&page->root);
    known.joined = atomic_load(&page->joined);
    if (known.ranks == 0) { /* the daemon is of a release that does not tell */
        known.ranks = (uint32_t)context->place.world_size;
        known.place = (uint32_t)context->place.rank;
    }
    known.lost = (uint32_t)context->place.world_size - known.ranks;
    client_sized_fill(members, &known, sizeof known);
    return ADTOPK_OK;
}

enum adtopk_status adtopk_members(adtopk_context *context, struct adtopk_members *members)
{
    client_lock(context);
    return client_unlock(context, step_read_members(context, members));
}

static enum adtopk_status step_read_due(adtopk_context *context, int *due)
{
    enum adtopk_status status = step_enter(context, "adtopk_checkpoint_due()", false);

    if (status != ADTOPK_OK) {
        return status;
    }
    if (due == NULL) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT, "adtopk_checkpoint_due(): due is NULL");
    }
    if (context->step_state != CLIENT_STEP_NEW) {
        return client_refuse(context, ADTOPK_ERR_STATE,
            "adtopk_checkpoint_due() in step %llu: wait for its end",
            (unsigned long long)context->step);
    }
    *due = atomic_load(&context->ring.page->due) != 0 ? 1 : 0;
    return ADTOPK_OK;
}

enum adtopk_status adtopk_checkpoint_due(adtopk_context *context, int *due)
{
    client_lock(context);
    return client_unlock(context, step_read_due(context, due));
}

/* ---- waiting for the step ---- */

static bool step_is_done(const adtopk_context *context, uint64_t step)
{
    return atomic_load(&context->ring.page->steps_done) > step;
}

/* Reads the result of the step, which is over. */
static enum adtopk_status step_take(adtopk_context *context)
{
    const enum adtopk_status status =
        (enum adtopk_status)atomic_load(&context->ring.page->step_status);

    if (client_settle_arenas(context) != ADTOPK_OK) {
        return context->failure.code;
    }
    context->step_state = CLIENT_STEP_NEW;
    context->step++;
    if (status == ADTOPK_OK) {
        context->accepted = context->step;
        return ADTOPK_OK;
    }
    context->withdrawn = true;
    return client_refuse(context, status,
        "step %llu was withdrawn: a gradient has NaN or Inf, or 2^120 or more",
        (unsigned long long)context->step - 1);
}

static enum adtopk_status step_wait(adtopk_context *context, int timeout_ms)
{
    const struct client_patience patience = client_patience(context, timeout_ms);
    enum adtopk_status status = step_enter(context, "adtopk_step_wait()", true);

    if (status == ADTOPK_OK && context->step_state != CLIENT_STEP_ENDED) {
        status = client_step_end(context);
    }
    if (status == ADTOPK_OK) {
        status = client_wait_may_take(context, &patience);
    }
    if (status == ADTOPK_OK) {
        status = context->transport->wait(context, step_is_done, context->step, &patience);
    }
    return status == ADTOPK_OK ? step_take(context) : status;
}

enum adtopk_status adtopk_step_wait_for(adtopk_context *context, int timeout_ms)
{
    client_lock(context);
    return client_unlock(context, step_wait(context, timeout_ms));
}

enum adtopk_status adtopk_step_wait(adtopk_context *context)
{
    return adtopk_step_wait_for(context, -1);
}

uint64_t adtopk_step(const adtopk_context *context)
{
    uint64_t step;

    client_lock(context);
    step = context != NULL ? context->step : 0;
    (void)client_unlock(context, ADTOPK_OK);
    return step;
}
