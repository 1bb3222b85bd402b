/* What the core decided, told to clients: messages, progress words and wake-ups. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/local/session.h"
#include "proto/codec.h"
#include "proto/local.pb-c.h"

static void reply_send(struct session *session, const Adtopk__LocalReply *reply,
    const int *descriptor, unsigned descriptors)
{
    size_t size = 0;
    uint8_t *bytes = codec_pack(&reply->base, &size);
    enum outbox_result result = OUTBOX_FULL;

    if (bytes != NULL) {
        result =
            outbox_send(&session->outbox, session->socket, bytes, size, descriptor, descriptors);
    }
    if (result == OUTBOX_QUEUED) {
        session_watch(session);
    } else if (result != OUTBOX_SENT) {
        session_lost(session, "process %d %s", (int)session->pid,
            result == OUTBOX_FULL ? "does not read what it is sent" : "closed its connection");
        session_close(session);
    }
}

void reply_opened(struct session *session)
{
    Adtopk__LocalOpened opened = ADTOPK__LOCAL_OPENED__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;
    const int descriptor[] = {session->ring.fd, session->page.fd};
    char version[] = ADTOPK_VERSION;

    opened.version = version;
    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_OPENED;
    reply.opened = &opened;
    reply_send(session, &reply, descriptor, 2);
    segment_close(&session->ring);
    segment_close(&session->page);
}

void reply_arena(struct session *session)
{
    Adtopk__LocalArena arena = ADTOPK__LOCAL_ARENA__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;

    arena.size = session->gradients.size;
    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_ARENA;
    reply.arena = &arena;
    reply_send(session, &reply, &session->gradients.fd, 1);
}

static void reply_ready(struct session *session, const struct action *action)
{
    Adtopk__LocalReady ready = ADTOPK__LOCAL_READY__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;
    const struct results *results = memory_results(session->local, action->job);
    struct error err;

    if (session->state != SESSION_MAPPED) {
        return;
    }
    if (results == NULL) {
        /* The job failed in the turn in which it became ready; why comes with the next action. */
        (void)error_set(&err, ADTOPK_ERR_STATE, "the daemon's job has no results");
        session_judge(session, VERDICT_END, &err);
        return;
    }
    ready.size = results->memory.size;
    ready.step = action->number;
    ready.operation = action->operation;
    ready.run = action->run;
    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_READY;
    reply.ready = &ready;
    atomic_store(&session->reader.page->step_status, (uint32_t)action->status);
    atomic_store(&session->reader.page->steps_done, action->number);
    atomic_store(&session->reader.page->ops_done, action->operation);
    session_move(session, SESSION_READY);
    reply_send(session, &reply, &results->memory.fd, 1);
}

void reply_error(struct session *session, enum adtopk_status status, const char *text, bool final)
{
    Adtopk__LocalError error = ADTOPK__LOCAL_ERROR__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;
    char copy[ERROR_TEXT_SIZE];

    (void)snprintf(copy, sizeof copy, "%s", text);
    error.status = (uint32_t)status;
    error.text = copy;
    error.final = final;
    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_ERROR;
    reply.error = &error;
    reply_send(session, &reply, NULL, 0);
}

void reply_refuse(int socket, enum adtopk_status status, const char *text)
{
    Adtopk__LocalError error = ADTOPK__LOCAL_ERROR__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;
    struct outbox outbox = {0};
    char copy[ERROR_TEXT_SIZE];
    uint8_t *bytes;
    size_t size = 0;

    (void)snprintf(copy, sizeof copy, "%s", text);
    error.status = (uint32_t)status;
    error.text = copy;
    error.final = true;
    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_ERROR;
    reply.error = &error;
    bytes = codec_pack(&reply.base, &size);
    if (bytes != NULL) {
        (void)outbox_send(&outbox, socket, bytes, size, NULL, 0);
        outbox_clear(&outbox);
    }
}

void reply_wake(struct session *session)
{
    if (ring_reader_must_wake(&session->reader)) {
        session->local->stats.wakeups_sent += outbox_wake(session->socket);
    }
}

static void reply_closed(struct session *session)
{
    Adtopk__LocalBye bye = ADTOPK__LOCAL_BYE__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;

    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_BYE;
    reply.bye = &bye;
    session->known = false;
    reply_send(session, &reply, NULL, 0);
    session_close(session);
}

static void reply_progress(struct session *session, const struct action *action)
{
    struct local_page *page = session->reader.page;

    switch (action->type) {
    case ACTION_DELIVERED:
        if (action->tensor < session->tensors) {
            atomic_store(&page->delivered[action->tensor],
                (action->number + 1) << 8 | (uint8_t)action->status);
        }
        break;
    case ACTION_STEP:
        atomic_store(&page->step_status, (uint32_t)action->status);
        atomic_store(&page->steps_done, action->number + 1);
        break;
    case ACTION_OP_DONE: atomic_store(&page->ops_done, action->number + 1); break;
    default: break;
    }
    reply_wake(session);
}

void local_apply(struct local *local, const struct action *action)
{
    struct session *session = session_find(local, action->session);

    if (session == NULL || session->state == SESSION_CLOSED) {
        return;
    }
    switch (action->type) {
    case ACTION_READY: reply_ready(session, action); break;
    case ACTION_DELIVERED:
    case ACTION_STEP:
    case ACTION_OP_DONE: reply_progress(session, action); break;
    case ACTION_FAILED:
        session->known = false;
        session_end(session, action->error->code, action->error->text);
        break;
    case ACTION_CLOSED: reply_closed(session); break;
    case ACTION_COMPUTE:
    case ACTION_POLICY:
    case ACTION_VERIFIED: break; /* not a rank's */
    }
}
