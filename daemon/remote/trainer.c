/* The life of a remote session: states, sending, ending, freeing. */
#include "daemon/remote/trainer.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/codec.h"
#include "proto/remote.h"

#define BIT(state) (1u << TRAINER_##state)

/* From each state to those it may move to. */
static const unsigned trainer_table[TRAINER_STATES] = {
    [TRAINER_OPEN] = BIT(ARENA) | BIT(LEAVING) | BIT(ENDED),
    [TRAINER_ARENA] = BIT(MAPPED) | BIT(LEAVING) | BIT(ENDED),
    [TRAINER_MAPPED] = BIT(READY) | BIT(LEAVING) | BIT(ENDED),
    [TRAINER_READY] = BIT(LEAVING) | BIT(ENDED),
    [TRAINER_LEAVING] = BIT(ENDED),
    [TRAINER_ENDED] = 0,
};

void trainer_move(struct trainer *trainer, enum trainer_state state)
{
    assert((trainer_table[trainer->state] & (1u << state)) != 0);
    trainer->state = state;
}

/* ---- beginning, finding, freeing ---- */

struct trainer *trainer_create(struct remote *remote, const void *route, size_t route_size)
{
    struct trainer *trainer = calloc(1, sizeof *trainer);

    if (trainer == NULL) {
        return NULL;
    }
    assert(route_size <= sizeof trainer->route); /* ZMTP has no longer ones */
    trainer->remote = remote;
    trainer->id = REMOTE_SESSION | ++remote->serial;
    memcpy(trainer->route, route, route_size);
    trainer->route_size = route_size;
    trainer->gradients = segment_none;
    trainer->next = remote->trainers;
    remote->trainers = trainer;
    remote->count++;
    return trainer;
}

struct trainer *trainer_find(const struct remote *remote, session_id id)
{
    struct trainer *trainer = remote->trainers;

    while (trainer != NULL && trainer->id != id) {
        trainer = trainer->next;
    }
    return trainer;
}

struct trainer *trainer_of_route(const struct remote *remote, const void *route, size_t size)
{
    struct trainer *trainer = remote->trainers;

    while (trainer != NULL &&
           (trainer->route_size != size || memcmp(trainer->route, route, size) != 0)) {
        trainer = trainer->next;
    }
    return trainer;
}

void trainer_free(struct trainer *trainer)
{
    segment_drop(&trainer->gradients);
    free(trainer->tensor);
    free(trainer->queue);
    free(trainer);
}

void trainer_collect(struct remote *remote)
{
    for (struct trainer **link = &remote->trainers; *link != NULL;) {
        struct trainer *trainer = *link;

        if (trainer->state == TRAINER_ENDED && trainer->gradients.bytes == NULL) {
            *link = trainer->next;
            remote->count--;
            trainer_free(trainer);
        } else {
            link = &trainer->next;
        }
    }
}

enum adtopk_status trainer_event(struct trainer *trainer, struct event *event, struct error *err)
{
    event->session = trainer->id;
    return trainer->remote->ops->event(trainer->remote->context, event, err);
}

/* ---- sending ---- */

/* Packs and sends; takes the part over. */
static enum gate_sent trainer_pack(struct remote *remote, const void *route, size_t route_size,
    const Adtopk__RemoteReply *reply, zmq_msg_t *part)
{
    size_t size = 0;
    uint8_t *bytes = codec_pack(&reply->base, &size);
    enum gate_sent sent = GATE_FULL;

    if (bytes != NULL) {
        sent = gate_send(&remote->gate, route, route_size, bytes, size, part);
    } else if (part != NULL) {
        (void)zmq_msg_close(part);
    }
    free(bytes);
    remote->stats.sent += sent == GATE_SENT;
    return sent;
}

bool trainer_send(struct trainer *trainer, Adtopk__RemoteReply *reply, zmq_msg_t *part)
{
    const bool counts = reply->kind_case != ADTOPK__REMOTE_REPLY__KIND__NOT_SET;
    enum gate_sent sent;

    reply->sequence = trainer->sent + (counts ? 1 : 0);
    reply->acknowledged = trainer->received;
    sent = trainer_pack(trainer->remote, trainer->route, trainer->route_size, reply, part);
    if (sent == GATE_SENT) {
        trainer->sent = reply->sequence;
        trainer->answered = trainer->received;
    } else if (sent == GATE_GONE) {
        trainer_lost(trainer, "its connection broke");
    }
    return sent == GATE_SENT;
}

