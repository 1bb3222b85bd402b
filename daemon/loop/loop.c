/*
 * Happy path of an iteration. The loop passes its input to the core as events: requests of the
 * ranks, packets of peers, results of workers and of GPUs. It carries out the core's actions: small
 * computes here, larger ones on a worker, the rest by the sessions of trainers and operators.
 * Packets leave during events, through loop_transmit(). Iterations follow each other as long as
 * there is input. Then the loop spins for a while, because the next event of a training step is
 * often microseconds away. At last it sleeps in uv_run() until a descriptor, a worker, a signal or
 * the core's deadline wakes it.
 *
 * What could go wrong, and what is done about it:
 *   - A wake-up could get lost between the last check and the sleep. Rings: local_sleep() raises
 *     the flag, then checks again. Transport: its descriptor is edge-triggered, so the loop pumps
 *     after everything that may have sent, until nothing is left. It sleeps only after an iteration
 *     that found nothing. Workers: every result is followed by uv_async_send(), which uv_run()
 *     cannot miss.
 *   - Spinning could take the core away from a rank that shares it. A sched_yield() that takes
 *     long says so; then the loop does not yield and hardly spins for a while (spin.h).
 *   - One side could keep the loop busy for ever. Every source has a bounded share of an iteration.
 *     Every POLL_EVERY_US the loop calls uv_run(), so that signals and new sessions are served.
 *   - Memory could be too short to queue a compute: the loop's thread then runs it.
 *   - A transport that takes no packet returns false, and the core offers it again later.
 */
#include "daemon/loop/loop.h"

#include <sched.h>
#include <stdio.h>

#include "daemon/loop/loop_state.h"

#define SMALL_COMPUTE (64u << 10) /* bytes: below, the hop to a worker costs more than the work */
#define ACTIONS_PER_ITERATION 256u
#define COMPUTES_PER_ITERATION_US 2000u /* small ones, on the loop's thread */
#define RESULTS_PER_ITERATION_US 2000u  /* of workers */
#define PACKETS_PER_ITERATION 64u
#define ITERATION_US 2000u /* an iteration ends early after this time */

#define POLL_EVERY_US 50

uint64_t loop_now_us(void)
{
    return uv_hrtime() / 1000;
}

/* ------------------------------------------------------------------ into the core */

enum adtopk_status loop_raise(struct loop *loop, struct event *event, struct error *err)
{
    event->now_us = loop_now_us();
    return core_event(loop->core, event, err);
}

/* Whether a rank goes on in a job that is here, or was: without it that job would fail. */
static bool loop_has_place(const struct loop *loop, const struct event_open *open)
{
    struct job_info info;
    bool here = open->run != 0; /* it returns */

    for (uint32_t i = 0; !here && core_job_info(loop->core, i, &info); i++) {
        here = core_same_job(&info.key, &open->key) && strcmp(info.state, JOB_DONE) != 0 &&
               strcmp(info.state, JOB_FAILED) != 0;
    }
    return here;
}

enum adtopk_status loop_session_event(void *context, struct event *event, struct error *err)
{
    struct loop *loop = context;

    if (event->type == EVENT_RANK_OPEN && control_is_draining(loop->control) &&
        !loop_has_place(loop, &event->open)) {
        return error_set(err, ADTOPK_ERR_STATE,
            "node %llu is draining: an operator wants no new ranks here",
            (unsigned long long)loop->config->node);
    }
    if (event->type == EVENT_RANK_OPEN &&
        quota_open(loop->quota, &event->open.key, err) != ADTOPK_OK) {
        return err->code;
    }
    if (event->type == EVENT_RANK_REGISTER &&
        quota_register(loop->quota, event->session, err) != ADTOPK_OK) {
        return err->code;
    }
    if (event->type == EVENT_RESERVED) {
        quota_reserved(loop->quota, event->reserved.job, event->reserved.error == NULL);
    }
    if (event->type == EVENT_RANK_LEAVE || event->type == EVENT_RANK_LOST) {
        history_record(&loop->history, loop->core, event->session);
    }
    if (event->type == EVENT_RANK_LOST) {
        watch_log_lost(loop->log, &loop->doors, event->session, event->reason);
    }
    return loop_raise(loop, event, err);
}

