#include "client/src/question.h"

#include <string.h>

#include "client/src/clock.h"
#include "client/src/comeback.h"
#include "client/src/patience.h"

#define QUESTION_PAUSE_NS 500000

static enum adtopk_status question_ask(adtopk_context *context, const Adtopk__LocalRequest *request,
    const struct client_patience *patience)
{
    struct client_unfinished *state = &context->unfinished;
    enum adtopk_status status = ADTOPK_OK;

    if (!state->answers) {
        status = context->transport->send(context, request, patience);
        if (status == ADTOPK_OK) {
            state->asked++;
            state->answers = true;
        }
    }
    return status;
}

static enum adtopk_status question_answer(
    adtopk_context *context, const struct client_patience *patience, struct client_reply *reply)
{
    const enum adtopk_status status = client_receive(context, patience, reply);

    context->unfinished.answers &= status != ADTOPK_OK;
    return status;
}

enum adtopk_status client_question(adtopk_context *context, const Adtopk__LocalRequest *request,
    const struct client_patience *patience, struct client_reply *reply)
{
    enum adtopk_status status = client_be_here(context, patience);

    if (status == ADTOPK_OK) {
        status = question_ask(context, request, patience);
    }
    if (status == ADTOPK_OK) {
        status = question_answer(context, patience, reply);
    }
    if (client_went_away(context, status)) {
        reply->message = NULL; /* the daemon went away: it comes back */
        return ADTOPK_OK;
    }
    return status;
}

enum adtopk_status client_question_pause(
    adtopk_context *context, const struct client_patience *patience)
{
    const struct timespec pause = {.tv_nsec = QUESTION_PAUSE_NS};
    const enum adtopk_status status = client_wait_may_go_on(context);
    bool signalled;

    if (status != ADTOPK_OK || patience->deadline_ns <= client_now_ns()) {
        return status != ADTOPK_OK ? status : ADTOPK_PENDING;
    }
    client_let_go(context);
    signalled = nanosleep(&pause, NULL) != 0;
    client_take_back(context);
    return signalled && patience->interruptible ? ADTOPK_INTERRUPTED : ADTOPK_OK;
}

/* ---- pieces of a checkpoint ---- */

static enum adtopk_status keep_ask(adtopk_context *context, const struct client_piece *piece,
    const struct client_patience *patience, struct client_reply *reply)
{
    Adtopk__LocalKeep keep = ADTOPK__LOCAL_KEEP__INIT;
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;

    keep.section = piece->section;
    keep.tensor = piece->tensor;
    keep.residual = piece->residual;
    keep.first = piece->first;
    keep.count = piece->count;
    keep.number = context->unfinished.asked + 1;
    keep.writes = piece->writes;
    if (piece->writes && piece->size > 0) {
        keep.bytes = (ProtobufCBinaryData){piece->size, (uint8_t *)(uintptr_t)piece->in};
    }
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_KEEP;
    request.keep = &keep;
    return client_question(context, &request, patience, reply);
}

/* Takes the answer; sets *done unless the daemon is busy. */
static enum adtopk_status keep_take(adtopk_context *context, const Adtopk__LocalReply *message,
    struct client_piece *piece, bool *done)
{
    if (message->kind_case == ADTOPK__LOCAL_REPLY__KIND_ERROR) {
        return client_told(context, message->error->status, message->error->text, false);
    }
    if (message->kind_case != ADTOPK__LOCAL_REPLY__KIND_PART ||
        (!piece->writes && message->part->values.len > piece->size)) {
        return client_fail(context, ADTOPK_ERR_PROTOCOL,
            "the daemon at %s sent something else than a piece of a checkpoint",
            context->place.address);
    }
    *done = message->part->taken;
    if (*done && !piece->writes) {
        piece->size = message->part->values.len;
        if (piece->size > 0) {
            memcpy(piece->out, message->part->values.data, piece->size);
        }
    }
    return ADTOPK_OK;
}

/* One question. */
static enum adtopk_status keep_once(adtopk_context *context, struct client_piece *piece,
    const struct client_patience *patience, bool *done)
{
    struct client_reply reply;
    enum adtopk_status status = keep_ask(context, piece, patience, &reply);

    if (status != ADTOPK_OK || reply.message == NULL) {
        return status;
    }
    status = keep_take(context, reply.message, piece, done);
    client_reply_drop(&reply);
    return status == ADTOPK_OK && !*done ? client_question_pause(context, patience) : status;
}

enum adtopk_status client_keep(adtopk_context *context, struct client_piece *piece)
{
    const struct client_patience patience = client_stubborn(-1);
    enum adtopk_status status = ADTOPK_OK;
    bool done = false;

    context->unfinished.answers = false; /* abandons the reading of a residual */
    context->unfinished.residual = NULL;
    while (status == ADTOPK_OK && !done) {
        status = client_wait_may_go_on(context);
        if (status == ADTOPK_OK) {
            status = keep_once(context, piece, &patience, &done);
        }
    }
    return status;
}
