/*
 * Opening and closing what the loop drives: uv's handles, worker threads, the sockets for trainers
 * and operators, the core, and the transport with its peers. What fails to open is named, and what
 * was open by then is closed again.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/loop_state.h"

#define WATCH_MS 1000 /* between looks at the peers, for the log */

#define SESSIONS_MAX 1024u
#define SESSION_DESCRIPTORS 6u /* of one session at most, while it commits */

#define RESEND_MS 200
#define MAX_BULK_MESSAGE (UINT64_C(1) << 32)

/* ------------------------------------------------------------------ uv's callbacks */

/* The turn that follows does the work; these only end uv_run()'s sleep. */
static void on_worker_done(uv_async_t *handle)
{
    (void)handle;
}

static void on_deadline(uv_timer_t *handle)
{
    (void)handle;
}

static void on_transport_ready(uv_poll_t *handle, int status, int events)
{
    (void)handle;
    (void)status;
    (void)events;
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct loop *loop = handle->data;

    log_write(loop->log, LEVEL_INFO, LOG_LIFE, "stopping: %s", strsignal(number));
    loop->stopping = true;
    (void)uv_signal_stop(&loop->terminate);
    (void)uv_signal_stop(&loop->interrupt);
}

static void on_watch(uv_timer_t *handle)
{
    struct loop *loop = handle->data;

    watch_look(loop->watcher, loop->core, uv_now(&loop->uv));
}

static void notify_done(void *context)
{
    struct loop *loop = context;

    (void)uv_async_send(&loop->worker_done);
}

static uint32_t count_sessions(void *context)
{
    struct loop *loop = context;
    struct remote_stats remote;
    struct local_stats stats;

    local_stats(loop->local, &stats);
    if (loop->remote != NULL) {
        remote_stats(loop->remote, &remote);
        stats.sessions += remote.sessions;
    }
    return stats.sessions;
}

static void log_control(void *context, const char *line)
{
    struct loop *loop = context;

    log_write(loop->log, LEVEL_DEBUG, LOG_CONTROL, "%s", line);
}

/* ------------------------------------------------------------------ opening */

static enum adtopk_status uv_check(int code, const char *what, struct error *err)
{
    return code == 0 ? ADTOPK_OK
                     : error_set(err, ADTOPK_ERR_SYSTEM, "%s: %s", what, uv_strerror(code));
}

static enum adtopk_status open_handles(struct loop *loop, struct error *err)
{
    enum adtopk_status status = uv_check(
        uv_async_init(&loop->uv, &loop->worker_done, on_worker_done), "uv_async_init", err);

    if (status != ADTOPK_OK) {
        return status;
    }
    /* These only fill in the handles and cannot fail. */
    (void)uv_timer_init(&loop->uv, &loop->deadline);
    (void)uv_timer_init(&loop->uv, &loop->watch);
    (void)uv_signal_init(&loop->uv, &loop->terminate);
    (void)uv_signal_init(&loop->uv, &loop->interrupt);
    loop->handles_open = true;
    loop->deadline.timer_cb = on_deadline;
    loop->watch.data = loop;
    loop->terminate.data = loop;
    loop->interrupt.data = loop;
    status = uv_check(uv_signal_start(&loop->terminate, on_signal, SIGTERM), "SIGTERM", err);
    if (status == ADTOPK_OK) {
        status = uv_check(uv_signal_start(&loop->interrupt, on_signal, SIGINT), "SIGINT", err);
    }
    return status;
}

static enum adtopk_status open_core(struct loop *loop, uint64_t incarnation, struct error *err)
{
    const struct config *config = loop->config;
    struct core_config core = {
        .node = (uint16_t)config->node,
        .incarnation = incarnation,
        .links = {.chunk_size = config->chunk_size,
            .window = config->window,
            .max_control_message = TRANSPORT_BODY_MAX,
            .max_bulk_message = MAX_BULK_MESSAGE,
            .heartbeat_us = config->heartbeat_ms * 1000,
            .timeout_us = config->peer_timeout_ms * 1000,
            .resend_us = RESEND_MS * 1000},
        .memory = local_memory(loop->local),
        .transmit = loop_transmit,
        .transmit_context = loop,
        .policy = config->policy,
        .trace = loop->log->level >= LEVEL_DEBUG ? loop_trace : NULL,
        .moved = loop_moved,
        .trace_context = loop,
    };

