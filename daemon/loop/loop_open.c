/*
 * Opens and closes everything that the loop drives: uv's handles, worker threads, the sockets for
 * trainers and operators, the core, and the transport with its peers. An error names what failed to
 * open, and everything that was open by then is closed again.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/loop/loop_state.h"
#include "daemon/loop/notify.h"
#include "daemon/loop/threads.h"
#include "daemon/session/passed.h"

#define NETWORK_THREADS "ZMQbg/IO" /* as libzmq names those that encrypt and send */
#define RELOAD_EVERY_MS 100        /* however many SIGHUPs come */

#define SESSIONS_MAX 1024u
#define SESSION_DESCRIPTORS 6u /* of one session at most, while it commits */

#define RESEND_MS 200
#define REOPEN_MS 3000
#define REOPEN_HEARTBEATS 3
#define MAX_BULK_MESSAGE (UINT64_C(1) << 32)

/* ------------------------------------------------------------------ uv's callbacks */

/* These two only end the sleep of uv_run(). The iteration that follows does the work. */
static void loop_open_on_wake(uv_async_t *handle)
{
    (void)handle;
}

static void loop_open_on_packets(uv_poll_t *handle, int status, int events)
{
    (void)handle;
    (void)status;
    (void)events;
}

static void loop_open_on_signal(uv_signal_t *handle, int number)
{
    struct loop *loop = handle->data;

    (void)uv_signal_stop(&loop->handles.terminate);
    (void)uv_signal_stop(&loop->handles.interrupt);
    loop_stop(loop, strsignal(number));
}

static void loop_open_on_tick(uv_timer_t *handle)
{
    loop_tick(handle->data);
}

static void loop_open_on_reload(uv_timer_t *handle)
{
    struct loop *loop = handle->data;

    loop->reloaded_us = loop_now_us();
    loop_reload(loop);
}

static void loop_open_on_hangup(uv_signal_t *handle, int number)
{
    struct loop *loop = handle->data;
    const uint64_t since_ms = (loop_now_us() - loop->reloaded_us) / 1000;

    (void)number;
    if (!uv_is_active((const uv_handle_t *)&loop->handles.reload)) {
        (void)uv_timer_start(&loop->handles.reload, loop_open_on_reload,
            since_ms < RELOAD_EVERY_MS ? RELOAD_EVERY_MS - since_ms : 0, 0);
    }
}

static struct report_trainers loop_open_describe_trainers(void *context)
{
    const struct loop *loop = context;
    const struct door_stats doors = door_count(&loop->doors);
    struct remote_stats remote = {.keys = 0};

    if (loop->remote != NULL) {
        remote_stats(loop->remote, &remote);
    }
    return (struct report_trainers){.sessions = doors.sessions,
        .opened = doors.opened,
        .refused = doors.refused,
        .keys = remote.keys,
        .handshakes = remote.handshakes,
        .lost = doors.lost,
        .protocol_errors = doors.protocol_errors};
}

static struct report_network loop_open_describe_network(void *context)
{
    struct loop *loop = context;
    struct transport_refused refused;

    if (loop->transport == NULL) {
        return (struct report_network){.protection = NULL};
    }
    refused = transport_zmq.refused(loop->transport);
    return (struct report_network){.protection = transport_zmq.protection(loop->transport),
        .cpu_us = threads_cpu_us(NETWORK_THREADS),
        .keys = refused.keys,
        .handshakes = refused.handshakes,
        .tokens = refused.tokens,
        .packets = refused.packets};
}

static struct report_load loop_open_describe_load(void *context)
{
    const struct loop *loop = context;

    return (struct report_load){.longest_us = loop->iterations.longest_us,
        .minute_us = iterations_last_minute_us(&loop->iterations),
        .cpu_us = loop->iterations.mark_cpu_us,
        .workers = workers_count(loop->workers),
        .busy_us = workers_busy_us(loop->workers),
        .lines_left_out = loop->log->left_out_ever,
        .lines_lost = loop->log->lost_ever};
}

static uint64_t loop_open_count_memory(void *context, uint64_t job)
{
    const struct loop *loop = context;

    return quota_job_bytes(loop->quota, job);
}

static enum adtopk_status loop_open_control_event(
    void *context, struct event *event, struct error *err)
{
    return loop_raise(context, event, err);
}

static const char *loop_open_default_policy(void *context)
{
    const struct loop *loop = context;

    return loop->config->policy;
}

static void loop_open_log_session(void *context, uint32_t uid, const char *line)
{
    struct loop *loop = context;

    log_write_by(loop->log, LEVEL_WARNING, LOG_REFUSED, uid, "%s", line);
}

