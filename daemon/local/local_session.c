/* A session over the unix socket: its beginning, its share of the iterations, its end. */
#include "daemon/local/local_session.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD /* Linux 6.5 */
#define SO_PEERPIDFD 77
#endif

#define LOCAL_SESSION_TICK_MS 200
#define LOCAL_SESSION_ITERATION_US                                                                 \
    2000 /* per iteration, for the sockets and rings of all sessions */

/* ---- the sessions that local_poll() serves ---- */

static void local_session_activate(struct local_session *session)
{
    struct local_serving *serving = &session->local->serving;

    if (!session->active) {
        session->active = true;
        session->active_at = serving->actives;
        serving->active[serving->actives++] = session;
    }
}

bool local_session_is_active(const struct local_session *session)
{
    return session->base.state == SESSION_READY || session->base.verdict != VERDICT_NONE;
}

void local_session_deactivate(struct local_session *session)
{
    struct local_serving *serving = &session->local->serving;

    if (session->active) {
        session->active = false;
        serving->active[session->active_at] = serving->active[--serving->actives];
        serving->active[session->active_at]->active_at = session->active_at;
    }
}

/* ---- beginning ---- */

void local_name_process(const struct ucred *who, char name[SESSION_PEER_SIZE])
{
    if (who->pid > 0) {
        (void)snprintf(name, SESSION_PEER_SIZE, "process %d", (int)who->pid);
    } else {
        (void)snprintf(name, SESSION_PEER_SIZE, "a process of another pid namespace");
    }
}

/* Returns a descriptor that shows when the process ends, or -1. The socket does not show it: forked
 * children of the process may hold it open for longer. */
static int local_session_process(int connection, pid_t pid)
{
    int process = -1;
    socklen_t size = sizeof process;

    if (getsockopt(connection, SOL_SOCKET, SO_PEERPIDFD, &process, &size) != 0) {
        process = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    }
    return process;
}

static enum adtopk_status local_session_share(struct local_session *session, struct error *err)
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

/* ---- at certain times ---- */

/* Tries again what the system had no room for. */
static bool local_session_retry(const struct local *local)
{
    bool any = false;

    for (struct session *one = local->door.sessions; one != NULL; one = one->next) {
        struct local_session *session = local_session(one);

        if (session->outbox.starved && one->state != SESSION_CLOSED) {
            session->outbox.starved = false;
            local_session_watch(session);
            any = true;
        }
    }
    return any;
}

static void local_session_tick(uv_timer_t *timer)
{
    struct local *local = timer->data;
    const bool waits = session_expire(&local->door);

    if (!local_session_retry(local) && !waits) {
        (void)uv_timer_stop(timer);
    }
}

/* A session has got a deadline, or something to try again. */
static void local_session_schedule(struct local *local)
{
    if (!local->closing && !uv_is_active((uv_handle_t *)&local->timer)) {
        (void)uv_timer_start(
            &local->timer, local_session_tick, LOCAL_SESSION_TICK_MS, LOCAL_SESSION_TICK_MS);
    }
}

/* ---- serving ---- */

bool local_session_is_late(struct local *local)
{
    struct local_serving *serving = &local->serving;
    const uint64_t now_us = uv_hrtime() / 1000;

    if (serving->busy_iteration != serving->iteration) {
        serving->busy_iteration = serving->iteration;
        serving->busy_since_us = now_us;
    }
    return now_us - serving->busy_since_us >= LOCAL_SESSION_ITERATION_US;
}

void local_session_postpone(struct local_session *session)
{
    struct local_serving *serving = &session->local->serving;

    if (session->postponed) {
        return;
    }
    session->postponed = true;
    session->base.users++;
    local_session_watch(session);
    session->behind = NULL;
    if (serving->postponed == NULL) {
        serving->postponed = session;
    } else {
        serving->postponed_last->behind = session;
    }
    serving->postponed_last = session;
}

static void local_session_serve(struct local_session *session)
{
    if (local_session_is_late(session->local)) {
        local_session_postpone(session);
        return;
    }
    receive_messages(session); /* the client may have said goodbye */
    if (session->gone && !session->postponed) {
        session_lost(&session->base, "ended without leaving");
    }
}

bool local_session_resume(struct local *local)
{
    struct local_serving *serving = &local->serving;
    const bool any = serving->postponed != NULL;

    while (serving->postponed != NULL && !local_session_is_late(local)) {
        struct local_session *session = serving->postponed;

        serving->postponed = session->behind;
        session->postponed = false;
        if (session->base.state != SESSION_CLOSED) {
            local_session_watch(session);
            local_session_serve(session);
        }
        session_drop(&session->base);
    }
    return any;
}

