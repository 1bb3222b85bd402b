/* Errors of calls, failures of contexts, and the version. */
#include <stdarg.h>
#include <stdio.h>

#include "client/src/context.h"

static void client_format(
    struct error *error, enum adtopk_status status, const char *format, va_list args)
{
    error->code = status;
    (void)vsnprintf(error->text, sizeof error->text, format, args);
}

enum adtopk_status client_refuse(
    adtopk_context *context, enum adtopk_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    client_format(&context->error, status, format, args);
    va_end(args);
    return status;
}

enum adtopk_status client_fail(
    adtopk_context *context, enum adtopk_status status, const char *format, ...)
{
    va_list args;

    if (context->failure.code == ADTOPK_OK) {
        va_start(args, format);
        client_format(&context->failure, status, format, args);
        va_end(args);
    }
    context->error = context->failure;
    return context->failure.code;
}

struct error *client_open_error(void)
{
    static _Thread_local struct error error;

    return &error;
}

bool client_is_elsewhere(const adtopk_context *context)
{
    return *(const volatile uint32_t *)context->here == 0;
}

enum adtopk_status client_enter(adtopk_context *context)
{
    if (context == NULL) {
        return ADTOPK_ERR_ARGUMENT;
    }
    if (client_is_elsewhere(context)) {
        return client_refuse(context, ADTOPK_ERR_STATE,
            "this is a forked child of the process that opened the context");
    }
    if (context->failure.code != ADTOPK_OK) {
        context->error = context->failure;
        return context->failure.code;
    }
    return client_check_page(context);
}

/* What was reached before the session ended can still be read: a step that was done, and the
 * updates of the last one. */
static bool may_still_read(const adtopk_context *context)
{
    if (context == NULL || !context->committed || client_is_elsewhere(context)) {
        return false;
    }
    return context->step_state == CLIENT_STEP_NEW
               ? context->accepted != 0
               : context->step_state == CLIENT_STEP_ENDED &&
                     atomic_load(&context->ring.page->steps_done) > context->step;
}

enum adtopk_status client_enter_to_read(adtopk_context *context)
{
    return may_still_read(context) ? ADTOPK_OK : client_enter(context);
}

enum adtopk_status client_enter_tensor(
    adtopk_context *context, const char *call, uint32_t tensor, bool reads)
{
    const enum adtopk_status status = reads ? client_enter_to_read(context) : client_enter(context);

    if (status != ADTOPK_OK) {
        return status;
    }
    if (!context->committed) {
        return client_refuse(context, ADTOPK_ERR_STATE, "%s before adtopk_commit()", call);
    }
    if (tensor >= context->tensors) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "%s of tensor %u, and %u tensors are registered", call, tensor, context->tensors);
    }
    return ADTOPK_OK;
}

const char *adtopk_message(const adtopk_context *context)
{
    return context != NULL ? context->error.text : client_open_error()->text;
}

const char *adtopk_version(void)
{
    return ADTOPK_VERSION;
}
