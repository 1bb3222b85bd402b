/*
 * The daemon as a service: signs of life, a status line, and an orderly end.
 *
 * The end: on SIGTERM jobs stay as they are if the next daemon can go on with them. Their stores
 * are files. To their ranks it is as if the daemon had been killed. Those with residuals on GPUs
 * save these first. The core lets all other jobs end at their next step boundary. The loop runs
 * until they have, and until the peers have acknowledged the messages about it. Then it closes.
 * What could go wrong: a rank that is silent in mid-step, or a dead peer, would keep the daemon for
 * ever. So it waits for stop_timeout_ms at most.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/admin/jobname.h"
#include "daemon/core/inspect.h"
#include "daemon/loop/loop_state.h"
#include "daemon/loop/notify.h"

#define TICK_MS 500 /* so that a silent peer is noticed within a second */
#define TICK_MIN_MS 10
#define STUCK_INTERVALS 10 /* a compute that runs for so many watchdog intervals is stuck */
#define CLOSING_US 5000000 /* to close everything, after stop_timeout_ms */
#define STILL_US 1000000   /* a peer that acknowledges nothing for so long may have ended, too */

uint64_t loop_tick_ms(const struct loop *loop)
{
    const uint64_t half_ms = loop->watchdog_us / 2000;

    if (loop->watchdog_us == 0 || half_ms > TICK_MS) {
        return TICK_MS;
    }
    return half_ms > TICK_MIN_MS ? half_ms : TICK_MIN_MS;
}

/* The loop calls this, so the loop is alive. A compute may be long, but not for ever. */
static void loop_service_feed_watchdog(struct loop *loop)
{
    const uint64_t longest_us = workers_longest_us(loop->workers);

    if (loop->watchdog_us == 0) {
        return;
    }
    if (longest_us / STUCK_INTERVALS < loop->watchdog_us) {
        loop->stuck = false;
        notify_try("WATCHDOG=1");
    } else if (!loop->stuck) {
        loop->stuck = true;
        log_write(loop->log, LEVEL_ERROR, LOG_LIFE,
            "a compute has been running for %" PRIu64 " s: the watchdog gets no more signs of life",
            longest_us / 1000000);
    }
}

static void loop_service_tell_status(struct loop *loop)
{
    const uint32_t jobs = core_job_count(loop->core), peers = core_peer_count(loop->core);
    const uint32_t sessions = door_count(&loop->doors).sessions;
    struct peer_info peer;
    char status[LOOP_STATUS_SIZE];
    uint32_t up = 0;

    for (uint32_t i = 0; core_peer_info(loop->core, i, &peer); i++) {
        up += peer.up ? 1 : 0;
    }
    (void)snprintf(status, sizeof(status), "STATUS=%s%u job%s, %u session%s, %u of %u peer%s up",
        loop->stop.stopping ? "stopping: " : "", jobs, error_s(jobs), sessions, error_s(sessions),
        up, peers, error_s(peers));
    if (strcmp(status, loop->status) != 0) {
        memcpy(loop->status, status, sizeof(status));
        notify_try(status);
    }
}

void loop_peer_gone(void *context, uint16_t node)
{
    struct loop *loop = context;
    struct event event = {.type = EVENT_PEER_GONE, .peer_gone = node};

    (void)loop_raise(loop, &event, NULL); /* never fails */
}

/* Peers that answered once and do not any more: is a daemon there at all? */
static void loop_service_knock_at_silent(struct loop *loop)
{
    struct peer_info peer;

    for (uint32_t i = 0; core_peer_info(loop->core, i, &peer); i++) {
        const bool silent = !peer.up && peer.incarnation != 0;
        const struct config_peer *known = silent ? seeds_peer(loop->nodes.seeds, peer.node) : NULL;

        if (known != NULL) {
            knock_at(loop->nodes.knock, peer.node, known->endpoint);
        }
    }
}

static void loop_service_log_store(
    struct loop *loop, enum log_level level, const struct folder_info *store, const char *what)
{
    char name[JOBNAME_SIZE] = "";

    if (store->key.name[0] != '\0') {
        jobname_print(&store->key, name);
    }
    log_write_by(loop->log, level, LOG_LIFE, store->key.owner,
        "store of job %s, %" PRIu64 " bytes, last used %s%" PRIu64 " s ago: %s",
        name[0] != '\0' ? name : "?", store->bytes, store->guessed ? "at most " : "", store->idle_s,
        what);
}

void loop_log_stores(struct loop *loop)
{
    struct folder_info store;
    char what[FOLDER_FAULT_SIZE + 32];

    for (unsigned i = 0; local_store(loop->local, i, &store); i++) {
        (void)snprintf(what, sizeof(what), "%s%s",
            store.fault[0] != '\0' ? "not used: " : "its ranks can return", store.fault);
        loop_service_log_store(
            loop, store.fault[0] != '\0' ? LEVEL_WARNING : LEVEL_INFO, &store, what);
    }
}

