/* Steps: push, end, wait. The library keeps the step's number and what was pushed in it. */
#include <string.h>

#include "client/src/transport.h"

/* The first act of a step: the last one's updates are released. */
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

enum adtopk_status adtopk_push(adtopk_context *context, uint32_t tensor, const void *gradient)
{
    enum adtopk_status status = client_enter_tensor(context, "adtopk_push()", tensor, false);
    struct local_entry entry = {.type = LOCAL_PUSH, .tensor = tensor};
    struct client_tensor *pushed;

    if (status != ADTOPK_OK) {
        return status;
    }
    pushed = &context->tensor[tensor];
    if (pushed->pushed == context->step + 1 && context->step_state == CLIENT_STEP_OPEN) {
        return client_refuse(context, ADTOPK_ERR_STATE,
            "tensor \"%s\" was pushed twice in step %llu", pushed->name,
            (unsigned long long)context->step);
    }
    status = step_begin(context, "adtopk_push()");
    if (status != ADTOPK_OK) {
        return status;
    }
    if (gradient != NULL && gradient != pushed->gradient) {
        memcpy(pushed->gradient, gradient, pushed->bytes);
    }
    entry.number = context->step;
    pushed->pushed = context->step + 1;
    return context->transport->submit(context, &entry);
}

enum adtopk_status adtopk_step_end(adtopk_context *context)
{
    enum adtopk_status status = client_enter(context);
    struct local_entry entry = {.type = LOCAL_STEP_END};

    if (status == ADTOPK_OK && !context->committed) {
        status =
            client_refuse(context, ADTOPK_ERR_STATE, "adtopk_step_end() before adtopk_commit()");
    }
    if (status == ADTOPK_OK) {
        status = step_begin(context, "adtopk_step_end()");
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    context->step_state = CLIENT_STEP_ENDED;
    entry.number = context->step;
    return context->transport->submit(context, &entry);
}

/* True if the tensor's round of this step is delivered. */
static bool step_is_delivered(const adtopk_context *context, uint64_t tensor)
{
    const uint64_t word = atomic_load(&context->ring.page->delivered[tensor]);

    return word >> 8 >= context->step + 1;
}

static enum adtopk_status step_await_tensor(adtopk_context *context, uint32_t tensor)
{
    const struct local_entry entry = {
        .type = LOCAL_WAIT, .tensor = tensor, .number = context->step};
    struct client_tensor *awaited = &context->tensor[tensor];
    enum adtopk_status status;

    if (step_is_delivered(context, tensor)) {
        return ADTOPK_OK;
    }
    if (awaited->posted != context->step + 1) {
        awaited->posted = context->step + 1;
        status = context->transport->submit(context, &entry);
        if (status != ADTOPK_OK) {
            return status;
        }
    }
    return context->transport->wait(context, step_is_delivered, tensor);
}

enum adtopk_status adtopk_wait(adtopk_context *context, uint32_t tensor)
{
    const bool ended = context != NULL && context->step_state == CLIENT_STEP_ENDED;
    enum adtopk_status status = client_enter_tensor(context, "adtopk_wait()", tensor, ended);
    struct client_tensor *awaited;

    if (status != ADTOPK_OK) {
        return status;
    }
    awaited = &context->tensor[tensor];
    if (awaited->pushed != context->step + 1) {
        return client_refuse(context, ADTOPK_ERR_STATE,
            "adtopk_wait() for tensor \"%s\", which was not pushed in step %llu", awaited->name,
            (unsigned long long)context->step);
    }
    status = step_await_tensor(context, tensor);
    if (status != ADTOPK_OK) {
        return status;
    }
    status = (enum adtopk_status)(atomic_load(&context->ring.page->delivered[tensor]) & 0xff);
    if (status == ADTOPK_OK) {
        awaited->waited = context->step + 1;
        return ADTOPK_OK;
    }
    return client_refuse(context, status, "tensor \"%s\" of step %llu: %s", awaited->name,
        (unsigned long long)context->step,
        status == ADTOPK_NONFINITE ? "a gradient has NaN or Inf" : adtopk_status_name(status));
}

static bool step_is_done(const adtopk_context *context, uint64_t step)
{
    return atomic_load(&context->ring.page->steps_done) > step;
}

enum adtopk_status adtopk_step_wait(adtopk_context *context)
{
    enum adtopk_status status = client_enter_to_read(context);

    if (status == ADTOPK_OK && !context->committed) {
        status =
            client_refuse(context, ADTOPK_ERR_STATE, "adtopk_step_wait() before adtopk_commit()");
    }
    if (status == ADTOPK_OK && context->step_state != CLIENT_STEP_ENDED) {
        status = adtopk_step_end(context);
    }
    if (status == ADTOPK_OK) {
        status = context->transport->wait(context, step_is_done, context->step);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    status = (enum adtopk_status)atomic_load(&context->ring.page->step_status);
    context->step_state = CLIENT_STEP_NEW;
    context->step++;
    if (status == ADTOPK_OK) {
        context->accepted = context->step;
        return ADTOPK_OK;
    }
    context->withdrawn = true;
    return client_refuse(context, status, "step %llu was withdrawn: a gradient has NaN or Inf",
        (unsigned long long)context->step - 1);
}

uint64_t adtopk_step(const adtopk_context *context)
{
    return context != NULL ? context->step : 0;
}
