/*
 * The happy path of a turn. What ranks wrote into their rings, what peers sent and what workers
 * finished goes into the core as events; its actions are carried out: small computes here, larger
 * ones on a worker, the rest by the local sessions. Packets leave during events, through
 * transmit(). Turns follow each other as long as something happens. Then the loop spins for a
 * while, because the next event of a training step is often microseconds away, and at last sleeps
 * in uv_run() until a descriptor, a worker, a signal or the core's deadline wakes it.
 *
 * What could go wrong, and what is done about it:
 *   - A wake-up could get lost between the last look and the sleep. Rings: local_sleep() raises
 *     the flag, then looks again. Transport: its descriptor is edge-triggered, so the loop pumps
 *     after everything that may have sent, until nothing is left, and sleeps only after such a
 *     turn. Workers: every result is followed by uv_async_send(), which uv_run() cannot miss.
 *   - Spinning could take the core away from a rank that shares it. A sched_yield() that takes
 *     long says so; then the loop does not yield and hardly spins for a while (spin.h).
 *   - One side could keep the loop busy for ever. Every source has a bounded share of a turn, and
 *     uv_run() gets its turn every POLL_EVERY_US, so that signals and new sessions are served.
 *   - Memory could be too short to queue a compute: it is then run here.
 *   - A transport that takes no packet returns false, and the core offers it again later.
 */
#include "daemon/loop.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/admin/control.h"
#include "daemon/admin/history.h"
#include "daemon/core/core.h"
#include "daemon/local/local.h"
#include "daemon/spin.h"
#include "daemon/transport/transport.h"
#include "daemon/watch.h"
#include "daemon/workers.h"

#define SMALL_COMPUTE (64u << 10) /* bytes: below, the hop to a worker costs more than the work */
#define ACTIONS_PER_TURN 256u
#define PACKETS_PER_TURN 64u

#define POLL_EVERY_US 50
#define WATCH_MS 1000 /* between looks at the peers, for the log */

#define SESSIONS_MAX 1024u
#define SESSION_DESCRIPTORS 6u /* of one session at most, while it commits */

#define RESEND_MS 200
#define MAX_BULK_MESSAGE (UINT64_C(1) << 32)

struct loop {
    const struct config *config;
    struct log *log;
    uv_loop_t uv;
    struct core *core;
    struct local *local;
    struct control *control;
    struct history history;
    struct workers *workers;
    void *transport; /* NULL without `listen` */

    uv_async_t worker_done;
    uv_poll_t transport_ready;
    uv_timer_t deadline;
    uv_timer_t watch;
    uv_signal_t terminate;
    uv_signal_t interrupt;
    bool handles_open; /* all of the above but transport_ready */
    struct watch *watcher;

    unsigned received; /* packets in this pump */
    bool stopping;
    struct spin spin;
    uint64_t polled_us; /* uv_run() was called last */
};

static uint64_t now_us(void)
{
    return uv_hrtime() / 1000;
}

/* ------------------------------------------------------------------ into the core */

static enum adtopk_status raise_event(struct loop *loop, struct event *event, struct error *err)
{
    event->now_us = now_us();
    return core_event(loop->core, event, err);
}

static enum adtopk_status local_event(void *context, struct event *event, struct error *err)
{
    struct loop *loop = context;

    if (event->type == EVENT_RANK_OPEN && control_is_draining(loop->control)) {
        return error_set(err, ADTOPK_ERR_STATE,
            "node %llu is draining: an operator wants no new ranks here",
            (unsigned long long)loop->config->node);
    }
    if (event->type == EVENT_RANK_LEAVE || event->type == EVENT_RANK_LOST) {
        history_record(&loop->history, loop->core, event->session);
    }
    return raise_event(loop, event, err);
}

static void receive(
    void *context, uint16_t peer, enum link_lane lane, const uint8_t *packet, size_t size)
{
    struct loop *loop = context;
    struct event event = {.type = EVENT_PACKET,
        .packet = {.peer = peer, .lane = lane, .bytes = packet, .size = size}};

    loop->received++;
    (void)raise_event(loop, &event, NULL); /* packets never fail */
}

static void compute_done(struct loop *loop, struct compute *compute)
{
    struct event event = {.type = EVENT_COMPUTE_DONE, .compute = compute};
    struct error err = {.code = ADTOPK_OK};

    if (raise_event(loop, &event, &err) != ADTOPK_OK) {
        log_write(loop->log, LEVEL_ERROR, LOG_SESSION, "a finished compute: %s", err.text);
    }
}

/* ------------------------------------------------------------------ out of the core */

static bool transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size)
{
    struct loop *loop = context;

    return loop->transport != NULL &&
           transport_zmq.send(loop->transport, peer, lane, header, header_size, body, body_size);
}

static void trace(void *context, const char *line)
{
    struct loop *loop = context;

    log_write(loop->log, LEVEL_DEBUG, LOG_TRACE, "%s", line);
}

static void moved(
    void *context, const struct machine_table *table, unsigned from, unsigned event, unsigned to)
{
    struct loop *loop = context;

    (void)from;
    (void)event;
    history_moved(&loop->history, loop->core, table, to);
}

static void run_compute(struct loop *loop, struct compute *compute)
{
    if (compute->bytes > SMALL_COMPUTE && workers_submit(loop->workers, compute)) {
        return;
    }
    compute->run(compute);
    compute_done(loop, compute);
}

static bool do_actions(struct loop *loop)
{
    struct action action;
    unsigned done = 0;

    while (done < ACTIONS_PER_TURN && core_next_action(loop->core, &action)) {
        if (action.type == ACTION_COMPUTE) {
            run_compute(loop, action.compute);
        } else if (action.type == ACTION_POLICY || action.type == ACTION_VERIFIED) {
            control_apply(loop->control, &action);
        } else {
            watch_log_action(loop->log, &action);
            local_apply(loop->local, &action);
        }
        done++;
    }
    return done > 0;
}

