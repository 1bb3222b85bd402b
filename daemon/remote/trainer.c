/* A remote trainer: its row of the connection table, sending, freeing. */
#include "daemon/remote/trainer.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/session/report.h"
#include "proto/remote.h"

/* ---- beginning, finding, freeing ---- */

struct trainer *trainer_create(
    struct remote *remote, const void *route, size_t route_size, uint32_t uid, const char *peer)
{
    struct trainer *trainer = calloc(1, sizeof *trainer);

    if (trainer == NULL) {
        return NULL;
    }
    assert(route_size <= sizeof trainer->route.id); /* ZMTP has no longer ones */
    trainer->base.uid = uid;
    (void)snprintf(trainer->base.peer, sizeof trainer->base.peer, "%s", peer);
    trainer->remote = remote;
    memcpy(trainer->route.id, route, route_size);
    trainer->route.size = route_size;
    for (unsigned b = 0; b < CORE_MAX_BATCHES; b++) {
        trainer->gradients[b] = segment_none;
    }
    session_begin(&trainer->base, &remote->door, 1);
    return trainer;
}

struct trainer *trainer_of_route(const struct remote *remote, const void *route, size_t size)
{
    for (struct session *one = remote->door.sessions; one != NULL; one = one->next) {
        struct trainer *trainer = trainer_of(one);

        if (trainer->route.size == size && memcmp(trainer->route.id, route, size) == 0) {
            return trainer;
        }
    }
    return NULL;
}

void trainer_sweep(struct remote *remote)
{
    for (struct session *one = remote->door.sessions, *next; one != NULL; one = next) {
        next = one->next;
        if (one->state == SESSION_CLOSED && one->users > 0) {
            session_drop(one);
        }
    }
}

static void trainer_moved(struct session *session)
{
    (void)session; /* an iteration looks at every trainer */
}

static void trainer_free(struct session *session)
{
    struct trainer *trainer = trainer_of(session);

    assert(trainer->gradients[0].bytes == NULL);
    free(trainer->tensor);
    free(trainer->updates.queue);
    free(trainer);
}

/* ---- the arena ---- */

/* Memory that was promised to sessions and not yet taken from the system, less what is coming back
 * to it. */
static uint64_t trainer_promised(const struct remote *remote)
{
    const uint64_t releasing = keeper_releasing(&remote->keeper);
    uint64_t bytes = 0;

    for (struct session *one = remote->door.sessions; one != NULL; one = one->next) {
        for (unsigned b = 0; b < CORE_MAX_BATCHES; b++) {
            bytes += segment_untouched(&trainer_of(one)->gradients[b]);
        }
    }
    return bytes > releasing ? bytes - releasing : 0;
}

static const void *trainer_arena(
    struct session *session, unsigned batch, uint64_t *size, struct error *err)
{
    struct trainer *trainer = trainer_of(session);
    struct segment *gradients = &trainer->gradients[batch];

    if (segment_private(gradients, "gradient arena of a remote trainer", *size,
            trainer_promised(trainer->remote), err) != ADTOPK_OK) {
        return NULL;
    }
    *size = gradients->size;
    return gradients->bytes;
}

static void trainer_give_back(struct session *session)
{
    for (unsigned b = 0; b < CORE_MAX_BATCHES; b++) {
        struct segment *gradients = &trainer_of(session)->gradients[b];

        keeper_release(&trainer_of(session)->remote->keeper, gradients, segment_taken(gradients));
    }
}

/* ---- sending ---- */

#define TRAINER_SMALL 1024u /* bytes: an error, and most answers, need no memory of their own */

/* Packs and sends a message. The function takes over the part. */
static enum gate_sent trainer_pack(struct remote *remote, const void *route, size_t route_size,
    const Adtopk__RemoteReply *reply, zmq_msg_t *part)
{
    const size_t size = protobuf_c_message_get_packed_size(&reply->base);
    uint8_t small[TRAINER_SMALL], *large = size > sizeof small ? malloc(size) : NULL;
    uint8_t *bytes = size > sizeof small ? large : small;
    enum gate_sent sent = GATE_FULL;

    if (bytes != NULL) {
        (void)protobuf_c_message_pack(&reply->base, bytes);
        sent = gate_send(&remote->gate, route, route_size, bytes, size, part);
    } else if (part != NULL) {
        (void)zmq_msg_close(part);
    }
    free(large);
    remote->stats.sent += sent == GATE_SENT;
    return sent;
}

bool trainer_send(struct trainer *trainer, Adtopk__RemoteReply *reply, zmq_msg_t *part)
{
    const bool counts = reply->kind_case != ADTOPK__REMOTE_REPLY__KIND__NOT_SET;
    struct trainer_route *route = &trainer->route;
    enum gate_sent sent;

    reply->sequence = route->sent + (counts ? 1 : 0);
    reply->acknowledged = route->received;
    sent = trainer_pack(trainer->remote, route->id, route->size, reply, part);
    if (sent == GATE_SENT) {
        route->sent = reply->sequence;
        route->answered = route->received;
    } else if (sent == GATE_GONE) {
        session_lost(&trainer->base, "lost its connection");
    }
    return sent == GATE_SENT;
}

/* Sends an answer, which cannot wait. If there is no memory for it, the client hears that. */
static const char *trainer_answer(struct session *session, Adtopk__LocalReply *answer)
{
    Adtopk__RemoteReply reply = ADTOPK__REMOTE_REPLY__INIT;
    struct report report;

    reply.kind_case = ADTOPK__REMOTE_REPLY__KIND_REPLY;
    reply.reply = answer;
    if (trainer_send(trainer_of(session), &reply, NULL)) {
        return NULL;
    }
    if (session->state != SESSION_CLOSED) {
        report_error(&report, ADTOPK_ERR_MEMORY, "the daemon has no memory for a message", true);
        reply.reply = &report.reply;
        (void)trainer_send(trainer_of(session), &reply, NULL);
    }
    return "got no answer: memory is short, or it does not read what it is sent";
}

void trainer_turn_away(struct remote *remote, const void *route, size_t route_size,
    enum adtopk_status status, const char *text)
{
    Adtopk__RemoteReply reply = ADTOPK__REMOTE_REPLY__INIT;
    struct report report;

    report_error(&report, status, text, true);
    reply.sequence = 1;
    reply.kind_case = ADTOPK__REMOTE_REPLY__KIND_REPLY;
    reply.reply = &report.reply;
    (void)trainer_pack(remote, route, route_size, &reply, NULL);
}

/* This connection needs no time limit for silence, because the client sends first. Nothing lingers,
 * because a client acknowledges nothing after a final error. The arena is memory of this process:
 * the daemon reserves nothing ahead and seals nothing. */
const struct connection trainer_connection = {
    .version = REMOTE_VERSION,
    .returns = true,
    .send = trainer_answer,
    .moved = trainer_moved,
    .add = intake_add,
    .arena = trainer_arena,
    .give_back = trainer_give_back,
    .ready = delivery_ready,
    .progress = delivery_progress,
    .free = trainer_free,
};
