#include "client/src/question.h"

#include <string.h>

#include "client/src/clock.h"
#include "client/src/comeback.h"

#define QUESTION_ANSWER_MS 30000
#define QUESTION_BUSY_MS 10000 /* how long the daemon may keep the residuals busy */
#define QUESTION_PAUSE_NS 500000

static struct client_patience question_sooner(
    const struct client_patience *patience, uint64_t after_ns)
{
    const uint64_t deadline = client_now_ns() + after_ns;
    struct client_patience sooner = *patience;

    sooner.deadline_ns = deadline < patience->deadline_ns ? deadline : patience->deadline_ns;
    return sooner;
}

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
    const struct client_patience limit = question_sooner(patience, QUESTION_ANSWER_MS * 1000000ull);
    const enum adtopk_status status = context->transport->receive(context, &limit, reply);

    if (status == ADTOPK_PENDING && limit.deadline_ns < patience->deadline_ns) {
        return client_fail(context, ADTOPK_ERR_UNREACHABLE,
            "the daemon at %s does not answer: no residual in %d ms", context->place.address,
            QUESTION_ANSWER_MS);
    }
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
    if (status == ADTOPK_ERR_UNREACHABLE && context->failure.code == ADTOPK_OK) {
        reply->message = NULL; /* the daemon went away: it comes back */
        return ADTOPK_OK;
    }
    return status;
}

enum adtopk_status client_question_pause(
    adtopk_context *context, const struct client_patience *patience)
{
    struct client_unfinished *state = &context->unfinished;
    const struct timespec pause = {.tv_nsec = QUESTION_PAUSE_NS};
    const uint64_t now = client_now_ns();

    if (state->busy_since_ns == 0) {
        state->busy_since_ns = now;
    }
    if (now - state->busy_since_ns > QUESTION_BUSY_MS * 1000000ull) {
        return client_refuse(context, ADTOPK_ERR_STATE,
            "the daemon has been at work on the residuals for %d ms", QUESTION_BUSY_MS);
    }
    if (patience->deadline_ns <= now) {
        return ADTOPK_PENDING;
    }
    return nanosleep(&pause, NULL) != 0 && patience->interruptible ? ADTOPK_INTERRUPTED : ADTOPK_OK;
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

    context->unfinished.busy_since_ns = 0;
    context->unfinished.answers = false; /* abandons the reading of a residual */
    context->unfinished.residual = NULL;
    while (status == ADTOPK_OK && !done) {
        status = keep_once(context, piece, &patience, &done);
    }
    return status;
}
