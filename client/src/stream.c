/* Streams that wait for updates, and how a kernel learns whether it may apply them. */
#include <adtopk/stream.h>

#include "client/src/device.h"
#include "client/src/patience.h"
#include "client/src/sized.h"

/* Refuses ranks that have no updates on a GPU, or no words there. */
static enum adtopk_status stream_check(
    adtopk_context *context, const char *call, const struct client_tensor *tensor)
{
    if (tensor->shown == NULL) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "%s: tensor \"%s\" was registered without ADTOPK_FORM_DEVICE, so its updates are not "
            "on a GPU",
            call, tensor->name);
    }
    if (!client_watch_watches(&context->batch.watch)) {
        return client_refuse(context, ADTOPK_ERR_STATE,
            "%s: the daemon at %s is of a version for which no stream can wait", call,
            context->place.address);
    }
    return ADTOPK_OK;
}

static enum adtopk_status stream_check_verdict(
    adtopk_context *context, const struct adtopk_verdict *verdict)
{
    struct error err;

    if (verdict == NULL ||
        client_sized_check("struct adtopk_verdict", verdict, &err) == ADTOPK_OK) {
        return ADTOPK_OK;
    }
    return client_refuse(context, err.code, "%s", err.text);
}

/* Puts the wait for a tensor, or for CLIENT_STEP, into the stream. */
static enum adtopk_status stream_wait(
    adtopk_context *context, uint32_t tensor, void *stream, struct adtopk_verdict *verdict)
{
    struct adtopk_verdict found = {
        .size = sizeof found, .right = local_flag_of(context->step), .reserved = 0};
    const enum adtopk_status status = client_device_wait(context, tensor, stream, &found.word);

    if (status == ADTOPK_OK && verdict != NULL) {
        client_sized_fill(verdict, &found, sizeof found);
    }
    return status;
}

/* ---- one tensor ---- */

static enum adtopk_status stream_wait_tensor(
    adtopk_context *context, uint32_t tensor, void *stream, struct adtopk_verdict *verdict)
{
    static const char call[] = "adtopk_wait_stream()";
    enum adtopk_status status = client_enter_tensor(context, call, tensor, false);

    if (status == ADTOPK_OK) {
        status = stream_check(context, call, &context->tensor[tensor]);
    }
    if (status == ADTOPK_OK) {
        status = stream_check_verdict(context, verdict);
    }
    if (status == ADTOPK_OK) {
        status = client_step_check_pushed(context, call, tensor);
    }
    if (status == ADTOPK_OK) {
        status = client_step_post_wait(context, tensor);
    }
    return status == ADTOPK_OK ? stream_wait(context, tensor, stream, verdict) : status;
}

enum adtopk_status adtopk_wait_stream(
    adtopk_context *context, uint32_t tensor, void *stream, struct adtopk_verdict *verdict)
{
    client_lock(context);
    return client_unlock(context, stream_wait_tensor(context, tensor, stream, verdict));
}

/* ---- the step ---- */

static enum adtopk_status stream_wait_step(
    adtopk_context *context, void *stream, struct adtopk_verdict *verdict)
{
    static const char call[] = "adtopk_step_wait_stream()";
    enum adtopk_status status = client_enter_tensor(context, call, 0, false);

    if (status == ADTOPK_OK) {
        status = stream_check(context, call, &context->tensor[0]);
    }
    if (status == ADTOPK_OK) {
        status = stream_check_verdict(context, verdict);
    }
    if (status == ADTOPK_OK && context->step_state != CLIENT_STEP_ENDED) {
        status = client_step_end(context);
    }
    return status == ADTOPK_OK ? stream_wait(context, CLIENT_STEP, stream, verdict) : status;
}

enum adtopk_status adtopk_step_wait_stream(
    adtopk_context *context, void *stream, struct adtopk_verdict *verdict)
{
    client_lock(context);
    return client_unlock(context, stream_wait_step(context, stream, verdict));
}

/* ---- where updates are ---- */

static enum adtopk_status stream_list(
    adtopk_context *context, uint32_t tensor, struct adtopk_device_list *list)
{
    static const char call[] = "adtopk_device_list()";
    enum adtopk_status status = client_enter_tensor(context, call, tensor, false);
    struct adtopk_device_list found = {.size = sizeof found};
    const struct client_tensor *about;
    struct error err;

    if (status == ADTOPK_OK &&
        client_sized_check("struct adtopk_device_list", list, &err) != ADTOPK_OK) {
        status = client_refuse(context, err.code, "%s", err.text);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    about = &context->tensor[tensor];
    if (about->list == NULL) {
        return about->forms & ADTOPK_FORM_DEVICE_LIST
                   ? client_refuse(context, ADTOPK_ERR_STATE,
                         "%s: the daemon at %s is of a version without lists on GPUs", call,
                         context->place.address)
                   : client_refuse(context, ADTOPK_ERR_ARGUMENT,
                         "%s: tensor \"%s\" was registered without ADTOPK_FORM_DEVICE_LIST", call,
                         about->name);
    }
    found.count = about->list;
    found.index = client_list_index(about);
    found.value = client_list_value(about);
    found.room = local_list_room(about->numel);
    client_sized_fill(list, &found, sizeof found);
    return ADTOPK_OK;
}

enum adtopk_status adtopk_device_list(
    adtopk_context *context, uint32_t tensor, struct adtopk_device_list *list)
{
    client_lock(context);
    return client_unlock(context, stream_list(context, tensor, list));
}

static bool stream_is_ready(const adtopk_context *context, uint32_t tensor)
{
    return context != NULL && !client_is_elsewhere(context) && tensor < context->batch.ready;
}

const void *adtopk_device_update(adtopk_context *context, uint32_t tensor)
{
    const void *shown;

    client_lock(context);
    shown = stream_is_ready(context, tensor) ? context->tensor[tensor].shown : NULL;
    (void)client_unlock(context, ADTOPK_OK);
    return shown;
}

const float *adtopk_device_pending(adtopk_context *context, uint32_t tensor)
{
    const float *pending;

    client_lock(context);
    pending = stream_is_ready(context, tensor) ? context->tensor[tensor].pending : NULL;
    (void)client_unlock(context, ADTOPK_OK);
    return pending;
}
