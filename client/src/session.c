/* Joining, committing, leaving. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/src/comeback.h"
#include "client/src/registry.h"
#include "client/src/transport.h"

#define SESSION_ANSWER_MS 30000 /* for answers that the daemon gives at once */
#define SESSION_BYE_MS 10000    /* the most for the answer to adtopk_close() */

/* ---- memory ---- */

/* Makes a page that forked children find wiped. They have a copy of the context, but not the
 * session. */
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
    client_registry_remove(context);
    if (context->here != NULL) {
        client_descriptor_close(context);
        context->transport->close(context, !client_is_elsewhere(context));
        (void)munmap(context->here, 4096);
    }
    if (context->sharing.wake >= 0) { /* a thread that brings the rank back may have slept on it */
        (void)close(context->sharing.wake);
    }
    client_drop_comeback(context);
    free(context->tensor);
    free(context->slot);
    free(context);
}

/* Checks that the reply is of this kind; any other kind ends the context. */
static enum adtopk_status session_expect(adtopk_context *context, const struct client_reply *reply,
    Adtopk__LocalReply__KindCase kind, const char *wanted)
{
    if (reply->message->kind_case == kind) {
        return ADTOPK_OK;
    }
    if (reply->message->kind_case == ADTOPK__LOCAL_REPLY__KIND_ERROR) {
        return client_told(
            context, reply->message->error->status, reply->message->error->text, false);
    }
    return client_fail(context, ADTOPK_ERR_PROTOCOL,
        "the daemon at %s sent reply %d instead of %s%s", context->place.address,
        (int)reply->message->kind_case, wanted,
        context->ring.page == NULL ? " (this may be the control socket)" : "");
}

/* ---- open ---- */

/* Takes the reply of the given kind, and lets the transport set up its memory. */
static enum adtopk_status session_take(adtopk_context *context,
    const struct client_patience *patience, Adtopk__LocalReply__KindCase kind, const char *wanted,
    enum adtopk_status (*take)(adtopk_context *context, const struct client_reply *reply))
{
    struct client_reply reply;
    enum adtopk_status status = client_receive(context, patience, &reply);

    if (status != ADTOPK_OK) {
        return status;
    }
    status = session_expect(context, &reply, kind, wanted);
    if (status == ADTOPK_OK) {
        status = take(context, &reply);
    }
    client_reply_drop(&reply);
    if (status != ADTOPK_OK) {
        /* The program may try again, unless the session is over. */
        context->commit = context->batch.count > 0 ? CLIENT_COMMIT_DONE : CLIENT_COMMIT_NOT;
    }
    return status;
}

static enum adtopk_status session_join(adtopk_context *context)
{
    const int limit_ms =
        context->sharing.answer_ms > 0 ? context->sharing.answer_ms : SESSION_ANSWER_MS;
    const struct client_patience patience = client_patience(context, limit_ms);
    enum adtopk_status status = client_say_hello(context, &patience);

    if (status == ADTOPK_OK) {
        status = session_take(context, &patience, ADTOPK__LOCAL_REPLY__KIND_OPENED,
            "answer to adtopk_open()", context->transport->opened);
    }
    if (status == ADTOPK_PENDING) {
        return client_fail(context, ADTOPK_ERR_UNREACHABLE,
            "the daemon at %s does not answer: no answer to adtopk_open() in %d ms",
            context->place.address, limit_ms);
    }
    if (status == ADTOPK_INTERRUPTED) {
        return client_refuse(context, status, "a signal ended adtopk_open()");
    }
    return status;
}

/* Takes over what the options say. */
static void session_fill(adtopk_context *context, const struct client_options *options)
{
    context->id = client_new_id();
    context->sharing.interruptible = options->interruptible;
    context->sharing.answer_ms = options->answer_timeout_ms;
    memcpy(context->place.address, options->address, sizeof context->place.address);
    memcpy(context->place.job, options->job, sizeof context->place.job);
    memcpy(context->place.run_id, options->run_id, sizeof context->place.run_id);
    context->transport = options->path[0] != '\0' ? &client_local : &client_remote;
    context->place.rank = options->rank;
    context->place.world_size = options->world_size;
    context->place.comes_back = options->comes_back;
    context->place.first_step = options->first_step;
    context->comeback.connect_ms = options->return_timeout_ms;
    context->socket = context->sharing.descriptor = context->sharing.alarm = -1;
}

