/* Errors of calls, failures of contexts, and the version. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/src/patience.h"
#include "client/src/sized.h"

#define MESSAGES 8u /* contexts of which a thread keeps its own error; seldom are there more */

/* The last error of a context that a call of this thread returned. Another thread's call may have
 * changed the context's error since. */
struct message {
    uint64_t context; /* id of the context; 0: none */
    uint64_t used;    /* the larger, the later */
    char text[ERROR_TEXT_SIZE];
};

static _Thread_local struct message message_own[MESSAGES];

/* Returns this thread's message of the context, or the one that it takes the place of. */
static struct message *message_find(const adtopk_context *context)
{
    struct message *oldest = &message_own[0];

    for (unsigned i = 0; i < MESSAGES; i++) {
        if (message_own[i].context == context->id) {
            return &message_own[i];
        }
        if (message_own[i].used < oldest->used) {
            oldest = &message_own[i];
        }
    }
    return oldest;
}

static void message_keep(const adtopk_context *context)
{
    static _Thread_local uint64_t uses;
    struct message *message = message_find(context);

    message->context = context->id;
    message->used = ++uses;
    memcpy(message->text, context->error.text, sizeof message->text);
}

uint64_t client_new_id(void)
{
    static _Atomic uint64_t last;

    return atomic_fetch_add(&last, 1) + 1;
}

enum adtopk_status client_refuse(
    adtopk_context *context, enum adtopk_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)error_set_args(&context->error, status, format, args);
    va_end(args);
    message_keep(context);
    return status;
}

enum adtopk_status client_fail(
    adtopk_context *context, enum adtopk_status status, const char *format, ...)
{
    va_list args;

    if (context->failure.code == ADTOPK_OK) {
        va_start(args, format);
        (void)error_set_args(&context->failure, status, format, args);
        va_end(args);
        client_watch_let_go(&context->batch.watch); /* what they wait for may never come */
    }
    context->error = context->failure;
    message_keep(context);
    return context->failure.code;
}

enum adtopk_status client_told(
    adtopk_context *context, uint32_t code, const char *sentence, bool final)
{
    const enum adtopk_status status =
        error_is_failure(code) ? (enum adtopk_status)code : ADTOPK_ERR_PROTOCOL;
    char text[ERROR_TEXT_SIZE];

    (void)snprintf(text, sizeof text, "%s", sentence);
    if (status == ADTOPK_ERR_MISMATCH) {
        (void)snprintf(text, sizeof text,
            "%s; this is run \"%s\" of job \"%s\" ($ADTOPK_RUN_ID and $ADTOPK_JOB or options "
            "set them)",
            sentence, context->place.run_id, context->place.job);
    }
    return final ? client_fail(context, status, "%s", text)
                 : client_refuse(context, status, "%s", text);
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

enum adtopk_status client_check_cut(adtopk_context *context)
{
    return client_watch_is_cut(&context->batch.watch)
               ? client_fail(context, ADTOPK_ERR_UNREACHABLE, "the daemon at %s went away",
                     context->place.address)
               : ADTOPK_OK;
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
        return client_fail(context, context->failure.code, "%s", context->failure.text);
    }
    return client_check_page(context) == ADTOPK_OK ? client_check_cut(context)
                                                   : context->failure.code;
}

enum adtopk_status client_take(
    adtopk_context *context, const char *name, const void *given, void *known, size_t size)
{
    struct error err;
    const enum adtopk_status status = client_sized_take(name, given, known, size, &err);

    return status == ADTOPK_OK ? ADTOPK_OK : client_refuse(context, status, "%s", err.text);
}

/* Results from before the session's end can still be read: a step that was done, and the updates of
 * the last step. */
static bool may_still_read(const adtopk_context *context)
{
    if (context == NULL || context->commit != CLIENT_COMMIT_DONE || client_is_elsewhere(context)) {
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
    if (context->commit != CLIENT_COMMIT_DONE) {
        return client_refuse(context, ADTOPK_ERR_STATE, "%s before adtopk_commit()", call);
    }
    if (tensor >= context->batch.ready && tensor < context->tensors) {
        return client_refuse(context, ADTOPK_ERR_STATE,
            "%s of tensor \"%s\", which is registered and not committed", call,
            context->tensor[tensor].name);
    }
    if (tensor >= context->tensors) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT,
            "%s of tensor %u, and %u tensor%s registered", call, tensor, context->tensors,
            context->tensors == 1 ? " is" : "s are");
    }
    return ADTOPK_OK;
}

const char *adtopk_message(const adtopk_context *context)
{
    static _Thread_local char other[ERROR_TEXT_SIZE];
    const struct message *own;

    if (context == NULL) {
        return client_open_error()->text;
    }
    own = message_find(context);
    if (own->context == context->id) {
        return own->text;
    }
    client_lock(context); /* other threads may write it */
    memcpy(other, context->error.text, sizeof other);
    (void)client_unlock(context, ADTOPK_OK);
    return other;
}

const char *adtopk_version(void)
{
    return ADTOPK_CLIENT_VERSION;
}