/* ------------------------------------------------------------------ a turn */

static bool pump(struct loop *loop)
{
    bool more;

    if (loop->transport == NULL) {
        return false;
    }
    loop->received = 0;
    more = transport_zmq.pump(loop->transport, PACKETS_PER_TURN);
    return more || loop->received > 0;
}

static bool take_results(struct loop *loop)
{
    struct compute *compute;
    bool any = false;

    if (!workers_finished(loop->workers)) {
        return false;
    }
    while ((compute = workers_take(loop->workers)) != NULL) {
        compute_done(loop, compute);
        any = true;
    }
    return any;
}

static bool check_deadline(struct loop *loop)
{
    struct event event = {.type = EVENT_TIMER};

    if (core_deadline(loop->core) > now_us()) {
        return false;
    }
    (void)raise_event(loop, &event, NULL);
    return true;
}

/* True if anything happened. Pumping comes last: after all that may have sent. */
static bool turn(struct loop *loop)
{
    bool busy = local_poll(loop->local);

    busy |= take_results(loop);
    busy |= do_actions(loop);
    busy |= check_deadline(loop);
    busy |= pump(loop);
    return busy;
}

static void poll_now_and_then(struct loop *loop, uint64_t now)
{
    if (now - loop->polled_us >= POLL_EVERY_US) {
        loop->polled_us = now;
        (void)uv_run(&loop->uv, UV_RUN_NOWAIT);
    }
}

static void pause_briefly(void)
{
    for (int i = 0; i < 16; i++) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

/* Passes a moment; false once it is time to sleep. */
static bool pass_time(struct loop *loop)
{
    uint64_t now = now_us();

    switch (spin_choose(&loop->spin, now)) {
    case SPIN_PAUSE: pause_briefly(); return true;
    case SPIN_YIELD:
        (void)sched_yield();
        spin_yielded(&loop->spin, now, now_us());
        poll_now_and_then(loop, now);
        return true;
    case SPIN_SLEEP: break;
    }
    return false;
}

static void set_timer(struct loop *loop)
{
    uint64_t deadline = core_deadline(loop->core);
    uint64_t now = now_us();

    if (deadline == UINT64_MAX) {
        (void)uv_timer_stop(&loop->deadline);
        return;
    }
    uv_update_time(&loop->uv);
    (void)uv_timer_start(&loop->deadline, loop->deadline.timer_cb,
        deadline > now ? (deadline - now + 999) / 1000 : 0, 0);
}

static void sleep_until_woken(struct loop *loop)
{
    if (local_sleep(loop->local)) {
        set_timer(loop);
        (void)uv_run(&loop->uv, UV_RUN_ONCE);
        local_awake(loop->local);
    }
    loop->polled_us = now_us();
    loop->spin.active_us = loop->polled_us;
}

void loop_run(struct loop *loop)
{
    loop->spin.active_us = now_us();
    while (!loop->stopping) {
        if (turn(loop)) {
            loop->spin.active_us = now_us();
            poll_now_and_then(loop, loop->spin.active_us);
        } else if (!pass_time(loop)) {
            sleep_until_woken(loop);
        }
    }
}

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
    struct local_stats stats;

    local_stats(loop->local, &stats);
    return stats.sessions;
}

static enum adtopk_status control_event(void *context, struct event *event, struct error *err)
{
    return raise_event(context, event, err);
}

static const char *default_policy(void *context)
{
    const struct loop *loop = context;

    return loop->config->policy;
}

static void log_control(void *context, enum control_level level, const char *line)
{
    static const enum log_level levels[] = {[CONTROL_DEBUG] = LEVEL_DEBUG,
        [CONTROL_INFO] = LEVEL_INFO,
        [CONTROL_WARNING] = LEVEL_WARNING};
    struct loop *loop = context;

    log_write(loop->log, levels[level], LOG_CONTROL, "%s", line);
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
        .transmit = transmit,
        .transmit_context = loop,
        .policy = config->policy,
        .trace = loop->log->level >= LEVEL_DEBUG ? trace : NULL,
        .moved = moved,
        .trace_context = loop,
    };

    loop->core = core_create(&core, err);
    return loop->core != NULL ? ADTOPK_OK : err->code;
}

static enum adtopk_status add_peers(struct loop *loop, struct error *err)
{
    for (size_t i = 0; i < loop->config->peer_count; i++) {
        const struct config_peer *peer = &loop->config->peers[i];
        enum adtopk_status status =
            transport_zmq.add_peer(loop->transport, peer->node, peer->endpoint, err);

        if (status == ADTOPK_OK) {
            status = core_add_peer(loop->core, peer->node, now_us());
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
    loop->transport = transport_zmq.create(&config, receive, loop, err);
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

static enum adtopk_status open_sockets(struct loop *loop, uint64_t incarnation, struct error *err)
{
    static const struct local_ops local_ops = {.event = local_event};
    struct local_config local = {
        .path = loop->config->socket, .mode = 0666, .max_sessions = session_limit()};
    struct control_config control = {
        .path = loop->config->control_socket,
        .history = &loop->history,
        .node = (uint16_t)loop->config->node,
        .incarnation = incarnation,
        .group = loop->config->control_group,
        .sessions = count_sessions,
        .event = control_event,
        .policy = default_policy,
        .log = log_control,
        .context = loop,
    };
    enum adtopk_status status;

    loop->local = local_create(&loop->uv, &local, &local_ops, loop, err);
    if (loop->local == NULL) {
        return err->code;
    }
    status = open_core(loop, incarnation, err);
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
