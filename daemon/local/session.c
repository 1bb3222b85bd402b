/* The life of a session: states, ending, freeing. */
#include "daemon/local/session.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD /* Linux 6.5 */
#define SO_PEERPIDFD 77
#endif

#define SESSION_TICK_MS 200
#define SESSION_TURN_US 2000 /* for the sockets and rings of all sessions, a turn */

#define BIT(state) (1u << SESSION_##state)

/* From each state to those it may move to. */
static const unsigned session_table[SESSION_STATES] = {
    [SESSION_CONNECTED] = BIT(OPEN) | BIT(ENDED) | BIT(CLOSED),
    [SESSION_OPEN] = BIT(RESERVING) | BIT(ARENA) | BIT(LEAVING) | BIT(ENDED) | BIT(CLOSED),
    [SESSION_RESERVING] = BIT(OPEN) | BIT(ARENA) | BIT(ENDED) | BIT(CLOSED),
    [SESSION_ARENA] = BIT(MAPPED) | BIT(LEAVING) | BIT(ENDED) | BIT(CLOSED),
    [SESSION_MAPPED] = BIT(READY) | BIT(LEAVING) | BIT(ENDED) | BIT(CLOSED),
    [SESSION_READY] = BIT(LEAVING) | BIT(ENDED) | BIT(CLOSED),
    [SESSION_LEAVING] = BIT(ENDED) | BIT(CLOSED),
    [SESSION_ENDED] = BIT(CLOSED),
    [SESSION_CLOSED] = 0,
};

void session_move(struct session *session, enum session_state state)
{
    assert((session_table[session->state] & (1u << state)) != 0);
    session->state = state;
    if (state == SESSION_READY) {
        session_activate(session);
    }
}

void session_activate(struct session *session)
{
    struct local *local = session->local;

    if (!session->active) {
        session->active = true;
        session->active_at = local->actives;
        local->active[local->actives++] = session;
    }
}

bool session_is_active(const struct session *session)
{
    return session->state == SESSION_READY || session->verdict != VERDICT_NONE;
}

void session_deactivate(struct session *session)
{
    struct local *local = session->local;

    if (session->active) {
        session->active = false;
        local->active[session->active_at] = local->active[--local->actives];
        local->active[session->active_at]->active_at = session->active_at;
    }
}

struct session *session_find(const struct local *local, session_id id)
{
    struct session *session = local->slot[id % local->config.max_sessions];

    return session != NULL && session->id == id ? session : NULL;
}

enum adtopk_status session_event(struct session *session, struct event *event, struct error *err)
{
    event->session = session->id;
    return session->local->ops->event(session->local->context, event, err);
}

/* ---- beginning ---- */

/* Who connected, from the kernel, and a descriptor that tells when that process ends: its forked
 * children may hold the socket open for longer. */
static enum adtopk_status session_identify(struct session *session, struct error *err)
{
    struct ucred peer;
    socklen_t size = sizeof peer;

    if (getsockopt(session->socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "cannot tell who connected");
    }
    session->pid = peer.pid;
    session->uid = peer.uid;
    size = sizeof session->process;
    if (getsockopt(session->socket, SOL_SOCKET, SO_PEERPIDFD, &session->process, &size) != 0) {
        session->process = peer.pid > 0 ? (int)syscall(SYS_pidfd_open, peer.pid, 0) : -1;
    }
    return ADTOPK_OK;
}

static enum adtopk_status session_share(struct session *session, struct error *err)
{
    const uint64_t page_size = sizeof(struct local_page) + CORE_MAX_TENSORS * sizeof(uint64_t);
    enum adtopk_status status;

    if ((status = segment_create(&session->ring, "ring", sizeof(struct local_ring), err)) != 0 ||
        (status = segment_map(&session->ring, PROT_READ, "ring", err)) != 0 ||
        (status = segment_seal(&session->ring, SEGMENT_SIZE_SEALED, "ring", err)) != 0 ||
        (status = segment_create(&session->page, "progress page", page_size, err)) != 0 ||
        (status = segment_map(&session->page, PROT_READ | PROT_WRITE, "progress page", err)) != 0) {
        return status;
    }
    session->reader.ring = session->ring.bytes;
    session->reader.page = session->page.bytes;
    session->reader.page->version = LOCAL_VERSION;
    return segment_seal(&session->page, SEGMENT_WRITER_SEALED, "progress page", err);
}

/* ---- serving ---- */

bool session_is_late(struct local *local)
{
    const uint64_t now_us = uv_hrtime() / 1000;

    if (local->busy_turn != local->turn) {
        local->busy_turn = local->turn;
        local->busy_since_us = now_us;
    }
    return now_us - local->busy_since_us >= SESSION_TURN_US;
}

void session_postpone(struct session *session)
{
    struct local *local = session->local;

    if (session->postponed) {
        return;
    }
    session->postponed = true;
    session_watch(session);
    session->behind = NULL;
    if (local->postponed == NULL) {
        local->postponed = session;
    } else {
        local->postponed_last->behind = session;
    }
    local->postponed_last = session;
}

