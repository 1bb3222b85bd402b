/* Joining, committing, leaving. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client/src/transport.h"

#define SESSION_ANSWER_MS 30000 /* for what the daemon answers at once */
#define SESSION_BYE_MS 10000

/* ---- memory ---- */

/* A page that forked children find wiped: they have the context's bytes, but not the session. */
static uint32_t *session_mark(struct error *err)
{
    uint32_t *here = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (here == MAP_FAILED) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a context");
        return NULL;
    }
    if (madvise(here, 4096, MADV_WIPEONFORK) != 0) {
        (void)munmap(here, 4096);
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "this kernel has no MADV_WIPEONFORK (Linux 4.14)");
        return NULL;
    }
    *here = 1;
    return here;
}

static void session_free(adtopk_context *context)
{
    if (context->here != NULL) {
        context->transport->close(context, !client_is_elsewhere(context));
        (void)munmap(context->here, 4096);
    }
    free(context->tensor);
    free(context->slot);
    free(context);
}

/* The reply must be of this kind; anything else ends the context. */
static enum adtopk_status session_expect(adtopk_context *context, const struct client_reply *reply,
    Adtopk__LocalReply__KindCase kind, const char *wanted)
{
    if (reply->message->kind_case == kind) {
        return ADTOPK_OK;
    }
    if (reply->message->kind_case == ADTOPK__LOCAL_REPLY__KIND_ERROR) {
        return client_refuse(context, (enum adtopk_status)reply->message->error->status, "%.239s",
            reply->message->error->text);
    }
    return client_fail(context, ADTOPK_ERR_PROTOCOL,
        "the daemon at %s sent reply %d instead of %s%s", context->address,
        (int)reply->message->kind_case, wanted,
        context->ring.page == NULL ? " (this may be the control socket)" : "");
}

/* ---- open ---- */

static enum adtopk_status session_hello(
    adtopk_context *context, const struct client_options *options)
{
    Adtopk__LocalOpen open = ADTOPK__LOCAL_OPEN__INIT;
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    struct client_options copy = *options;
    enum adtopk_status status;
    char *policy = strdup(options->policy);

    if (policy == NULL) {
        return client_fail(context, ADTOPK_ERR_MEMORY, "no memory for the policy");
    }
    open.version = LOCAL_VERSION;
    open.job = copy.job;
    open.run_id = copy.run_id;
    open.rank = (uint32_t)options->rank;
    open.world_size = (uint32_t)options->world_size;
    open.policy = policy;
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_OPEN;
    request.open = &open;
    status = context->transport->send(context, &request);
    free(policy);
    return status;
}

/* Takes the reply of the given kind, and what belongs to it. */
static enum adtopk_status session_take(adtopk_context *context, int timeout_ms,
    Adtopk__LocalReply__KindCase kind, const char *wanted,
    enum adtopk_status (*take)(adtopk_context *context, const struct client_reply *reply))
{
    struct client_reply reply;
    enum adtopk_status status = context->transport->receive(context, timeout_ms, wanted, &reply);

    if (status != ADTOPK_OK) {
        return status;
    }
    status = session_expect(context, &reply, kind, wanted);
    if (status == ADTOPK_OK) {
        status = take(context, &reply);
    }
    client_reply_drop(&reply);
    return status;
}

static adtopk_context *session_new(const struct client_options *options, struct error *err)
{
    adtopk_context *context = calloc(1, sizeof *context);

    if (context == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a context");
        return NULL;
    }
    memcpy(context->address, options->address, sizeof context->address);
    context->transport = options->path[0] != '\0' ? &client_local : &client_remote;
    context->rank = options->rank;
    context->world_size = options->world_size;
    context->socket = -1;
    context->here = session_mark(err);
    if (context->here == NULL || context->transport->connect(context, options, err) != ADTOPK_OK) {
        session_free(context);
        return NULL;
    }
    return context;
}

enum adtopk_status adtopk_open(const struct adtopk_options *options, adtopk_context **context)
{
    struct error *err = client_open_error();
    struct client_options resolved;
    adtopk_context *opened;
    enum adtopk_status status;

