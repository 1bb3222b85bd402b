/* The public functions: creating, an iteration of the loop, closing. */
#include "daemon/remote/remote.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/remote/trainer.h"

#define REMOTE_MAX_SESSIONS 256
#define REMOTE_TAKE_NS UINT64_C(1000000) /* of an iteration, for messages of trainers */
#define REMOTE_SEND_NS UINT64_C(1000000) /* the same for messages to them */
#define REMOTE_PROBE_MS 250
#define REMOTE_PROBES 4

/* ---- trainers that are gone ---- */

/* The monitor reports that a connection went away, but not which. Sending to each one finds it. The
 * socket may know of it a little later than the monitor, so there are several probes. */
static void remote_probe(uv_timer_t *timer)
{
    struct remote *remote = timer->data;

    for (struct session *one = remote->door.sessions; one != NULL; one = one->next) {
        Adtopk__RemoteReply nothing = ADTOPK__REMOTE_REPLY__INIT;

        if (one->state < SESSION_ENDED) {
            (void)trainer_send(trainer_of(one), &nothing, NULL);
        }
    }
    if (--remote->probes == 0) {
        (void)uv_timer_stop(timer);
    }
}

static void remote_look(struct remote *remote)
{
    if (gate_look(&remote->gate)) {
        remote->probes = REMOTE_PROBES;
        if (!uv_is_active((uv_handle_t *)&remote->timer)) {
            (void)uv_timer_start(&remote->timer, remote_probe, 0, REMOTE_PROBE_MS);
        }
    }
}

/* ---- an iteration ---- */

static bool remote_hear(struct remote *remote)
{
    const uint64_t end_ns = uv_hrtime() + REMOTE_TAKE_NS;
    struct gate_message message;
    bool taken = false;

    while ((!taken || uv_hrtime() < end_ns) && gate_receive(&remote->gate, &message)) {
        intake_take(remote, &message);
        gate_drop(&message);
        taken = true;
    }
    return taken;
}

/* Sends to one trainer after the other until the time is over. The next iteration goes on behind
 * the last one that was served. */
static bool remote_serve(struct remote *remote)
{
    const uint64_t end_ns = uv_hrtime() + REMOTE_SEND_NS;
    const unsigned begin = remote->served;
    bool sent = false;

    for (unsigned round = 0; round < 2; round++) {
        unsigned place = 0;

        for (struct session *one = remote->door.sessions; one != NULL; one = one->next, place++) {
            if ((place >= begin) != (round == 0)) {
                continue;
            }
            sent |= delivery_pump(trainer_of(one), end_ns);
            if (sent && uv_hrtime() >= end_ns) {
                remote->served = place + 1;
                return true;
            }
        }
    }
    remote->served = 0;
    return sent;
}

bool remote_poll(struct remote *remote)
{
    bool busy;

    remote_look(remote);
    busy = remote_hear(remote);
    (void)session_expire(&remote->door);
    for (struct session *one = remote->door.sessions; one != NULL; one = one->next) {
        busy |= session_execute(one);
    }
    busy |= remote_serve(remote);
    trainer_sweep(remote);
    return busy || gate_readable(&remote->gate);
}

/* ---- creating, closing ---- */

static void remote_finish(struct remote *remote)
{
    if (remote->handles == 0 && remote->keeper.tasks == 0) {
        door_free(&remote->door);
        gate_close(&remote->gate);
        free(remote);
    }
}

static void remote_on_closed(uv_handle_t *handle)
{
    struct remote *remote = handle->data;

    remote->handles--;
    remote_finish(remote);
}

static void remote_on_emptied(struct keeper *keeper)
{
    remote_finish((struct remote *)(void *)((char *)keeper - offsetof(struct remote, keeper)));
}

/* Ends the loop's sleep. The iteration that follows does the work. */
static void remote_on_ready(uv_poll_t *poll, int status, int events)
{
    (void)poll;
    (void)status;
    (void)events;
}

static enum adtopk_status remote_watch(struct remote *remote, uv_loop_t *loop, struct error *err)
{
    (void)uv_timer_init(loop, &remote->timer);
    remote->timer.data = remote;
    remote->handles = 1;
    for (unsigned i = 0; i < GATE_DESCRIPTORS && remote->gate.descriptor[i] >= 0; i++) {
        if (uv_poll_init(loop, &remote->poll[i], remote->gate.descriptor[i]) != 0) {
            return error_set(err, ADTOPK_ERR_SYSTEM, "cannot watch %.200s", remote->config.listen);
        }
        remote->poll[i].data = remote;
        remote->handles++;
        (void)uv_poll_start(&remote->poll[i], UV_READABLE, remote_on_ready);
    }
    return ADTOPK_OK;
}

static void remote_close_handles(struct remote *remote)
{
    const unsigned polls = remote->handles - 1;

    uv_close((uv_handle_t *)&remote->timer, remote_on_closed);
    for (unsigned i = 0; i < polls; i++) {
        uv_close((uv_handle_t *)&remote->poll[i], remote_on_closed);
    }
}

struct remote *remote_create(uv_loop_t *loop, const struct remote_config *config,
    struct doors *doors, void *context, struct error *err)
{
    struct remote *remote = calloc(1, sizeof *remote);

    if (remote == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for remote sessions");
        return NULL;
    }
    remote->config = *config;
    remote->context = context;
    remote->keeper = (struct keeper){.loop = loop, .emptied = remote_on_emptied};
    remote->door = (struct door){.connection = &trainer_connection,
        .loop = loop,
        .max_sessions = config->max_sessions > 0 ? config->max_sessions : REMOTE_MAX_SESSIONS};
    if (door_open(&remote->door, doors, err) != ADTOPK_OK ||
        gate_open(&remote->gate, config, context, err) != ADTOPK_OK) {
        door_free(&remote->door);
        free(remote);
        return NULL;
    }
    if (remote_watch(remote, loop, err) != ADTOPK_OK) {
        remote_close_handles(remote);
        return NULL;
    }
    return remote;
}

enum adtopk_status remote_reload(struct remote *remote, const struct keyfile_pair *pair,
    const struct remote_owner *owners, size_t count, struct error *err)
{
    const enum adtopk_status status = gate_reload(&remote->gate, pair, owners, count, err);

    for (struct session *one = remote->door.sessions; one != NULL; one = one->next) {
        if (one->state < SESSION_ENDED &&
            !gate_knows(&remote->gate, trainer_of(one)->route.key, one->uid)) {
            const struct error why = {
                .code = ADTOPK_ERR_DENIED, .text = "its key was taken off the list"};

            session_judge(one, VERDICT_END, &why);
        }
    }
    return status;
}

const char *remote_endpoint(const struct remote *remote)
{
    return remote->gate.endpoint;
}

void remote_stats(const struct remote *remote, struct remote_stats *stats)
{
    *stats = remote->stats;
    stats->door = remote->door.stats;
    stats->keys = remote->gate.refusals.budget[REFUSAL_KEY].count;
    stats->handshakes = remote->gate.refusals.budget[REFUSAL_HANDSHAKE].count;
    stats->gradient_bytes = 0;
    for (struct session *one = remote->door.sessions; one != NULL; one = one->next) {
        for (unsigned b = 0; b < CORE_MAX_BATCHES; b++) {
            stats->gradient_bytes += trainer_of(one)->gradients[b].size;
        }
    }
}

void remote_close(struct remote *remote, bool stay)
{
    session_stop(&remote->door, stay);
    trainer_sweep(remote);
    if (remote->door.stats.opened > 0) {
        gate_settle(&remote->gate);
    }
    remote_close_handles(remote);
}