static void session_serve(struct session *session)
{
    if (session_is_late(session->local)) {
        session_postpone(session);
        return;
    }
    request_receive(session); /* it may have said goodbye */
    if (session->gone && !session->postponed && session->state != SESSION_CLOSED) {
        session_lost(session, "process %d ended without leaving", (int)session->pid);
        session_close(session);
    }
}

bool session_resume(struct local *local)
{
    const bool any = local->postponed != NULL;

    while (local->postponed != NULL && !session_is_late(local)) {
        struct session *session = local->postponed;

        local->postponed = session->behind;
        session->postponed = false;
        if (session->state == SESSION_CLOSED) {
            session_collect(session);
        } else {
            session_watch(session);
            session_serve(session);
        }
    }
    return any;
}

static void session_on_socket(uv_poll_t *poll, int status, int events)
{
    struct session *session = poll->data;

    if (status < 0) {
        /* libuv stops and says EBADF when the other side closed without having read everything.
         * What it sent before can still be read. */
        session_serve(session);
        if (session->state != SESSION_CLOSED) {
            session_watch(session);
        }
        return;
    }
    if ((events & UV_WRITABLE) != 0 &&
        outbox_flush(&session->outbox, session->socket) == OUTBOX_SENT) {
        session_watch(session);
    }
    if ((events & UV_READABLE) != 0) {
        session_serve(session);
    }
}

static void session_on_process(uv_poll_t *poll, int status, int events)
{
    struct session *session = poll->data;

    (void)events;
    if (status < 0) {
        (void)uv_poll_stop(poll);
        return;
    }
    (void)uv_poll_stop(poll);
    session->gone = true;
    session_serve(session);
}

static void session_insert(struct session *session)
{
    struct local *local = session->local;
    const uint32_t slots = local->config.max_sessions;

    do {
        session->id = ++local->serial;
    } while (local->slot[session->id % slots] != NULL);
    local->slot[session->id % slots] = session;
    local->used++;
    local->stats.sessions++;
    session->next = local->sessions;
    if (session->next != NULL) {
        session->next->previous = session;
    }
    local->sessions = session;
}

enum adtopk_status session_create(struct local *local, int socket, struct error *err)
{
    struct session *session = calloc(1, sizeof *session);
    enum adtopk_status status;

    if (session == NULL) {
        (void)close(socket);
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a session");
    }
    session->local = local;
    session->socket = socket;
    session->process = -1;
    session->ring = session->page = session->gradients = session->prepared = segment_none;
    session->deadline_ms = uv_now(local->loop) + SESSION_OPEN_MS;
    status = session_identify(session, err);
    if (status == ADTOPK_OK) {
        status = session_share(session, err);
    }
    if (status == ADTOPK_OK && uv_poll_init(local->loop, &session->socket_poll, socket) != 0) {
        status = error_set(err, ADTOPK_ERR_SYSTEM, "cannot watch a new session's socket");
    }
    if (status != ADTOPK_OK) {
        reply_refuse(socket, status, err->text);
        segment_drop(&session->ring);
        segment_drop(&session->page);
        if (session->process >= 0) {
            (void)close(session->process);
        }
        (void)close(socket);
        free(session);
        return status;
    }
    session->socket_poll.data = session;
    session->handles = 1;
    session_insert(session);
    session_schedule(local);
    session_watch(session);
    if (session->process >= 0 &&
        uv_poll_init(local->loop, &session->process_poll, session->process) == 0) {
        session->process_poll.data = session;
        session->handles++;
        (void)uv_poll_start(&session->process_poll, UV_READABLE, session_on_process);
    }
    return ADTOPK_OK;
}

void session_watch(struct session *session)
{
    const int readable = session->postponed ? 0 : UV_READABLE;
    const int events = readable | (session->outbox.count > 0 ? UV_WRITABLE : 0);

    if (session->state == SESSION_RESERVING || events == 0) {
        (void)uv_poll_stop(&session->socket_poll); /* what it says now has to wait */
    } else {
        (void)uv_poll_start(&session->socket_poll, events, session_on_socket);
    }
}

/* ---- ending ---- */

void session_lost(struct session *session, const char *format, ...)
{
    char reason[ERROR_TEXT_SIZE];
    struct event event = {.type = EVENT_RANK_LOST, .reason = reason};
    struct error ignored;
    va_list args;

    if (!session->known) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    session->known = false;
    session->local->stats.lost++;
    (void)session_event(session, &event, &ignored);
}

void session_end(struct session *session, enum adtopk_status status, const char *text)
{
    struct local_page *page = session->reader.page;

    if (session->state >= SESSION_ENDED) {
        return;
    }
    session_move(session, SESSION_ENDED);
    reserve_abandon(session);
    session_watch(session);
    session->deadline_ms = uv_now(session->local->loop) + SESSION_LINGER_MS;
    session_schedule(session->local);
    (void)snprintf(page->text, sizeof page->text, "%s", text);
    atomic_store(&page->failed, (uint32_t)status);
    reply_error(session, status, text, true);
}