void loop_log_refused(void *context, const char *line)
{
    struct loop *loop = context;

    log_write(loop->log, LEVEL_WARNING, LOG_REFUSED, "%s", line);
}

static void loop_open_log_control(
    void *context, enum control_topic topic, uint32_t uid, const char *line)
{
    static const struct {
        enum log_level level;
        enum log_kind kind;
    } topics[] = {[CONTROL_DEBUG] = {LEVEL_DEBUG, LOG_CONTROL},
        [CONTROL_INFO] = {LEVEL_INFO, LOG_CONTROL},
        [CONTROL_WARNING] = {LEVEL_WARNING, LOG_CONTROL},
        [CONTROL_REFUSED] = {LEVEL_WARNING, LOG_REFUSED},
        [CONTROL_CHANGE] = {LEVEL_INFO, LOG_CHANGE}};
    struct loop *loop = context;

    log_write_by(loop->log, topics[topic].level, topics[topic].kind, uid, "%s", line);
}

/* ------------------------------------------------------------------ opening */

static enum adtopk_status loop_open_uv_check(int code, const char *what, struct error *err)
{
    return code == 0 ? ADTOPK_OK
                     : error_set(err, ADTOPK_ERR_SYSTEM, "%s: %s", what, uv_strerror(code));
}

static enum adtopk_status loop_open_handles(struct loop *loop, struct error *err)
{
    enum adtopk_status status = loop_open_uv_check(
        uv_async_init(&loop->uv, &loop->handles.wake, loop_open_on_wake), "uv_async_init", err);

    if (status != ADTOPK_OK) {
        return status;
    }
    /* These only fill in the handles and cannot fail. */
    (void)uv_timer_init(&loop->uv, &loop->handles.deadline);
    (void)uv_timer_init(&loop->uv, &loop->handles.tick);
    (void)uv_timer_init(&loop->uv, &loop->handles.reload);
    (void)uv_signal_init(&loop->uv, &loop->handles.hangup);
    (void)uv_signal_init(&loop->uv, &loop->handles.terminate);
    (void)uv_signal_init(&loop->uv, &loop->handles.interrupt);
    loop->handles.open = true;
    loop->handles.tick.data = loop;
    loop->handles.reload.data = loop;
    loop->handles.hangup.data = loop;
    loop->handles.terminate.data = loop;
    loop->handles.interrupt.data = loop;
    status = loop_open_uv_check(
        uv_signal_start(&loop->handles.terminate, loop_open_on_signal, SIGTERM), "SIGTERM", err);
    if (status == ADTOPK_OK) {
        status = loop_open_uv_check(
            uv_signal_start(&loop->handles.interrupt, loop_open_on_signal, SIGINT), "SIGINT", err);
    }
    if (status == ADTOPK_OK) {
        status = loop_open_uv_check(
            uv_signal_start(&loop->handles.hangup, loop_open_on_hangup, SIGHUP), "SIGHUP", err);
    }
    return status;
}

/* A lane that delivers nothing for so long is opened anew. */
static uint64_t loop_open_reopen_ms(const struct config *config)
{
    uint64_t heartbeats = REOPEN_HEARTBEATS * config->link.heartbeat_ms;

    return heartbeats > REOPEN_MS ? heartbeats : REOPEN_MS;
}

static enum adtopk_status loop_open_core(struct loop *loop, uint64_t incarnation, struct error *err)
{
    const struct config *config = loop->config;
    const struct core_memory local = local_memory(loop->local);
    const struct core_memory counted = quota_memory(loop->quota, &local);
    struct core_config core = {
        .node = (uint16_t)config->node,
        .incarnation = incarnation,
        .links = {.part_size = config->link.part_size,
            .window = config->link.window,
            .max_control_message = TRANSPORT_BODY_MAX,
            .max_bulk_message = MAX_BULK_MESSAGE,
            .heartbeat_us = config->link.heartbeat_ms * 1000,
            .timeout_us = config->link.peer_timeout_ms * 1000,
            .resend_us = RESEND_MS * 1000,
            .reopen_us = loop_open_reopen_ms(config) * 1000},
        .memory = loop_device_memory(loop, &counted),
        .engine = loop->gpu.device != NULL ? &engine_cuda : NULL,
        .engine_context = loop->gpu.device,
        .transmit = loop_transmit,
        .reopen = loop_reopen,
        .transmit_context = loop,
        .threads = workers_parallel(loop->workers).threads,
        .parallel = workers_parallel(loop->workers),
        .policy = config->policy,
        .stuck_us = config->stuck_after_ms * 1000,
        .note = loop_note,
        .warn = loop_warn,
        .trace = loop->log->level >= LEVEL_DEBUG ? loop_trace : NULL,
        .failed = loop_failed,
        .stuck = loop_stuck,
        .trace_context = loop,
    };