void trainer_answer(struct trainer *trainer, Adtopk__LocalReply *answer)
{
    Adtopk__RemoteReply reply = ADTOPK__REMOTE_REPLY__INIT;

    reply.kind_case = ADTOPK__REMOTE_REPLY__KIND_REPLY;
    reply.reply = answer;
    if (!trainer_send(trainer, &reply, NULL)) {
        trainer_lost(trainer, "it does not read what it is sent");
    }
}

static void trainer_fill_error(Adtopk__LocalReply *reply, Adtopk__LocalError *error,
    enum adtopk_status status, char *text, bool final)
{
    error->status = (uint32_t)status;
    error->text = text;
    error->final = final;
    reply->kind_case = ADTOPK__LOCAL_REPLY__KIND_ERROR;
    reply->error = error;
}

/* A final error is the session's last word. */
static void trainer_error(
    struct trainer *trainer, enum adtopk_status status, const char *text, bool final)
{
    Adtopk__LocalError error = ADTOPK__LOCAL_ERROR__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;
    char copy[ERROR_TEXT_SIZE];

    (void)snprintf(copy, sizeof copy, "%s", text);
    trainer_fill_error(&reply, &error, status, copy, final);
    trainer_answer(trainer, &reply);
}

void trainer_turn_away(struct remote *remote, const void *route, size_t route_size,
    enum adtopk_status status, const char *text)
{
    Adtopk__LocalError error = ADTOPK__LOCAL_ERROR__INIT;
    Adtopk__LocalReply answer = ADTOPK__LOCAL_REPLY__INIT;
    Adtopk__RemoteReply reply = ADTOPK__REMOTE_REPLY__INIT;
    char copy[ERROR_TEXT_SIZE];

    (void)snprintf(copy, sizeof copy, "%s", text);
    trainer_fill_error(&answer, &error, status, copy, true);
    reply.sequence = 1;
    reply.kind_case = ADTOPK__REMOTE_REPLY__KIND_REPLY;
    reply.reply = &answer;
    (void)trainer_pack(remote, route, route_size, &reply, NULL);
}

/* ---- ending ---- */

/* What the core does not know or has forgotten is ours to give back. */
static void trainer_finish(struct trainer *trainer)
{
    trainer_move(trainer, TRAINER_ENDED);
    trainer->verdict = TRAINER_VERDICT_NONE;
    trainer->results = NULL;
}

/* Tells the core, once. */
static void trainer_tell(struct trainer *trainer, const char *why)
{
    char reason[ERROR_TEXT_SIZE];
    struct event event = {.type = EVENT_RANK_LOST, .reason = reason};
    struct error ignored;

    if (trainer->known) {
        trainer->known = false;
        trainer->remote->stats.lost++;
        (void)snprintf(reason, sizeof reason, "the trainer at %s: %.150s", trainer->peer, why);
        (void)trainer_event(trainer, &event, &ignored);
    }
}

void trainer_lost(struct trainer *trainer, const char *why)
{
    if (trainer->state != TRAINER_ENDED) {
        trainer_finish(trainer);
        trainer_tell(trainer, why);
    }
}

void trainer_end(struct trainer *trainer, enum adtopk_status status, const char *text)
{
    if (trainer->state != TRAINER_ENDED) {
        trainer_error(trainer, status, text, true);
    }
    if (trainer->state != TRAINER_ENDED) {
        trainer_finish(trainer);
    }
}

void trainer_refuse(struct trainer *trainer, const struct error *why)
{
    char text[ERROR_TEXT_SIZE];

    if (trainer->state != TRAINER_ENDED) {
        trainer->remote->stats.protocol_errors++;
        (void)snprintf(text, sizeof text, "it broke the protocol: %.120s", why->text);
        trainer_tell(trainer, text);
        trainer_end(trainer, why->code, why->text);
    }
}

void trainer_judge(struct trainer *trainer, enum trainer_verdict verdict, const struct error *why)
{
    trainer->verdict = verdict;
    trainer->verdict_error = *why;
    trainer->verdict_turn = trainer->remote->turn + 2;
}

bool trainer_execute(struct trainer *trainer)
{
    const struct error *why = &trainer->verdict_error;
    const enum trainer_verdict verdict = trainer->verdict;

    if (verdict == TRAINER_VERDICT_NONE || trainer->remote->turn < trainer->verdict_turn) {
        return verdict != TRAINER_VERDICT_NONE;
    }
    trainer->verdict = TRAINER_VERDICT_NONE;
    if (verdict == TRAINER_VERDICT_ERROR) {
        trainer_error(trainer, why->code, why->text, false);
    } else if (verdict == TRAINER_VERDICT_REFUSE) {
        trainer_refuse(trainer, why);
    } else {
        trainer_tell(trainer, why->text);
        trainer_end(trainer, why->code, why->text);
    }
    return true;
}
