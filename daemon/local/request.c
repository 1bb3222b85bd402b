/* What a client says over its socket: checked, and told to the core as events. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/local/check.h"
#include "daemon/local/session.h"
#include "proto/codec.h"
#include "proto/local.h"
#include "proto/local.pb-c.h"

#define REQUEST_MESSAGES 16 /* taken a turn: a flood delays nobody else */

/* ---- open ---- */

static enum adtopk_status request_try_open(
    struct session *session, const Adtopk__LocalOpen *open, struct error *err)
{
    struct event event;
    enum adtopk_status status =
        check_open(open, LOCAL_VERSION, (uint32_t)session->uid, &event, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    event.open.pid = (uint32_t)session->pid;
    status = session_event(session, &event, err);
    session->known = status == ADTOPK_OK;
    return status;
}

static void request_open(struct session *session, const Adtopk__LocalOpen *open)
{
    struct error err;

    if (request_try_open(session, open, &err) != ADTOPK_OK) {
        session_end(session, err.code, err.text);
        return;
    }
    session_move(session, SESSION_OPEN);
    session->deadline_ms = session->local->limits.commit_ms > 0
                               ? uv_now(session->local->loop) + session->local->limits.commit_ms
                               : UINT64_MAX;
    session_schedule(session->local);
    reply_opened(session);
}

/* ---- register ---- */

static enum adtopk_status request_try_register(
    struct session *session, const Adtopk__LocalTensor *tensor, struct error *err)
{
    struct tensor_spec spec;
    struct event event = {.type = EVENT_RANK_REGISTER, .spec = &spec};
    enum adtopk_status status;

    if (session->tensors == CORE_MAX_TENSORS) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "tensor \"%.100s\" is over the limit of %d",
            tensor->name, CORE_MAX_TENSORS);
    }
    status = check_tensor(tensor, &spec, err);
    if (status == ADTOPK_OK) {
        status = session_event(session, &event, err);
    }
    if (status == ADTOPK_OK) {
        session->tensors++;
        reserve_count(session, &spec);
    }
    return status;
}

/* Nobody waits for an answer to a registration: what is wrong with it is told at commit. */
static void request_register(struct session *session, const Adtopk__LocalRegister *batch)
{
    struct error err;

    for (size_t i = 0; i < batch->n_tensors && session->refused.code == ADTOPK_OK; i++) {
        if (request_try_register(session, batch->tensors[i], &err) != ADTOPK_OK) {
            session->refused = err;
        }
    }
}

/* ---- commit, mapped, leave ---- */

static void request_commit(struct session *session)
{
    if (session->refused.code != ADTOPK_OK) {
        session_judge(session, VERDICT_ERROR, &session->refused);
        return;
    }
    reserve_begin(session);
}

void request_commit_now(struct session *session)
{
    struct event event = {.type = EVENT_RANK_COMMIT};
    struct error err;
    const enum adtopk_status status = session_event(session, &event, &err);

    segment_drop(&session->prepared); /* what the core did not ask for */
    if (status != ADTOPK_OK) {
        segment_drop(&session->gradients);
        if (session->state == SESSION_RESERVING) {
            session_move(session, SESSION_OPEN);
            session_watch(session);
        }
        session_judge(session, VERDICT_ERROR, &err);
        return;
    }
    assert(session->gradients.bytes != NULL); /* at least the operation area */
    session_move(session, SESSION_ARENA);
    session_watch(session);
    session->reader.page->tensors = session->tensors;
    reply_arena(session);
}

static void request_mapped(struct session *session)
{
    struct event event = {.type = EVENT_RANK_MAPPED};
    struct error err;

    if (session->gradients.bytes == NULL) {
        /* The job ended meanwhile and took the arena back; the core's reason is on its way. */
        (void)error_set(&err, ADTOPK_ERR_STATE, "the job has ended");
        session_judge(session, VERDICT_END, &err);
        return;
    }
    if (memory_seal_gradients(session, &err) != ADTOPK_OK) {
        session_refuse(session, &err);
        return;
    }
    if (session_event(session, &event, &err) != ADTOPK_OK) {
        session_judge(session, VERDICT_END, &err);
        return;
    }
    session_move(session, SESSION_MAPPED);
}

static void request_leave(struct session *session)
{
    struct event event = {.type = EVENT_RANK_LEAVE};
    struct error err;

    /* What was submitted before goodbye comes before it. */
    (void)submit_take(session, LOCAL_RING_ENTRIES);
    if (session->state >= SESSION_LEAVING || session->verdict != VERDICT_NONE) {
        return;
    }
    if (session_event(session, &event, &err) != ADTOPK_OK) {
        session_judge(session, VERDICT_END, &err);
        return;
    }
    session->known = false; /* it may hang up now */
    session_move(session, SESSION_LEAVING);
}