static void local_session_on_socket(uv_poll_t *poll, int status, int events)
{
    struct local_session *session = poll->data;

    if (status < 0) {
        /* If the other side closed before it read everything, libuv stops polling with EBADF. The
         * daemon can still read messages from before. */
        local_session_serve(session);
        if (session->base.state != SESSION_CLOSED) {
            local_session_watch(session);
        }
        return;
    }
    if ((events & UV_WRITABLE) != 0) {
        (void)outbox_flush(&session->outbox, session->socket);
        local_session_watch(session);
        if (session->outbox.starved) {
            local_session_schedule(session->local);
        }
    }
    if ((events & UV_READABLE) != 0) {
        local_session_serve(session);
    }
}

void local_session_watch(struct local_session *session)
{
    const bool sends = session->outbox.count > 0 && !session->outbox.starved;
    const int events = (session->postponed ? 0 : UV_READABLE) | (sends ? UV_WRITABLE : 0);

    assert(session->base.state != SESSION_CLOSED);
    if (session->base.state == SESSION_RESERVING || events == 0) {
        (void)uv_poll_stop(&session->socket_poll); /* its next messages have to wait */
    } else {
        (void)uv_poll_start(&session->socket_poll, events, local_session_on_socket);
    }
}

static void local_session_on_process(uv_poll_t *poll, int status, int events)
{
    struct local_session *session = poll->data;

    (void)events;
    (void)uv_poll_stop(poll);
    if (status >= 0) {
        session->gone = true;
        local_session_serve(session);
    }
}

/* ---- creating ---- */

static void local_session_drop_shared(struct local_session *session)
{
    segment_drop(&session->ring);
    segment_drop(&session->page);
    (void)close(session->socket);
    if (session->process >= 0) {
        (void)close(session->process);
    }
}

static struct local_session *local_session_new(
    struct local *local, int socket, const struct ucred *who)
{
    struct local_session *session = calloc(1, sizeof *session);

    if (session != NULL) {
        session->base.uid = who->uid;
        session->base.pid = (uint32_t)who->pid;
        local_name_process(who, session->base.peer);
        session->local = local;
        session->socket = socket;
        session->process = local_session_process(socket, who->pid);
        session->ring = session->page = segment_none;
        for (unsigned b = 0; b < CORE_MAX_BATCHES; b++) {
            session->gradients[b] = segment_none;
        }
        session->shown = -1;
        session->reserve.prepared = segment_none;
    }
    return session;
}

/* Watches the socket and, if the kernel allows it, the process. */
static void local_session_begin(struct local_session *session)
{
    struct local *local = session->local;

    session->socket_poll.data = session->process_poll.data = session;
    session->watches_process =
        session->process >= 0 &&
        uv_poll_init(local->loop, &session->process_poll, session->process) == 0;
    session_begin(&session->base, &local->door, session->watches_process ? 2 : 1);
    local_session_schedule(local);
    local_session_watch(session);
    if (session->watches_process) {
        (void)uv_poll_start(&session->process_poll, UV_READABLE, local_session_on_process);
    }
}

enum adtopk_status local_session_create(
    struct local *local, int socket, const struct ucred *who, struct error *err)
{
    struct local_session *session = local_session_new(local, socket, who);
    enum adtopk_status status;

    if (session == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "the daemon has no memory for a session");
        reply_refuse(socket, err->code, err->text);
        (void)close(socket);
        return err->code;
    }
    status = local_session_share(session, err);
    if (status == ADTOPK_OK && uv_poll_init(local->loop, &session->socket_poll, socket) != 0) {
        status = error_set(err, ADTOPK_ERR_SYSTEM, "cannot watch a new session's socket");
    }
    if (status != ADTOPK_OK) {
        reply_refuse(socket, status, err->text);
        local_session_drop_shared(session);
        free(session);
        return status;
    }
    local_session_begin(session);
    return ADTOPK_OK;
}

/* ---- ending ---- */

static void local_session_on_closed(uv_handle_t *handle)
{
    struct local_session *session = handle->data;

    session_drop(&session->base);
}

static void local_session_close(struct local_session *session)
{
    uv_close((uv_handle_t *)&session->socket_poll, local_session_on_closed);
    if (session->watches_process) {
        uv_close((uv_handle_t *)&session->process_poll, local_session_on_closed);
    }
    outbox_clear(&session->outbox);
    gpu_close(session);
    local_session_drop_shared(session);
    for (unsigned b = 0; b < CORE_MAX_BATCHES; b++) {
        segment_close(&session->gradients[b]);
    }
}

void local_session_moved(struct session *base)
{
    struct local_session *session = local_session(base);

    if (base->state >= SESSION_ENDED) {
        atomic_store(&session->reserve.task.unwanted, true);
    }
    if (base->state == SESSION_CLOSED) {
        local_session_close(session);
        return;
    }
    local_session_watch(session);
    local_session_schedule(session->local);
    if (local_session_is_active(session)) {
        local_session_activate(session);
    }
}

void local_session_free(struct session *base)
{
    struct local_session *session = local_session(base);
    struct local *local = session->local;

    assert(session->outbox.count == 0 && session->gradients[0].bytes == NULL);
    local_session_deactivate(session);
    free(session);
    local_finish(local);
}