/* Does what can fail. An error leaves what is there to session_free(). */
static enum adtopk_status session_connect(
    adtopk_context *context, const struct client_options *options, struct error *err)
{
    context->sharing.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (context->sharing.wake < 0) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "eventfd failed: %s", strerror(errno));
    }
    context->comeback.policy = strdup(options->policy);
    if (context->comeback.policy == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the policy");
    }
    context->here = session_mark(err);
    if (context->here == NULL || client_registry_add(context, err) != ADTOPK_OK) {
        return err->code;
    }
    return context->transport->connect(context, options, err);
}

static adtopk_context *session_new(const struct client_options *options, struct error *err)
{
    adtopk_context *context = calloc(1, sizeof *context);

    if (context == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a context");
        return NULL;
    }
    (void)pthread_mutex_init(
        &context->sharing.lock, NULL); /* cannot fail on Linux, nor can the next call */
    (void)pthread_cond_init(&context->sharing.left, NULL);
    session_fill(context, options);
    if (session_connect(context, options, err) != ADTOPK_OK) {
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
    client_lock(opened);
    status = client_unlock(opened, session_join(opened));
    if (status != ADTOPK_OK) {
        *err = opened->error;
        session_free(opened);
        return status;
    }
    *context = opened;
    return ADTOPK_OK;
}

/* ---- commit ---- */

static enum adtopk_status session_take_ready(
    adtopk_context *context, const struct client_reply *reply)
{
    context->step = reply->message->ready->step;
    context->unfinished.number = reply->message->ready->operation;
    context->pending.index = reply->message->ready->index;
    context->comeback.run = reply->message->ready->run;
    atomic_store(&context->batch.watch.returns, context->comeback.run != 0);
    return context->transport->ready(context, reply);
}

/* Sends what the daemon needs to know before it makes the arena. */
static enum adtopk_status session_ask_to_commit(
    adtopk_context *context, const struct client_patience *patience)
{
    enum adtopk_status status = client_send_tensors(context, context->tensors, patience);

    context->batch.end[context->batch.count] = context->tensors;
    context->unfinished.answers = false; /* a call that reads a residual must ask again */
    if (status == ADTOPK_OK) {
        status = client_send_plain(context, ADTOPK__LOCAL_REQUEST__KIND_COMMIT, patience);
    }
    if (status == ADTOPK_OK) {
        context->commit = CLIENT_COMMIT_ASKED;
    }
    return status;
}

static enum adtopk_status session_take_arena(
    adtopk_context *context, const struct client_patience *patience)
{
    enum adtopk_status status = session_take(context, patience, ADTOPK__LOCAL_REPLY__KIND_ARENA,
        "gradient arena", context->transport->arena);

    if (status == ADTOPK_OK) {
        context->commit = CLIENT_COMMIT_ARENA;
    }
    return status;
}

static enum adtopk_status session_tell_mapped(
    adtopk_context *context, const struct client_patience *patience)
{
    const enum adtopk_status status =
        client_send_plain(context, ADTOPK__LOCAL_REQUEST__KIND_MAPPED, patience);

    if (status == ADTOPK_OK) {
        context->commit = CLIENT_COMMIT_MAPPED;
    }
    return status;
}

static enum adtopk_status session_take_start(
    adtopk_context *context, const struct client_patience *patience)
{
    const enum adtopk_status status = session_take(
        context, patience, ADTOPK__LOCAL_REPLY__KIND_READY, "start", session_take_ready);

    if (status == ADTOPK_OK) {
        for (uint32_t i = context->batch.ready; i < context->tensors; i++) {
            context->tensor[i].since = context->step;
        }
        context->batch.ready = context->tensors;
        context->batch.count++;
        context->commit = CLIENT_COMMIT_DONE;
    }
    return status;
}

/* Between two steps a program can commit the tensors that it registered since the last commit. */
static enum adtopk_status session_check_more(adtopk_context *context)
{
    if (context->tensors == context->batch.ready) {
        return client_refuse(context, ADTOPK_ERR_STATE,
            "adtopk_commit() was called before, and no tensor was registered since");
    }
    if (context->step_state != CLIENT_STEP_NEW) {
        return client_refuse(context, ADTOPK_ERR_STATE,
            "adtopk_commit() in the middle of step %llu: call it between adtopk_step_wait() and "
            "the next push",
            (unsigned long long)context->step);
    }
    return client_disarm(context);
}

/* Goes on with a commit, whose tensors are known, from where it stopped. */
static enum adtopk_status session_go_on(
    adtopk_context *context, const struct client_patience *patience)
{
    enum adtopk_status status = client_be_here(context, patience);

    if (status == ADTOPK_OK &&
        (context->commit == CLIENT_COMMIT_NOT || context->commit == CLIENT_COMMIT_DONE)) {
        status = session_ask_to_commit(context, patience);
    }
    if (status == ADTOPK_OK && context->commit == CLIENT_COMMIT_ASKED) {
        status = session_take_arena(context, patience);
    }
    if (status == ADTOPK_OK && context->commit == CLIENT_COMMIT_ARENA) {
        status = session_tell_mapped(context, patience);
    }
    if (status == ADTOPK_OK && context->commit == CLIENT_COMMIT_MAPPED) {
        status = session_take_start(context, patience);
    }
    return status;
}

/* Commits, and goes on where an earlier call stopped when its time was over, or where the rank was
 * when its daemon went away. */
static enum adtopk_status session_commit(adtopk_context *context, int timeout_ms)
{
    const struct client_patience patience = client_patience(context, timeout_ms);
    enum adtopk_status status = client_enter(context);

    if (status == ADTOPK_OK && context->commit == CLIENT_COMMIT_DONE) {
        status = session_check_more(context);
    }
    if (status == ADTOPK_OK) {
        do {
            status = session_go_on(context, &patience);
        } while (client_went_away(context, status));
    }
    return status;
}

enum adtopk_status adtopk_commit_for(adtopk_context *context, int timeout_ms)
{
    client_lock(context);
    return client_unlock(context, session_commit(context, timeout_ms));
}

enum adtopk_status adtopk_commit(adtopk_context *context)
{
    return adtopk_commit_for(context, -1);
}

/* ---- close ---- */

/* Says goodbye and waits until the daemon has taken note. */
static enum adtopk_status session_say_goodbye(
    adtopk_context *context, const struct client_patience *patience)
{
    enum adtopk_status status = client_be_here(context, patience);
    bool bye = false;

    if (status == ADTOPK_OK) {
        status = client_send_plain(context, ADTOPK__LOCAL_REQUEST__KIND_LEAVE, patience);
    }
    while (status == ADTOPK_OK && !bye) {
        struct client_reply reply;

        status = client_receive(context, patience, &reply);
        if (status == ADTOPK_OK) {
            bye = reply.message->kind_case == ADTOPK__LOCAL_REPLY__KIND_BYE;
            client_reply_drop(&reply);
        }
    }
    return status;
}

/* The least of all limits. A negative timeout_ms is none, nor is an answer_timeout_ms of 0. */
static int session_bye_ms(const adtopk_context *context, int timeout_ms)
{
    const int answer_ms = context->sharing.answer_ms;
    const int most_ms = answer_ms > 0 && answer_ms < SESSION_BYE_MS ? answer_ms : SESSION_BYE_MS;

    return timeout_ms >= 0 && timeout_ms < most_ms ? timeout_ms : most_ms;
}

/* A daemon that was started again has to know it, too: other nodes may wait for what it has. */
static void session_leave(adtopk_context *context, int timeout_ms)
{
    const struct client_patience patience = client_stubborn(session_bye_ms(context, timeout_ms));
    enum adtopk_status status;

    do {
        status = session_say_goodbye(context, &patience);
    } while (client_went_away(context, status));
}

void adtopk_close_for(adtopk_context *context, int timeout_ms)
{
    if (context == NULL) {
        return;
    }
    if (!client_is_elsewhere(context)) {
        client_lock(context);
        client_end_calls(context);
        if (client_enter(context) == ADTOPK_OK) {
            session_leave(context, timeout_ms);
        }
        context->sharing.closing = true; /* for the thread that brings the rank back */
        (void)client_unlock(context, ADTOPK_OK);
    }
    session_free(context);
}

void adtopk_close(adtopk_context *context)
{
    adtopk_close_for(context, -1);
}

int adtopk_rank(const adtopk_context *context)
{
    return context != NULL ? context->place.rank : -1;
}

int adtopk_world_size(const adtopk_context *context)
{
    return context != NULL ? context->place.world_size : -1;
}

const char *adtopk_job(const adtopk_context *context)
{
    return context != NULL ? context->place.job : "";
}

const char *adtopk_run_id(const adtopk_context *context)
{
    return context != NULL ? context->place.run_id : "";
}