/* ---- receiving ---- */

/* The states in which each kind of request may come. */
static bool request_allowed(enum session_state state, Adtopk__LocalRequest__KindCase kind)
{
    switch (kind) {
    case ADTOPK__LOCAL_REQUEST__KIND_OPEN: return state == SESSION_CONNECTED;
    case ADTOPK__LOCAL_REQUEST__KIND_REGISTER:
    case ADTOPK__LOCAL_REQUEST__KIND_COMMIT: return state == SESSION_OPEN;
    case ADTOPK__LOCAL_REQUEST__KIND_MAPPED: return state == SESSION_ARENA;
    case ADTOPK__LOCAL_REQUEST__KIND_LEAVE: return state >= SESSION_OPEN && state <= SESSION_READY;
    default: return false;
    }
}

static void request_dispatch(struct session *session, const Adtopk__LocalRequest *request)
{
    struct error err;

    if (!request_allowed(session->state, request->kind_case)) {
        (void)error_set(&err, ADTOPK_ERR_PROTOCOL, "request %d came in state %d of its session",
            (int)request->kind_case, (int)session->state);
        session_refuse(session, &err);
        return;
    }
    switch (request->kind_case) {
    case ADTOPK__LOCAL_REQUEST__KIND_OPEN: request_open(session, request->open); break;
    case ADTOPK__LOCAL_REQUEST__KIND_REGISTER: request_register(session, request->register_); break;
    case ADTOPK__LOCAL_REQUEST__KIND_COMMIT: request_commit(session); break;
    case ADTOPK__LOCAL_REQUEST__KIND_MAPPED: request_mapped(session); break;
    case ADTOPK__LOCAL_REQUEST__KIND_LEAVE: request_leave(session); break;
    default: break;
    }
}

static void request_take(struct session *session, const uint8_t *bytes, size_t size, int flags)
{
    Adtopk__LocalRequest *request;
    struct error err;

    if (session->state >= SESSION_LEAVING || (size == 1 && bytes[0] == LOCAL_WAKE && flags == 0)) {
        return; /* a wake-up has done its work; after goodbye nothing counts */
    }
    if ((flags & MSG_CTRUNC) != 0) {
        (void)error_set(&err, ADTOPK_ERR_PROTOCOL, "a message came with file descriptors");
        session_refuse(session, &err);
        return;
    }
    if (size == 0 || (flags & MSG_TRUNC) != 0) {
        (void)error_set(&err, ADTOPK_ERR_PROTOCOL, "a message is %s",
            size == 0 ? "empty" : "longer than 60000 bytes");
        session_refuse(session, &err);
        return;
    }
    request = (Adtopk__LocalRequest *)(void *)codec_unpack(
        &adtopk__local_request__descriptor, bytes, size, CODEC_LOCAL_MAX, &err);
    if (request == NULL) {
        session_refuse(session, &err);
        return;
    }
    request_dispatch(session, request);
    codec_free(&request->base);
}

/* recvmsg() returns 0 for an empty message and for the end; only the latter hangs up. */
static bool request_at_end(const struct session *session)
{
    struct pollfd socket = {.fd = session->socket, .events = POLLRDHUP};

    return poll(&socket, 1, 0) > 0 && (socket.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void request_receive(struct session *session)
{
    uint8_t bytes[CODEC_LOCAL_MAX];

    for (int i = 0; i < REQUEST_MESSAGES; i++) {
        struct iovec part = {.iov_base = bytes, .iov_len = sizeof bytes};
        /* No room for control data: the kernel drops descriptors and sets MSG_CTRUNC. */
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        ssize_t size;

        if (session->state == SESSION_CLOSED || session->state == SESSION_RESERVING ||
            session->verdict != VERDICT_NONE) {
            return;
        }
        if (i > 0 && session_is_late(session->local)) {
            session_postpone(session);
            return;
        }
        size = recvmsg(session->socket, &message, MSG_DONTWAIT);
        if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (size < 0 && errno == ECONNRESET) {
            continue; /* told once: it closed with something of ours unread */
        }
        if (size < 0 || (size == 0 && request_at_end(session))) {
            session_lost(
                session, "process %d closed its connection without leaving", (int)session->pid);
            session_close(session);
            return;
        }
        session->local->stats.messages++;
        request_take(session, bytes, (size_t)size, message.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
    }
}