    if (loop->remote != NULL) {
        const struct core_memory local = core.memory;

        core.memory = remote_memory(loop->remote, &local);
    }
    loop->core = core_create(&core, err);
    return loop->core != NULL ? ADTOPK_OK : err->code;
}

static enum adtopk_status add_peers(struct loop *loop, struct error *err)
{
    for (size_t i = 0; i < loop->config->peer_count; i++) {
        const struct config_peer *peer = &loop->config->peers[i];
        enum adtopk_status status = transport_zmq.add_peer(loop->transport,
            &(struct transport_peer){.id = peer->node, .endpoint = peer->endpoint}, err);

        if (status == ADTOPK_OK) {
            status = core_add_peer(loop->core, peer->node, loop_now_us());
            if (status != ADTOPK_OK) {
                (void)error_set(err, status, "cannot add peer %u at %s: %s", peer->node,
                    peer->endpoint, adtopk_status_name(status));
            }
        }
        if (status != ADTOPK_OK) {
            return status;
        }
    }
    return ADTOPK_OK;
}

static enum adtopk_status open_transport(struct loop *loop, struct error *err)
{
    struct transport_config config = {
        .self = (uint16_t)loop->config->node, .listen = loop->config->listen};
    enum adtopk_status status;

    if (loop->config->listen[0] == '\0') {
        return ADTOPK_OK;
    }
    loop->watcher = watch_create(loop->config->peer_count, (uint16_t)loop->config->node, loop->log);
    if (loop->watcher == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the peers");
    }
    loop->transport = transport_zmq.create(&config, loop_receive, loop, err);
    if (loop->transport == NULL) {
        return err->code;
    }
    status = uv_check(
        uv_poll_init(&loop->uv, &loop->transport_ready, transport_zmq.descriptor(loop->transport)),
        "cannot watch the transport", err);
    if (status != ADTOPK_OK) {
        transport_zmq.destroy(loop->transport); /* no handle to close: as if never opened */
        loop->transport = NULL;
        return status;
    }
    status = uv_check(uv_poll_start(&loop->transport_ready, UV_READABLE, on_transport_ready),
        "cannot watch the transport", err);
    if (status == ADTOPK_OK) {
        status = uv_check(
            uv_timer_start(&loop->watch, on_watch, WATCH_MS, WATCH_MS), "uv_timer_start", err);
    }
    return status == ADTOPK_OK ? add_peers(loop, err) : status;
}

/* Sessions get three quarters of the descriptors: libzmq spins when it cannot accept for want of
 * one, so local clients must not be able to use up all. */
static uint32_t session_limit(void)
{
    struct rlimit limit;
    uint64_t sessions = SESSIONS_MAX;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
        limit.rlim_cur / 4 * 3 / SESSION_DESCRIPTORS < sessions) {
        sessions = limit.rlim_cur / 4 * 3 / SESSION_DESCRIPTORS;
    }
    return sessions > 0 ? (uint32_t)sessions : 1;
}

static void warn_of_trainer(void *context, const char *line)
{
    struct loop *loop = context;

    log_write(loop->log, LEVEL_WARNING, LOG_SESSION, "%s", line);
}

/* The keys of remote trainers, as the module for them wants them. NULL without memory. */
static struct remote_owner *list_owners(const struct config *config)
{
    struct remote_owner *owners = calloc(config->trainer_count + 1, sizeof(*owners));

    for (size_t i = 0; owners != NULL && i < config->trainer_count; i++) {
        memcpy(owners[i].key, config->trainers[i].key, sizeof(owners[i].key));
        owners[i].uid = config->trainers[i].owner;
    }
    return owners;
}

static enum adtopk_status open_remote(struct loop *loop, struct error *err)
{
    static const struct remote_ops ops = {.event = loop_session_event};
    const struct config *config = loop->config;
    struct remote_owner *owners = list_owners(config);
    struct keyfile_pair pair;
    struct remote_config remote = {
        .listen = config->trainers_listen,
        .owners = owners,
        .owner_count = config->trainer_count,
        .owner = (uint32_t)config->trainers_owner,
        .heartbeat_ms = (uint32_t)config->heartbeat_ms,
        .timeout_ms = (uint32_t)config->peer_timeout_ms,
        .warn = warn_of_trainer,
    };
    enum adtopk_status status = ADTOPK_OK;