void loop_log_replaced(void *context, const struct folder_info *old)
{
    loop_service_log_store(context, LEVEL_WARNING, old, "removed (ranks begin this run anew)");
}

bool loop_describe_store(void *context, unsigned index, struct report_store *found)
{
    const struct loop *loop = context;
    struct folder_info store;

    if (!local_store(loop->local, index, &store)) {
        return false;
    }
    *found = (struct report_store){.key = store.key,
        .bytes = store.bytes,
        .idle_s = store.idle_s,
        .used = store.used,
        .fault = store.fault};
    return true;
}

static void loop_service_expire_stores(struct loop *loop)
{
    struct folder_info gone;

    while (local_expire(loop->local, loop->config->compute.residual_ttl_s, &gone)) {
        loop_service_log_store(loop, LEVEL_WARNING, &gone, "removed (residual_ttl_s)");
    }
    loop_drop_left(loop);
}

void loop_tick(struct loop *loop)
{
    loop_service_expire_stores(loop);
    if (loop->nodes.seeds != NULL) {
        seeds_tick(loop->nodes.seeds, loop_now_us());
        loop_service_knock_at_silent(loop);
    }
    if (loop->nodes.watch != NULL) {
        watch_look(loop->nodes.watch, loop->core, uv_now(&loop->uv));
    }
    log_tick(loop->log);
    loop_service_tell_status(loop);
    loop_service_feed_watchdog(loop);
}

/* Bytes that peers that are up have not acknowledged yet. */
static uint64_t loop_service_queued_bytes(const struct loop *loop)
{
    struct peer_info peer;
    uint64_t bytes = 0;

    for (uint32_t i = 0; core_peer_info(loop->core, i, &peer); i++) {
        bytes += peer.up ? peer.link.queued_bytes : 0;
    }
    return bytes;
}

static void loop_service_say_what_stops(const struct loop *loop, uint64_t timeout_ms)
{
    const uint32_t staying = core_staying_count(loop->core),
                   ending = core_job_count(loop->core) - staying;

    if (staying > 0) {
        log_write(loop->log, LEVEL_INFO, LOG_LIFE, "the ranks of %u job%s wait for the next daemon",
            staying, error_s(staying));
    }
    if (ending > 0) {
        log_write(loop->log, LEVEL_INFO, LOG_LIFE,
            "the steps of %u job%s have %" PRIu64 " ms to end", ending, error_s(ending),
            timeout_ms);
    }
}

void loop_stop(struct loop *loop, const char *reason)
{
    const uint64_t timeout_ms = loop->config->stop_timeout_ms;
    struct event event = {.type = EVENT_STOP, .stay = local_outlives(loop->local)};
    struct error err = {.code = ADTOPK_OK};
    char extend[64];

    loop->stop.stopping = true;
    loop->stop.end_us = loop_now_us() + timeout_ms * 1000;
    (void)notify_send("STOPPING=1", NULL);
    (void)snprintf(
        extend, sizeof(extend), "EXTEND_TIMEOUT_USEC=%" PRIu64, timeout_ms * 1000 + CLOSING_US);
    notify_try(extend);
    log_write(loop->log, LEVEL_INFO, LOG_LIFE, "stopping: %s", reason);
    if (loop_raise(loop, &event, &err) != ADTOPK_OK) {
        log_write(loop->log, LEVEL_ERROR, LOG_LIFE, "jobs cannot end their steps: %s", err.text);
        loop->stop.end_us = loop_now_us();
    }
    loop_service_say_what_stops(loop, timeout_ms);
}

/* Whether peers are still about to acknowledge what they were told. */
static bool loop_service_drains(struct loop *loop)
{
    const uint64_t queued = loop_service_queued_bytes(loop), now_us = loop_now_us();
    struct stop *stop = &loop->stop;

    if (queued != stop->queued) {
        stop->queued = queued;
        stop->still_us = now_us + STILL_US;
    }
    return queued > 0 && now_us < stop->still_us;
}

bool loop_may_end(struct loop *loop, bool busy)
{
    const uint32_t staying = core_staying_count(loop->core),
                   ending = core_job_count(loop->core) - staying;
    const bool drains = loop_service_drains(loop);

    if (ending == 0 && (staying > 0 || (!busy && !drains))) {
        if (staying == 0 && loop->stop.queued > 0) {
            log_write(loop->log, LEVEL_WARNING, LOG_LIFE,
                "peers have not acknowledged %" PRIu64 " bytes of messages", loop->stop.queued);
        }
        return true;
    }
    if (loop_now_us() < loop->stop.end_us) {
        return false;
    }
    if (ending > 0) {
        log_write(loop->log, LEVEL_WARNING, LOG_LIFE, "ended in mid-step: %u job%s", ending,
            error_s(ending));
    }
    return true;
}