    if (!local_outlives(loop->local)) {
        core_config_keep_nothing(&core);
    }
    loop_set_carrier(loop, &core);
    if (getrandom(&core.secret, sizeof(core.secret), 0) != (ssize_t)sizeof(core.secret)) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "no random numbers: %s", strerror(errno));
    }
    loop->core = core_create(&core, err);
    if (loop->core == NULL) {
        return err->code;
    }
    quota_watch(loop->quota, loop->core);
    return ADTOPK_OK;
}

static enum adtopk_status loop_open_afford(
    void *context, uint32_t uid, uint64_t bytes, struct error *err)
{
    const struct loop *loop = context;

    return quota_afford(loop->quota, uid, bytes, err);
}

static enum adtopk_status loop_open_admit(
    void *context, int socket, const struct ucred *who, struct error *err)
{
    const struct loop *loop = context;
    const char *group = loop->config->session_group;

    return group[0] == '\0' || rights_allow(&loop->openers, RIGHT_ADMIN, socket, who, UINT32_MAX)
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_DENIED,
                     "user %u may not open sessions on this daemon: only root, the daemon's user "
                     "and members of the group %s may (session_group)",
                     who->uid, group);
}

/* Who may open sessions. If the group does not exist, no user may. */
static void loop_open_look_up_openers(struct loop *loop)
{
    const char *group = loop->config->session_group;

    loop->openers = rights_of(geteuid(), group);
    if (group[0] != '\0' && !loop->openers.has_group) {
        log_write(loop->log, LEVEL_WARNING, LOG_LIFE,
            "session_group: there is no group \"%s\": only root and uid %u may open sessions",
            group, (unsigned)geteuid());
    }
}

void loop_set_limits(struct loop *loop, const struct config *config)
{
    loop->doors.limits =
        (struct door_limits){.user_sessions = (uint32_t)config->limits.user_sessions,
            .commit_ms = config->limits.commit_timeout_ms};
    loop->limits = (struct quota_limits){
        .memory_percent = config->limits.user_memory, .jobs = config->limits.user_jobs};
    if (loop->gpu.device != NULL) {
        device_limit_users(loop->gpu.device, (unsigned)config->limits.user_memory);
    }
    if (loop->control != NULL) {
        control_limit(loop->control,
            &(struct control_limits){.requests = (unsigned)config->limits.user_requests,
                .own_jobs = config->jobs_visible == VISIBLE_OWN});
    }
}

struct transport_peer loop_transport_peer(const struct config_peer *peer)
{
    struct transport_peer there = {.id = peer->node, .endpoint = peer->endpoint};

    for (size_t i = 0; i < TRANSPORT_PEER_KEYS && i < CONFIG_PEER_KEYS; i++) {
        there.keys[i] = peer->keys[i][0] != '\0' ? peer->keys[i] : NULL;
    }
    return there;
}

enum adtopk_status loop_add_peer(
    struct loop *loop, const struct config_peer *peer, struct error *err)
{
    const struct transport_peer there = loop_transport_peer(peer);
    enum adtopk_status status = transport_zmq.add_peer(loop->transport, &there, err);

    if (status == ADTOPK_OK) {
        status = core_add_peer(loop->core, peer->node, loop_now_us());
        if (status != ADTOPK_OK) {
            transport_zmq.drop_peer(loop->transport, peer->node);
            (void)error_set(err, status, "cannot add peer %u at %s: %s", peer->node, peer->endpoint,
                adtopk_status_name(status));
        }
    }
    return status;
}

static enum adtopk_status loop_open_add_peers(struct loop *loop, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (size_t i = 0; status == ADTOPK_OK && i < loop->config->peer_count; i++) {
        status = loop_add_peer(loop, &loop->config->peers[i], err);
    }
    return status;
}

static unsigned loop_open_network_threads(const struct config *config)
{
    const uint64_t threads = config->link.network_threads;

    return threads > 0 ? (unsigned)threads
                       : config_default_network_threads(sysconf(_SC_NPROCESSORS_ONLN));
}

static enum adtopk_status loop_open_create_transport(struct loop *loop, struct error *err)
{
    char bulk[CONFIG_ENDPOINT_SIZE];
    struct keyfile_pair pair;
    struct transport_config config = {.self = (uint16_t)loop->config->node,
        .listen = loop->config->listen,
        .pair = loop->config->key_file[0] != '\0' ? &pair : NULL,
        .bulk_listen = config_bulk_endpoint(loop->config, bulk) ? bulk : NULL,
        .threads = loop_open_network_threads(loop->config),
        .peers = loop->config->peer_count,
        .warn = loop_log_refused};