    if (context == NULL) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "context is NULL");
    }
    status = client_options_resolve(options, &resolved, err);
    if (status != ADTOPK_OK) {
        return status;
    }
    opened = session_new(&resolved, err);
    if (opened == NULL) {
        return err->code;
    }
    status = session_hello(opened, &resolved);
    if (status == ADTOPK_OK) {
        status = session_take(opened, SESSION_ANSWER_MS, ADTOPK__LOCAL_REPLY__KIND_OPENED,
            "answer to adtopk_open()", opened->transport->opened);
    }
    if (status != ADTOPK_OK) {
        *err = opened->error;
        session_free(opened);
        return status;
    }
    *context = opened;
    return ADTOPK_OK;
}

/* ---- commit ---- */

static enum adtopk_status session_simple(
    adtopk_context *context, Adtopk__LocalRequest__KindCase kind)
{
    Adtopk__LocalCommit commit = ADTOPK__LOCAL_COMMIT__INIT;
    Adtopk__LocalMapped mapped = ADTOPK__LOCAL_MAPPED__INIT;
    Adtopk__LocalLeave leave = ADTOPK__LOCAL_LEAVE__INIT;
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;

    request.kind_case = kind;
    if (kind == ADTOPK__LOCAL_REQUEST__KIND_COMMIT) {
        request.commit = &commit;
    } else if (kind == ADTOPK__LOCAL_REQUEST__KIND_MAPPED) {
        request.mapped = &mapped;
    } else {
        request.leave = &leave;
    }
    return context->transport->send(context, &request);
}

static enum adtopk_status session_take_ready(
    adtopk_context *context, const struct client_reply *reply)
{
    context->step = reply->message->ready->step;
    context->operation = reply->message->ready->operation;
    return context->transport->ready(context, reply);
}

enum adtopk_status adtopk_commit(adtopk_context *context)
{
    enum adtopk_status status = client_enter(context);

    if (status == ADTOPK_OK && context->committed) {
        status = client_refuse(context, ADTOPK_ERR_STATE, "adtopk_commit() was called before");
    }
    if (status == ADTOPK_OK) {
        status = client_send_tensors(context);
    }
    if (status == ADTOPK_OK) {
        status = session_simple(context, ADTOPK__LOCAL_REQUEST__KIND_COMMIT);
    }
    if (status == ADTOPK_OK) {
        status = session_take(context, -1, ADTOPK__LOCAL_REPLY__KIND_ARENA, "gradient arena",
            context->transport->arena);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    status = session_simple(context, ADTOPK__LOCAL_REQUEST__KIND_MAPPED);
    if (status == ADTOPK_OK) {
        status =
            session_take(context, -1, ADTOPK__LOCAL_REPLY__KIND_READY, "start", session_take_ready);
    }
    context->committed = status == ADTOPK_OK;
    return status;
}

/* ---- close ---- */

/* Says goodbye and waits until the daemon has taken it. */
static void session_leave(adtopk_context *context)
{
    bool waiting = session_simple(context, ADTOPK__LOCAL_REQUEST__KIND_LEAVE) == ADTOPK_OK;

    while (waiting) {
        struct client_reply reply;

        if (context->transport->receive(context, SESSION_BYE_MS, "goodbye", &reply) != ADTOPK_OK) {
            return;
        }
        waiting = reply.message->kind_case != ADTOPK__LOCAL_REPLY__KIND_BYE;
        client_reply_drop(&reply);
    }
}

void adtopk_close(adtopk_context *context)
{
    if (context == NULL) {
        return;
    }
    if (!client_is_elsewhere(context) && client_enter(context) == ADTOPK_OK) {
        session_leave(context);
    }
    session_free(context);
}

int adtopk_rank(const adtopk_context *context)
{
    return context != NULL ? context->rank : -1;
}

int adtopk_world_size(const adtopk_context *context)
{
    return context != NULL ? context->world_size : -1;
}
