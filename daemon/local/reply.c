/* Sends the core's decisions to clients: as messages, progress words and wake-ups. */
#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "daemon/local/local_session.h"
#include "daemon/session/report.h"
#include "proto/local.pb-c.h"

#define REPLY_SMALL 1024u      /* bytes: an error, and most answers, need no memory of their own */
#define REPLY_UNREAD_MOST 8192 /* bytes in the kernel, about ten short messages */

/* Notes the error in the client's page, for a client that does not read its socket. */
static void reply_note_end(struct local_page *page, uint32_t status, const char *text)
{
    (void)snprintf(page->text, sizeof page->text, "%s", text);
    atomic_store(&page->failed, status);
}

/* The connection closes without an answer. Without the note the client would take that for the end
 * of the daemon, and try to come back. */
static const char *reply_cut(
    struct local_session *session, enum adtopk_status status, const char *text, const char *fault)
{
    struct local_page *page = session->reader.page;

    if (atomic_load(&page->failed) == 0) {
        reply_note_end(page, status, text);
    }
    return fault;
}

static enum outbox_result reply_pack(struct outbox *outbox, int socket,
    const ProtobufCMessage *message, const int *descriptor, unsigned descriptors)
{
    const size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t small[REPLY_SMALL], *large = size > sizeof small ? malloc(size) : NULL;
    uint8_t *bytes = size > sizeof small ? large : small;
    enum outbox_result result = OUTBOX_STARVED;

    if (bytes != NULL) {
        (void)protobuf_c_message_pack(message, bytes);
        result = outbox_send(outbox, socket, bytes, size, descriptor, descriptors);
    }
    free(large);
    return result;
}

static const char *reply_pass(struct local_session *session, const Adtopk__LocalReply *reply,
    const int *descriptor, unsigned descriptors)
{
    switch (reply_pack(&session->outbox, session->socket, &reply->base, descriptor, descriptors)) {
    case OUTBOX_SENT: return NULL;
    case OUTBOX_QUEUED: local_session_watch(session); return NULL;
    case OUTBOX_FULL:
        return reply_cut(session, ADTOPK_ERR_PROTOCOL,
            "this process did not read what the daemon sent", "does not read what it is sent");
    case OUTBOX_STARVED:
        return reply_cut(session, ADTOPK_ERR_MEMORY,
            "the daemon has no memory or no descriptors left for a message",
            "got no answer, because this daemon has no memory or no descriptors left");
    default: return "closed its connection";
    }
}

static const char *reply_opened(struct local_session *session, const Adtopk__LocalReply *reply)
{
    const int descriptor[] = {session->ring.fd, session->page.fd};
    const char *fault;

    reply->opened->memory = gpu_may_hold(session) ? LOCAL_MEMORY_LISTS : LOCAL_MEMORY_HOST;
    fault = reply_pass(session, reply, descriptor, 2);
    segment_close(&session->ring);
    segment_close(&session->page);
    return fault;
}

static const char *reply_arena(struct local_session *session, const Adtopk__LocalReply *reply)
{
    const unsigned batch = session->base.lent - 1;
    const int descriptor[] = {
        session->gradients[batch].fd, gpu_describe(session, batch, reply->arena)};

    return reply_pass(session, reply, descriptor, descriptor[1] >= 0 ? 2 : 1);
}

static const char *reply_shown(struct local_session *session, const Adtopk__LocalReply *reply)
{
    const char *fault = reply_pass(session, reply, &session->shown, session->shown >= 0 ? 1 : 0);

    if (session->shown >= 0) {
        (void)close(session->shown);
        session->shown = -1;
    }
    return fault;
}