    if (config_load_keys(loop->config, &pair, err) != ADTOPK_OK) {
        return err->code;
    }
    loop->transport = transport_zmq.create(&config, loop_receive, loop, err);
    keyfile_wipe(&pair);
    return loop->transport != NULL ? ADTOPK_OK : err->code;
}

static enum adtopk_status loop_open_transport(
    struct loop *loop, uint64_t incarnation, struct error *err)
{
    enum adtopk_status status;

    if (loop->config->listen[0] == '\0') {
        return ADTOPK_OK;
    }
    loop->nodes.watch = watch_create((uint16_t)loop->config->node, loop->log);
    loop->nodes.knock = knock_create(&loop->uv, loop_peer_gone, loop);
    if (loop->nodes.watch == NULL || loop->nodes.knock == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the peers");
    }
    status = loop_open_create_transport(loop, err);
    if (status != ADTOPK_OK) {
        return status;
    }
    status = loop_open_uv_check(uv_poll_init(&loop->uv, &loop->handles.transport_ready,
                                    transport_zmq.descriptor(loop->transport)),
        "cannot watch the transport", err);
    if (status != ADTOPK_OK) {
        transport_zmq.destroy(loop->transport); /* no handle to close: as if never opened */
        loop->transport = NULL;
        return status;
    }
    status = loop_open_uv_check(
        uv_poll_start(&loop->handles.transport_ready, UV_READABLE, loop_open_on_packets),
        "cannot watch the transport", err);
    if (status == ADTOPK_OK) {
        status = loop_open_add_peers(loop, err);
    }
    return status == ADTOPK_OK ? loop_open_seeds(loop, incarnation, err) : status;
}

/* Sessions get three quarters of the descriptors. libzmq spins when it has no descriptor left to
 * accept with, so local clients must not be able to use up all. */
static uint32_t loop_open_session_limit(void)
{
    struct rlimit limit;
    uint64_t sessions = SESSIONS_MAX;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
        limit.rlim_cur / 4 * 3 / SESSION_DESCRIPTORS < sessions) {
        sessions = limit.rlim_cur / 4 * 3 / SESSION_DESCRIPTORS;
    }
    return sessions > 0 ? (uint32_t)sessions : 1;
}

static enum adtopk_status loop_open_control(
    struct loop *loop, uint64_t incarnation, struct error *err)
{
    const struct control_config control = {
        .path = loop->config->control_socket,
        .core = loop->core,
        .history = &loop->history,
        .node = (uint16_t)loop->config->node,
        .incarnation = incarnation,
        .group = loop->config->control_group,
        .trainers = loop_open_describe_trainers,
        .event = loop_open_control_event,
        .policy = loop_open_default_policy,
        .network = loop_open_describe_network,
        .load = loop_open_describe_load,
        .memory = loop_open_count_memory,
        .gpu = loop_describe_device,
        .gpu_worker = loop_describe_worker,
        .gpu_shard = loop_describe_shard,
        .store = loop_describe_store,
        .peer = loop_describe_peer,
        .log = loop_open_log_control,
        .context = loop,
    };

    loop->control = control_create(&loop->uv, &control, err);
    return loop->control != NULL ? ADTOPK_OK : err->code;
}

static enum adtopk_status loop_open_sessions(struct loop *loop, struct error *err)
{
    struct local_config local = {.path = loop->config->socket,
        .mode = 0666,
        .store_folder = loop->config->compute.store_folder,
        .tell = notify_keep,
        .max_kept = notify_keeps(),
        .workers = workers_count(loop->workers),
        .max_sessions = loop_open_session_limit(),
        .afford = loop_open_afford,
        .admit = loop_open_admit,
        .replaced = loop_log_replaced};

    loop_set_gpu(loop, &local);
    loop->doors.event = loop_session_event;
    loop->doors.warn = loop_open_log_session;
    loop->doors.context = loop;
    loop->local = local_create(&loop->uv, &local, &loop->doors, loop, err);
    if (loop->local == NULL) {
        return err->code;
    }
    loop_log_stores(loop);
    loop_take_left(loop);
    return loop_open_remote(loop, err);
}

static enum adtopk_status loop_open_sockets(
    struct loop *loop, uint64_t incarnation, struct error *err)
{
    enum adtopk_status status;