void loop_receive(void *context, uint16_t peer, enum link_lane lane, const uint8_t *packet,
    size_t size, struct buffer *body)
{
    struct loop *loop = context;
    struct event event = {.type = EVENT_PACKET,
        .packet = {.peer = peer, .lane = lane, .bytes = packet, .size = size, .body = body}};

    loop->received++;
    if (loop->nodes.seeds != NULL && seeds_receive(loop->nodes.seeds, peer, packet, size, body)) {
        return;
    }
    (void)loop_raise(loop, &event, NULL); /* packets never fail */
}

static void loop_compute_done(struct loop *loop, struct compute *compute, uint64_t now)
{
    struct event event = {.type = EVENT_COMPUTE_DONE, .now_us = now, .compute = compute};
    struct error err = {.code = ADTOPK_OK};

    if (core_event(loop->core, &event, &err) != ADTOPK_OK) {
        log_write(loop->log, LEVEL_ERROR, LOG_SESSION, "a finished compute: %s", err.text);
    }
}

/* ------------------------------------------------------------------ out of the core */

bool loop_transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner)
{
    struct loop *loop = context;

    return loop->transport != NULL && transport_zmq.send(loop->transport, peer, lane, header,
                                          header_size, body, body_size, owner);
}

void loop_reopen(void *context, uint16_t peer, enum link_lane lane)
{
    struct loop *loop = context;

    if (loop->transport != NULL) {
        transport_zmq.reopen(loop->transport, peer, lane);
    }
}

void loop_trace(void *context, const char *line)
{
    struct loop *loop = context;

    log_write(loop->log, LEVEL_DEBUG, LOG_TRACE, "%s", line);
}

void loop_note(void *context, const char *line)
{
    struct loop *loop = context;

    log_write(loop->log, LEVEL_INFO, LOG_PLAN, "%s", line);
}

void loop_warn(void *context, const char *line)
{
    struct loop *loop = context;

    log_write(loop->log, LEVEL_WARNING, LOG_SESSION, "%s", line);
}

void loop_failed(void *context, uint64_t job)
{
    struct loop *loop = context;
    struct job_info failed;

    if (history_failed(&loop->history, loop->core, job, &failed)) {
        watch_log_failed(loop->log, &failed);
        traces_write(loop->traces, loop->core, &failed, failed.reason);
    }
}

void loop_stuck(void *context, uint64_t job, const char *reason)
{
    struct loop *loop = context;
    char sentence[ERROR_TEXT_SIZE + 32];
    struct job_info stuck;

    if (core_find_job(loop->core, job, &stuck)) {
        (void)snprintf(sentence, sizeof(sentence), "it is stuck: it waits for %s", reason);
        traces_write(loop->traces, loop->core, &stuck, sentence);
    }
}

/* Returns how many microseconds the compute took here. The clock is read twice only: a compute of a
 * small tensor lasts hardly longer than a reading. */
static uint64_t loop_run_compute(struct loop *loop, struct compute *compute)
{
    uint64_t since, now;

    if (compute->bytes > SMALL_COMPUTE && workers_submit(loop->workers, compute)) {
        return 0;
    }
    compute->thread = 0;
    since = loop_now_us();
    compute->run(compute);
    now = loop_now_us();
    compute->took_us = now - since + 1;
    loop_compute_done(loop, compute, now);
    return now - since;
}

static bool loop_do_actions(struct loop *loop)
{
    struct action action;
    unsigned done = 0;
    uint64_t computed_us = 0;

    while (done < ACTIONS_PER_ITERATION && computed_us < COMPUTES_PER_ITERATION_US) {
        if (!core_next_action(loop->core, &action)) {
            answer_emptied(&loop->doors);
            break;
        }
        if (action.type == ACTION_COMPUTE) {
            computed_us += loop_run_compute(loop, action.compute);
        } else if (action.ticket != 0) {
            control_apply(loop->control, &action);
        } else {
            watch_log_action(loop->log, &loop->doors, &action);
            answer_apply(&loop->doors, &action);
        }
        done++;
    }
    return done > 0;
}

/* ------------------------------------------------------------------ an iteration */

static bool loop_pump(struct loop *loop)
{
    bool more;

    if (loop->transport == NULL) {
        return false;
    }
    loop->received = 0;
    more = transport_zmq.pump(loop->transport, PACKETS_PER_ITERATION);
    return more || loop->received > 0;
}