const char *reply_send(struct session *base, Adtopk__LocalReply *reply)
{
    struct local_session *session = local_session(base);

    switch (reply->kind_case) {
    case ADTOPK__LOCAL_REPLY__KIND_OPENED: return reply_opened(session, reply);
    case ADTOPK__LOCAL_REPLY__KIND_ARENA:
        session->reader.page->tensors = base->tensors;
        return reply_arena(session, reply);
    case ADTOPK__LOCAL_REPLY__KIND_READY:
    case ADTOPK__LOCAL_REPLY__KIND_SHOWN: return reply_shown(session, reply);
    default:
        if (report_is_last(reply) && reply->kind_case == ADTOPK__LOCAL_REPLY__KIND_ERROR) {
            reply_note_end(session->reader.page, reply->error->status, reply->error->text);
            gpu_let_go(session);
        }
        return reply_pass(session, reply, NULL, 0);
    }
}

static void reply_members(struct local_page *page, const struct action *action)
{
    atomic_store(&page->ranks, action->members.ranks);
    atomic_store(&page->place, action->members.place);
    atomic_store(&page->root, action->members.root);
    atomic_store(&page->joined, action->members.joined);
    atomic_store(&page->due, action->members.due ? 1 : 0);
}

enum adtopk_status reply_ready(
    struct session *base, const struct action *action, Adtopk__LocalReady *ready, struct error *err)
{
    struct local_session *session = local_session(base);
    struct local_page *page = session->reader.page;
    const struct results *results = memory_results(session->local, action->job, base->batches);

    if (results == NULL) {
        return error_set(err, ADTOPK_ERR_STATE, "the daemon's job has no results");
    }
    session->shown = memory_show_results(session->local, results, err);
    if (session->shown < 0) {
        return err->code;
    }
    ready->size = results->memory.size;
    gpu_begin(session, action->number);
    reply_members(page, action);
    atomic_store(&page->step_status, (uint32_t)action->status);
    atomic_store(&page->steps_done, action->number);
    atomic_store(&page->ops_done, action->operation);
    return ADTOPK_OK;
}

/* The kernel limits the descriptors on their way to all clients together. So a client that does not
 * read its messages gets no more descriptors. */
static bool reply_is_read(const struct local_session *session)
{
    int unread = 0;

    return session->outbox.count == 0 && ioctl(session->socket, SIOCOUTQ, &unread) == 0 &&
           unread < REPLY_UNREAD_MOST;
}

void reply_show(struct session *base, uint32_t part, Adtopk__LocalShown *shown)
{
    struct local_session *session = local_session(base);

    if (reply_is_read(session)) {
        session->shown = memory_show(session->local, base->job, part, &shown->size);
    }
    shown->size = session->shown >= 0 ? shown->size : 0;
}

void reply_refuse(int socket, enum adtopk_status status, const char *text)
{
    struct report report;
    struct outbox outbox = {0};

    report_error(&report, status, text, true);
    (void)reply_pack(&outbox, socket, &report.reply.base, NULL, 0);
    outbox_clear(&outbox);
}

void reply_wake(struct local_session *session)
{
    if (ring_reader_must_wake(&session->reader)) {
        session->local->stats.wakeups_sent += outbox_wake(session->socket);
    }
}

void reply_progress(struct session *base, const struct action *action)
{
    struct local_session *session = local_session(base);
    struct local_page *page = session->reader.page;

    if (session->gpu.uuid[0] != '\0') {
        gpu_tell(session, action); /* first: what the host learns from the page its streams know */
    }
    switch (action->type) {
    case ACTION_DELIVERED:
        if (action->tensor < base->tensors) {
            atomic_store(&page->delivered[action->tensor],
                (action->number + 1) << 8 | (uint8_t)action->status);
        }
        break;
    case ACTION_STEP:
        reply_members(page, action);
        atomic_store(&page->step_status, (uint32_t)action->status);
        atomic_store(&page->steps_done, action->number + 1);
        break;
    case ACTION_OP_DONE: atomic_store(&page->ops_done, action->number + 1); break;
    default: break;
    }
    atomic_fetch_add(&page->progress, 1);
    reply_wake(session);
}