    loop->quota = quota_create(&loop->limits);
    if (loop->quota == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the users' limits");
    }
    loop->traces = traces_create(
        &loop->uv, loop->config->compute.trace_folder, (uint16_t)loop->config->node, loop->log);
    if (loop->traces == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for traces");
    }
    loop_open_look_up_openers(loop);
    status = loop_open_sessions(loop, err);
    if (status == ADTOPK_OK) {
        status = loop_open_core(loop, incarnation, err);
    }
    if (status == ADTOPK_OK) {
        status = loop_open_control(loop, incarnation, err);
    }
    if (status == ADTOPK_OK) {
        loop_set_limits(loop, loop->config);
    }
    return status;
}

static unsigned loop_open_worker_count(const struct config *config)
{
    return config->compute.workers > 0 ? (unsigned)config->compute.workers
                                       : config_default_workers(sysconf(_SC_NPROCESSORS_ONLN));
}

enum adtopk_status loop_take_passed(const struct config *config, struct error *err)
{
    const char *const paths[] = {config->socket, config->control_socket, NULL};

    return passed_check(paths, err);
}

struct loop *loop_create(
    struct config *config, struct log *log, uint64_t incarnation, struct error *err)
{
    struct loop *loop = calloc(1, sizeof(*loop));
    enum adtopk_status status;

    if (loop == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for the loop");
        return NULL;
    }
    loop->config = config;
    loop->log = log;
    loop->watchdog_us = notify_watchdog_us();
    if (loop_open_uv_check(uv_loop_init(&loop->uv), "cannot create the event loop", err) !=
        ADTOPK_OK) {
        free(loop);
        return NULL;
    }
    status = loop_open_handles(loop, err);
    if (status == ADTOPK_OK) {
        loop->workers = workers_create(loop_open_worker_count(config), loop_wake, loop, err);
        status = loop->workers != NULL ? ADTOPK_OK : err->code;
    }
    if (status == ADTOPK_OK) {
        status = loop_open_device(loop, err);
    }
    if (status == ADTOPK_OK) {
        status = loop_open_sockets(loop, incarnation, err);
    }
    if (status == ADTOPK_OK) {
        status = loop_open_transport(loop, incarnation, err);
    }
    if (status == ADTOPK_OK) {
        status = loop_open_uv_check(uv_timer_start(&loop->handles.tick, loop_open_on_tick,
                                        loop_tick_ms(loop), loop_tick_ms(loop)),
            "uv_timer_start", err);
    }
    if (status != ADTOPK_OK) {
        loop_destroy(loop);
        return NULL;
    }
    return loop;
}

/* ------------------------------------------------------------------ closing */

static void loop_open_close_handles(struct loop *loop)
{
    if (loop->transport != NULL) {
        uv_close((uv_handle_t *)&loop->handles.transport_ready, NULL);
    }
    if (loop->handles.open) {
        uv_close((uv_handle_t *)&loop->handles.wake, NULL);
        uv_close((uv_handle_t *)&loop->handles.deadline, NULL);
        uv_close((uv_handle_t *)&loop->handles.tick, NULL);
        uv_close((uv_handle_t *)&loop->handles.reload, NULL);
        uv_close((uv_handle_t *)&loop->handles.hangup, NULL);
        uv_close((uv_handle_t *)&loop->handles.terminate, NULL);
        uv_close((uv_handle_t *)&loop->handles.interrupt, NULL);
    }
}

/* The order matters. No compute and no device worker may run when the core is destroyed, the core
 * gives memory back to the sessions, and descriptors are closed after the handles that watch them.
 */
void loop_destroy(struct loop *loop)
{
    const bool stay = loop->local != NULL && local_outlives(loop->local);

    workers_destroy(loop->workers);
    if (loop->control != NULL) {
        control_close(loop->control);
    }
    loop_stop_device(loop);
    if (loop->core != NULL) {
        core_destroy(loop->core);
    }
    if (loop->local != NULL) {
        local_close(loop->local, NULL);
    }
    if (loop->remote != NULL) {
        remote_close(loop->remote, stay);
    }
    knock_destroy(loop->nodes.knock);
    loop_open_close_handles(loop);
    (void)uv_run(&loop->uv, UV_RUN_DEFAULT);
    if (loop->transport != NULL) {
        transport_zmq.destroy(loop->transport);
    }
    if (uv_loop_close(&loop->uv) != 0) {
        log_write(loop->log, LEVEL_ERROR, LOG_LIFE, "a handle of the event loop was left open");
    }
    loop_close_device(loop);
    quota_destroy(loop->quota);
    traces_destroy(loop->traces);
    seeds_destroy(loop->nodes.seeds);
    free(loop->nodes.watch);
    free(loop);
}