static bool loop_take_results(struct loop *loop)
{
    struct compute *compute;
    uint64_t since, now;
    bool any = false;

    if (!workers_finished(loop->workers)) {
        return false;
    }
    since = now = loop_now_us();
    while (
        now - since < RESULTS_PER_ITERATION_US && (compute = workers_take(loop->workers)) != NULL) {
        loop_compute_done(loop, compute, now);
        now = loop_now_us();
        any = true;
    }
    return any;
}

static bool loop_check_deadline(struct loop *loop)
{
    struct event event = {.type = EVENT_TIMER};

    if (core_deadline(loop->core) > loop_now_us()) {
        return false;
    }
    (void)loop_raise(loop, &event, NULL);
    return true;
}

static bool loop_poll_local(struct loop *loop)
{
    return local_poll(loop->local);
}

static bool loop_poll_remote(struct loop *loop)
{
    return loop->remote != NULL && remote_poll(loop->remote);
}

static bool loop_settle_seeds(struct loop *loop)
{
    return loop->nodes.seeds != NULL && seeds_settle(loop->nodes.seeds);
}

/* True if anything happened. Pumping comes last: after all that may have sent. An iteration in
 * which something took long ends there, and the next one goes on behind it. */
static bool loop_iterate(struct loop *loop)
{
    static bool (*const source[])(struct loop *) = {loop_poll_local, loop_poll_remote,
        loop_take_results, loop_poll_device, loop_do_actions, loop_settle_seeds,
        loop_check_deadline, loop_pump};
    const unsigned sources = sizeof(source) / sizeof(source[0]);
    const uint64_t began = loop_now_us();
    bool busy = false;

    for (unsigned i = 0; i < sources; i++) {
        bool did = source[(loop->source + i) % sources](loop);
        busy |= did;
        if (did && loop_now_us() - began > ITERATION_US) {
            loop->source = (loop->source + i + 1) % sources;
            return true;
        }
    }
    loop->source = 0;
    return busy;
}

static void loop_poll_now_and_then(struct loop *loop, uint64_t now)
{
    if (now - loop->polled_us >= POLL_EVERY_US) {
        loop->polled_us = now;
        (void)uv_run(&loop->uv, UV_RUN_NOWAIT);
    }
}

static void loop_pause_briefly(void)
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
static bool loop_pass_time(struct loop *loop, uint64_t now)
{
    switch (spin_choose(&loop->spin, now)) {
    case SPIN_PAUSE: loop_pause_briefly(); return true;
    case SPIN_YIELD:
        (void)sched_yield();
        spin_yielded(&loop->spin, now, loop_now_us());
        loop_poll_now_and_then(loop, now);
        return true;
    case SPIN_SLEEP: break;
    }
    return false;
}

void loop_wake(void *context)
{
    struct loop *loop = context;

    (void)uv_async_send(&loop->handles.wake);
}

/* Only ends the sleep of uv_run(), as the handles of loop_open.c do. */
static void loop_on_deadline(uv_timer_t *handle)
{
    (void)handle;
}

static void loop_set_timer(struct loop *loop)
{
    uint64_t deadline = core_deadline(loop->core);
    uint64_t now = loop_now_us();

    if (loop->stop.stopping && loop->stop.end_us < deadline) {
        deadline = loop->stop.end_us;
    }
    if (deadline == UINT64_MAX) {
        (void)uv_timer_stop(&loop->handles.deadline);
        return;
    }
    uv_update_time(&loop->uv);
    (void)uv_timer_start(&loop->handles.deadline, loop_on_deadline,
        deadline > now ? (deadline - now + 999) / 1000 : 0, 0);
}

static void loop_sleep_until_woken(struct loop *loop)
{
    if (local_sleep(loop->local)) {
        loop_set_timer(loop);
        (void)uv_run(&loop->uv, UV_RUN_ONCE);
        local_awake(loop->local);
    }
    loop->polled_us = loop_now_us();
    spin_woken(&loop->spin, loop->polled_us);
}

void loop_run(struct loop *loop)
{
    loop->spin.active_us = loop_now_us();
    iterations_begin(&loop->iterations, loop->spin.active_us);
    for (;;) {
        bool busy = loop_iterate(loop);
        const uint64_t now = loop_now_us();

        iterations_end(&loop->iterations, now);
        if (loop->stop.stopping && loop_may_end(loop, busy)) {
            return;
        }
        if (busy) {
            spin_active(&loop->spin, now);
            loop_poll_now_and_then(loop, now);
        } else if (!loop_pass_time(loop, now)) {
            loop_sleep_until_woken(loop);
        }
    }
}
