/* The public functions: creating, an iteration of the loop, closing. */
#include "daemon/local/local.h"

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/local/local_session.h"

#define LOCAL_MAX_SESSIONS 1024
/* Of one session, because the others need their share of the iteration. */
#define LOCAL_ENTRIES_PER_ITERATION 64
#define LOCAL_ENTRIES_A_LOOK 64 /* of all sessions, before the clock is read again */

static void local_free(struct local *local)
{
    void (*done)(void *) = local->done;
    void *context = local->context;

    memory_drop_all(local);
    if (local->look >= 0) {
        (void)close(local->look);
    }
    door_free(&local->door);
    free(local->serving.active);
    free(local);
    if (done != NULL) {
        done(context);
    }
}

void local_finish(struct local *local)
{
    if (local->closing && local->handles == 0 && local->door.sessions == NULL &&
        local->keeper.tasks == 0) {
        local_free(local);
    }
}

static void local_on_emptied(struct keeper *keeper)
{
    local_finish((struct local *)(void *)((char *)keeper - offsetof(struct local, keeper)));
}

static void local_on_closed(void *context)
{
    struct local *local = context;

    local->handles--;
    local_finish(local);
}

static void local_on_timer_closed(uv_handle_t *handle)
{
    local_on_closed(handle->data);
}

static const struct connection local_connection = {
    .version = LOCAL_VERSION,
    .silence_ms = 5000,
    .linger_ms = 1000,
    .returns = true,
    .here = true,
    .send = reply_send,
    .moved = local_session_moved,
    .add = reserve_count,
    .place = gpu_place,
    .reserve = reserve_begin,
    .arena = memory_arena,
    .give_back = memory_give_back,
    .seal = memory_seal,
    .drain = submit_drain,
    .ready = reply_ready,
    .show = reply_show,
    .progress = reply_progress,
    .free = local_session_free,
};

static enum adtopk_status local_open_folder(
    struct local *local, const struct local_config *config, struct error *err)
{
    const bool named = config->store_folder != NULL && config->store_folder[0] != '\0';
    const bool kept = !named && config->max_kept > 0;
    struct files *files;

    if (!kept && config->tell != NULL) {
        files_forget(config->tell);
    }
    if (!kept && !named) {
        return ADTOPK_OK;
    }
    files = named ? files_in_folder(config->store_folder, err)
                  : files_at_manager(config->tell, config->max_kept, err);
    local->folder = files != NULL ? folder_open(files, &local->keeper, config->workers, err) : NULL;
    return local->folder != NULL ? ADTOPK_OK : err->code;
}

/* Does everything that can fail before anything in the loop has begun. */
static enum adtopk_status local_prepare(
    struct local *local, const struct local_config *config, struct doors *doors, struct error *err)
{
    enum adtopk_status status;

    local->config = *config;
    local->door = (struct door){.connection = &local_connection,
        .loop = local->loop,
        .max_sessions = config->max_sessions > 0 ? config->max_sessions : LOCAL_MAX_SESSIONS};
    local->serving.active = calloc(local->door.max_sessions, sizeof(struct local_session *));
    if (local_open_folder(local, config, err) != ADTOPK_OK) {
        return err->code;
    }
    local->stores = stores_create(&local->keeper, local->folder);
    if (local->serving.active == NULL || local->stores == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for local sessions");
    }
    status = local->config.gpu_find != NULL ? gpu_open_look(local, err) : ADTOPK_OK;
    if (status == ADTOPK_OK) {
        status = door_open(&local->door, doors, err);
    }
    if (status == ADTOPK_OK) {
        status = listen_open(local, err);
    }
    local->config.path = local->config.store_folder = NULL; /* nobody needs them any more */
    return status;
}

