/* The public functions: creating, a turn of the loop, closing. */
#include "daemon/local/local.h"

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/local/session.h"

#define LOCAL_MAX_SESSIONS 1024
#define LOCAL_ENTRIES_A_TURN 64 /* of one session: the others want a turn too */
#define LOCAL_ENTRIES_A_LOOK 64 /* of all sessions, between two looks at the clock */

static void local_free(struct local *local)
{
    void (*done)(void *) = local->done;
    void *context = local->context;

    memory_drop_all(local);
    free(local->slot);
    free(local->active);
    free(local->path);
    free(local);
    if (done != NULL) {
        done(context);
    }
}

void local_finish(struct local *local)
{
    if (local->closing && local->handles == 0 && local->sessions == NULL &&
        local->keeper.tasks == 0) {
        local_free(local);
    }
}

static void local_on_emptied(struct keeper *keeper)
{
    local_finish((struct local *)(void *)((char *)keeper - offsetof(struct local, keeper)));
}

static void local_on_closed(uv_handle_t *handle)
{
    struct local *local = handle->data;

    local->handles--;
    local_finish(local);
}

/* What can fail without having begun anything in the loop. */
static enum adtopk_status local_prepare(
    struct local *local, const struct local_config *config, struct error *err)
{
    local->config = *config;
    local->config.path = NULL;
    if (config->max_sessions == 0) {
        local->config.max_sessions = LOCAL_MAX_SESSIONS;
    }
    local->path = strdup(config->path);
    local->slot = calloc(local->config.max_sessions, sizeof(struct session *));
    local->active = calloc(local->config.max_sessions, sizeof(struct session *));
    local->stores = stores_create(&local->keeper);
    if (local->path == NULL || local->slot == NULL || local->active == NULL ||
        local->stores == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for local sessions");
    }
    return listen_open(local, err);
}

struct local *local_create(uv_loop_t *loop, const struct local_config *config,
    const struct local_ops *ops, void *context, struct error *err)
{
    struct local *local = calloc(1, sizeof *local);
    struct error why = {.code = ADTOPK_OK};

    if (local == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for local sessions");
        return NULL;
    }
    local->loop = loop;
    local->keeper.loop = loop;
    local->keeper.emptied = local_on_emptied;
    local->ops = ops;
    local->context = context;
    local->listener = local->spare = -1;
    (void)signal(SIGXFSZ, SIG_IGN);
    if (local_prepare(local, config, &why) == ADTOPK_OK &&
        uv_poll_init(loop, &local->listen_poll, local->listener) != 0) {
        (void)error_set(&why, ADTOPK_ERR_SYSTEM, "cannot watch %s", local->path);
    }
    if (why.code != ADTOPK_OK) {
        (void)error_set(err, why.code, "%s", why.text);
        listen_close(local);
        local_free(local);
        return NULL;
    }
    (void)uv_timer_init(loop, &local->timer);
    local->listen_poll.data = local->timer.data = local;
    local->handles = 2;
    listen_start(local);
    return local;
}

/* Begins where the last turn was late, so that each session is served at some time. */
static bool local_poll_active(struct local *local)
{
    const uint32_t count = local->actives;
    uint64_t look = local->stats.entries + LOCAL_ENTRIES_A_LOOK;
    uint32_t at = local->first_active < count ? local->first_active : 0;
    bool busy = false;

    local->first_active = 0;
    for (uint32_t i = 0; i < count && local->actives > 0; i++) {
        at = at < local->actives ? at : 0;
        if (!session_is_active(local->active[at])) {
            session_deactivate(local->active[at]); /* another one is in its place now */
            continue;
        }
        busy |= session_execute(local->active[at]);
        busy |= submit_take(local->active[at], LOCAL_ENTRIES_A_TURN);
        at++;
        if (local->stats.entries >= look && session_is_late(local)) {
            local->first_active = at;
            return true;
        }
        look = local->stats.entries >= look ? look + LOCAL_ENTRIES_A_LOOK : look;
    }
    return busy;
}

void local_limit(struct local *local, const struct local_limits *limits)
{
    local->limits = *limits;
}

bool local_poll(struct local *local)
{
    bool busy;

    local->turn++;
    busy = session_resume(local);
    return local_poll_active(local) || busy;
}

bool local_sleep(struct local *local)
{
    bool pending = local->postponed != NULL;

    for (uint32_t i = 0; i < local->actives; i++) {
        struct session *session = local->active[i];

        pending |= session->verdict != VERDICT_NONE;
        if (session->state == SESSION_READY) {
            ring_reader_sleep(&session->reader);
            pending |= ring_reader_pending(&session->reader);
        }
    }
    if (pending) {
        local_awake(local);
    }
    return !pending;
}

void local_awake(struct local *local)
{
    for (uint32_t i = 0; i < local->actives; i++) {
        if (local->active[i]->state == SESSION_READY) {
            ring_reader_awake(&local->active[i]->reader);
        }
    }
}

void local_stats(const struct local *local, struct local_stats *stats)
{
    *stats = local->stats;
    stats->gradient_bytes = 0;
    for (struct session *session = local->sessions; session != NULL; session = session->next) {
        stats->gradient_bytes += session->gradients.size + session->prepared.size;
    }
    stats->result_bytes = 0;
    for (struct results *results = local->results; results != NULL; results = results->next) {
        stats->result_bytes += results->memory.size;
    }
    stats->store_bytes = stores_bytes(local->stores);
}

void local_close(struct local *local, void (*done)(void *context))
{
    local->done = done;
    local->closing = true;
    uv_close((uv_handle_t *)&local->listen_poll, local_on_closed);
    uv_close((uv_handle_t *)&local->timer, local_on_closed);
    listen_close(local);
    for (struct session *session = local->sessions; session != NULL;) {
        struct session *next = session->next;

        session->known = session->postponed = false;
        session_end(session, ADTOPK_ERR_UNREACHABLE, "the daemon stops");
        session_close(session);
        segment_drop(&session->gradients);
        session_collect(session);
        session = next;
    }
}