    if (owners == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the keys of trainers");
    }
    if (config->trainer_count > 0) {
        status = keyfile_load(config->key_file, &pair, err);
        remote.pair = &pair;
    }
    if (status == ADTOPK_OK && config->trainers_listen[0] != '\0') {
        loop->remote = remote_create(&loop->uv, &remote, &ops, loop, err);
        status = loop->remote != NULL ? ADTOPK_OK : err->code;
    }
    if (remote.pair != NULL) {
        keyfile_wipe(&pair);
    }
    free(owners);
    return status;
}

static enum adtopk_status open_sockets(struct loop *loop, uint64_t incarnation, struct error *err)
{
    static const struct local_ops local_ops = {.event = loop_session_event};
    struct local_config local = {
        .path = loop->config->socket, .mode = 0666, .max_sessions = session_limit()};
    struct control_config control = {
        .path = loop->config->control_socket,
        .history = &loop->history,
        .node = (uint16_t)loop->config->node,
        .incarnation = incarnation,
        .sessions = count_sessions,
        .log = log_control,
        .context = loop,
    };
    enum adtopk_status status;

    loop->local = local_create(&loop->uv, &local, &local_ops, loop, err);
    if (loop->local == NULL) {
        return err->code;
    }
    status = open_remote(loop, err);
    if (status == ADTOPK_OK) {
        status = open_core(loop, incarnation, err);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    control.core = loop->core;
    loop->control = control_create(&loop->uv, &control, err);
    return loop->control != NULL ? ADTOPK_OK : err->code;
}

static unsigned worker_count(const struct config *config)
{
    return config->workers > 0 ? (unsigned)config->workers
                               : config_default_workers(sysconf(_SC_NPROCESSORS_ONLN));
}

struct loop *loop_create(
    const struct config *config, struct log *log, uint64_t incarnation, struct error *err)
{
    struct loop *loop = calloc(1, sizeof(*loop));
    enum adtopk_status status;

    if (loop == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for the loop");
        return NULL;
    }
    loop->config = config;
    loop->log = log;
    if (uv_check(uv_loop_init(&loop->uv), "cannot create the event loop", err) != ADTOPK_OK) {
        free(loop);
        return NULL;
    }
    status = open_handles(loop, err);
    if (status == ADTOPK_OK) {
        loop->workers = workers_create(worker_count(config), notify_done, loop, err);
        status = loop->workers != NULL ? ADTOPK_OK : err->code;
    }
    if (status == ADTOPK_OK) {
        status = open_sockets(loop, incarnation, err);
    }
    if (status == ADTOPK_OK) {
        status = open_transport(loop, err);
    }
    if (status != ADTOPK_OK) {
        loop_destroy(loop);
        return NULL;
    }
    return loop;
}

/* ------------------------------------------------------------------ closing */

static void close_handles(struct loop *loop)
{
    if (loop->transport != NULL) {
        uv_close((uv_handle_t *)&loop->transport_ready, NULL);
    }
    if (loop->handles_open) {
        uv_close((uv_handle_t *)&loop->worker_done, NULL);
        uv_close((uv_handle_t *)&loop->deadline, NULL);
        uv_close((uv_handle_t *)&loop->watch, NULL);
        uv_close((uv_handle_t *)&loop->terminate, NULL);
        uv_close((uv_handle_t *)&loop->interrupt, NULL);
    }
}

/* The order matters: no compute may run when the core goes, the core gives memory back to the
 * sessions, and descriptors are closed after the handles that watch them. */
void loop_destroy(struct loop *loop)
{
    workers_destroy(loop->workers);
    if (loop->control != NULL) {
        control_close(loop->control);
    }
    if (loop->core != NULL) {
        core_destroy(loop->core);
    }
    if (loop->local != NULL) {
        local_close(loop->local, NULL);
    }
    if (loop->remote != NULL) {
        remote_close(loop->remote);
    }
    close_handles(loop);
    (void)uv_run(&loop->uv, UV_RUN_DEFAULT);
    if (loop->transport != NULL) {
        transport_zmq.destroy(loop->transport);
    }
    if (uv_loop_close(&loop->uv) != 0) {
        log_write(loop->log, LEVEL_ERROR, LOG_LIFE, "a handle of the event loop was left open");
    }
    free(loop->watcher);
    free(loop);
}