struct local *local_create(uv_loop_t *loop, const struct local_config *config, struct doors *doors,
    void *context, struct error *err)
{
    struct local *local = calloc(1, sizeof *local);

    if (local == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for local sessions");
        return NULL;
    }
    local->loop = loop;
    local->look = -1;
    local->keeper.loop = loop;
    local->keeper.emptied = local_on_emptied;
    local->context = context;
    (void)signal(SIGXFSZ, SIG_IGN);
    if (local_prepare(local, config, doors, err) != ADTOPK_OK) {
        local_free(local);
        return NULL;
    }
    (void)uv_timer_init(loop, &local->timer);
    local->timer.data = local;
    local->handles = 2;
    if (local->look >= 0) {
        gpu_watch_look(local);
        local->handles++;
    }
    return local;
}

/* Begins where the last iteration ran out of time, so that every session is served at some time. */
static bool local_poll_active(struct local *local)
{
    struct local_serving *serving = &local->serving;
    const uint32_t count = serving->actives;
    uint64_t look = local->stats.entries + LOCAL_ENTRIES_A_LOOK;
    uint32_t at = serving->first_active < count ? serving->first_active : 0;
    bool busy = false;

    serving->first_active = 0;
    for (uint32_t i = 0; i < count && serving->actives > 0; i++) {
        at = at < serving->actives ? at : 0;
        if (!local_session_is_active(serving->active[at])) {
            local_session_deactivate(serving->active[at]); /* another session has its place now */
            continue;
        }
        busy |= session_execute(&serving->active[at]->base);
        busy |= submit_take(serving->active[at], LOCAL_ENTRIES_PER_ITERATION);
        at++;
        if (local->stats.entries >= look && local_session_is_late(local)) {
            serving->first_active = at;
            return true;
        }
        look = local->stats.entries >= look ? look + LOCAL_ENTRIES_A_LOOK : look;
    }
    return busy;
}

bool local_poll(struct local *local)
{
    bool busy;

    local->serving.iteration++;
    busy = local_session_resume(local);
    return local_poll_active(local) || busy;
}

bool local_sleep(struct local *local)
{
    struct local_serving *serving = &local->serving;
    bool pending = serving->postponed != NULL;

    for (uint32_t i = 0; i < serving->actives; i++) {
        struct local_session *session = serving->active[i];

        pending |= session->base.verdict != VERDICT_NONE;
        if (session->base.state == SESSION_READY) {
            ring_reader_sleep(&session->reader);
            pending |=
                session->gpu.holds ? gpu_must_look(session) : ring_reader_pending(&session->reader);
        }
    }
    if (pending) {
        local_awake(local);
    }
    if (local->look_us > 0) {
        gpu_look_later(local);
    }
    return !pending;
}

void local_awake(struct local *local)
{
    for (uint32_t i = 0; i < local->serving.actives; i++) {
        if (local->serving.active[i]->base.state == SESSION_READY) {
            ring_reader_awake(&local->serving.active[i]->reader);
        }
    }
}

void local_stats(const struct local *local, struct local_stats *stats)
{
    *stats = local->stats;
    stats->door = local->door.stats;
    stats->gradient_bytes = 0;
    for (struct session *one = local->door.sessions; one != NULL; one = one->next) {
        stats->gradient_bytes += local_session(one)->reserve.prepared.size;
        for (unsigned b = 0; b < CORE_MAX_BATCHES; b++) {
            stats->gradient_bytes += local_session(one)->gradients[b].size;
        }
    }
    stats->result_bytes = 0;
    for (struct results *results = local->results; results != NULL; results = results->next) {
        stats->result_bytes += results->memory.size;
    }
    stats->store_bytes = stores_bytes(local->stores);
}

/* Empties the queue of postponed sessions, because there is no further iteration. */
static void local_clear_postponed(struct local *local)
{
    while (local->serving.postponed != NULL) {
        struct local_session *session = local->serving.postponed;

        local->serving.postponed = session->behind;
        session_drop(&session->base);
    }
}

void local_close(struct local *local, void (*done)(void *context))
{
    local->done = done;
    local->closing = true;
    uv_close((uv_handle_t *)&local->timer, local_on_timer_closed);
    if (local->look >= 0) {
        uv_close((uv_handle_t *)&local->look_poll, local_on_timer_closed);
    }
    listener_close(&local->listener, local_on_closed);
    session_stop(&local->door, local->folder != NULL);
    local_clear_postponed(local);
    memory_stop_reserving(local);
}