void session_warn(struct local *local, uid_t uid, pid_t pid, const char *why)
{
    char line[ERROR_TEXT_SIZE + 64];

    if (local->config.warn != NULL) {
        (void)snprintf(
            line, sizeof line, "refused a trainer of uid %u, process %d: %s", uid, (int)pid, why);
        local->config.warn(local->context, uid, line);
    }
}

void session_refuse(struct session *session, const struct error *why)
{
    if (session->state >= SESSION_ENDED) {
        return;
    }
    session->local->stats.protocol_errors++;
    session_warn(session->local, session->uid, session->pid, why->text);
    session_lost(session, "process %d broke the protocol: %s", (int)session->pid, why->text);
    session_end(session, why->code, why->text);
}

void session_judge(struct session *session, enum verdict verdict, const struct error *why)
{
    session->verdict = verdict;
    session->verdict_error = *why;
    session->verdict_turn = session->local->turn + 2;
    session_activate(session);
}

bool session_execute(struct session *session)
{
    const struct error *why = &session->verdict_error;
    const enum verdict verdict = session->verdict;

    if (verdict == VERDICT_NONE || session->local->turn < session->verdict_turn) {
        return verdict != VERDICT_NONE;
    }
    session->verdict = VERDICT_NONE;
    if (session->state >= SESSION_ENDED) {
        return false; /* the action came */
    }
    if (verdict == VERDICT_ERROR) {
        reply_error(session, why->code, why->text, false);
    } else if (verdict == VERDICT_REFUSE) {
        session_refuse(session, why);
    } else {
        session_lost(session, "process %d: %s", (int)session->pid, why->text);
        session_end(session, why->code, why->text);
    }
    return false;
}

static void session_on_closed(uv_handle_t *handle)
{
    struct session *session = handle->data;

    session->handles--;
    session_collect(session);
}

void session_close(struct session *session)
{
    if (session->state == SESSION_CLOSED) {
        return;
    }
    session_move(session, SESSION_CLOSED);
    reserve_abandon(session);
    session->local->stats.sessions--;
    uv_close((uv_handle_t *)&session->socket_poll, session_on_closed);
    if (session->handles > 1) {
        uv_close((uv_handle_t *)&session->process_poll, session_on_closed);
    }
    (void)close(session->socket);
    if (session->process >= 0) {
        (void)close(session->process);
    }
    outbox_clear(&session->outbox);
    segment_drop(&session->ring);
    segment_drop(&session->page);
    segment_close(&session->gradients);
}

void session_collect(struct session *session)
{
    struct local *local = session->local;

    if (session->state != SESSION_CLOSED || session->handles > 0 ||
        session->gradients.bytes != NULL || session->reserving || session->postponed) {
        return;
    }
    session_deactivate(session);
    local->slot[session->id % local->config.max_sessions] = NULL;
    local->used--;
    if (session->previous != NULL) {
        session->previous->next = session->next;
    } else {
        local->sessions = session->next;
    }
    if (session->next != NULL) {
        session->next->previous = session->previous;
    }
    free(session);
    local_finish(local);
}

static void session_late_commit(struct session *session)
{
    char text[ERROR_TEXT_SIZE];

    (void)snprintf(text, sizeof text,
        "the session was opened and nothing was committed within %llu ms (commit_timeout_ms)",
        (unsigned long long)session->local->limits.commit_ms);
    session_lost(session, "process %d: %.200s", (int)session->pid, text);
    session_end(session, ADTOPK_ERR_TIMEOUT, text);
}

/* True if the session still has a deadline. */
static bool session_expire(struct session *session, uint64_t now)
{
    if (session->state == SESSION_CONNECTED && now >= session->deadline_ms) {
        session_end(session, ADTOPK_ERR_TIMEOUT, "nothing was said after connecting");
    } else if (session->state == SESSION_OPEN && now >= session->deadline_ms) {
        session_late_commit(session);
    } else if (session->state == SESSION_ENDED && now >= session->deadline_ms) {
        session_close(session);
    }
    return session->state <= SESSION_RESERVING || session->state == SESSION_ENDED;
}

static void session_tick(uv_timer_t *timer)
{
    struct local *local = timer->data;
    const uint64_t now = uv_now(local->loop);
    bool again = false;

    for (struct session *session = local->sessions; session != NULL; session = session->next) {
        again |= session_expire(session, now);
    }
    if (local->paused) {
        listen_start(local);
    }
    if (!again) {
        (void)uv_timer_stop(timer);
    }
}

void session_schedule(struct local *local)
{
    if (!local->closing && !uv_is_active((uv_handle_t *)&local->timer)) {
        (void)uv_timer_start(&local->timer, session_tick, SESSION_TICK_MS, SESSION_TICK_MS);
    }
}
