/*
 * Reads a residual part by part, so that messages stay short and no part takes the daemon long.
 *
 * A call may return before it has the whole residual; the context remembers how far it is. Each
 * question has a number. By it the library recognises, and drops, an answer for which no call waits
 * any more.
 */
#include <string.h>

#include "client/src/clock.h"
#include "client/src/comeback.h"

#define RESIDUAL_ANSWER_MS 30000
#define RESIDUAL_BUSY_MS 10000 /* how long the daemon may keep the residuals busy */
#define RESIDUAL_PAUSE_NS 500000

static struct client_patience residual_sooner(
    const struct client_patience *patience, uint64_t after_ns)
{
    const uint64_t deadline = client_now_ns() + after_ns;
    struct client_patience sooner = *patience;

    sooner.deadline_ns = deadline < patience->deadline_ns ? deadline : patience->deadline_ns;
    return sooner;
}

/* Asks for the next part, unless the answer to an earlier question is still to come. */
static enum adtopk_status residual_ask(
    adtopk_context *context, uint32_t count, const struct client_patience *patience)
{
    struct client_unfinished *state = &context->unfinished;
    Adtopk__LocalResidual part = ADTOPK__LOCAL_RESIDUAL__INIT;
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    enum adtopk_status status;

    if (state->answers) {
        return ADTOPK_OK;
    }
    part.tensor = state->tensor;
    part.first = state->read;
    part.count = count;
    part.number = state->asked + 1;
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_RESIDUAL;
    request.residual = &part;
    status = context->transport->send(context, &request, patience);
    if (status == ADTOPK_OK) {
        state->asked++;
        state->answers = true;
    }
    return status;
}

static enum adtopk_status residual_receive(
    adtopk_context *context, const struct client_patience *patience, struct client_reply *reply)
{
    const struct client_patience limit = residual_sooner(patience, RESIDUAL_ANSWER_MS * 1000000ull);
    const enum adtopk_status status = context->transport->receive(context, &limit, reply);

    if (status == ADTOPK_PENDING && limit.deadline_ns < patience->deadline_ns) {
        return client_fail(context, ADTOPK_ERR_UNREACHABLE,
            "the daemon at %s does not answer: no residual in %d ms", context->place.address,
            RESIDUAL_ANSWER_MS);
    }
    context->unfinished.answers &= status != ADTOPK_OK;
    return status;
}

/* Sets *busy if the daemon is using the residuals. */
static enum adtopk_status residual_take(
    adtopk_context *context, const Adtopk__LocalReply *message, uint32_t count, bool *busy)
{
    struct client_unfinished *state = &context->unfinished;

    *busy = message->kind_case == ADTOPK__LOCAL_REPLY__KIND_PART && message->part->values.len == 0;
    if (*busy) {
        return ADTOPK_OK;
    }
    if (message->kind_case == ADTOPK__LOCAL_REPLY__KIND_ERROR) {
        return client_told(context, message->error->status, message->error->text, false);
    }
    if (message->kind_case != ADTOPK__LOCAL_REPLY__KIND_PART ||
        message->part->values.len != count * sizeof(float)) {
        return client_fail(context, ADTOPK_ERR_PROTOCOL,
            "the daemon at %s sent something else than the residual", context->place.address);
    }
    memcpy(state->residual + state->read, message->part->values.data, count * sizeof(float));
    state->read += count;
    state->busy_since_ns = 0;
    return ADTOPK_OK;
}

/* Waits a moment before the next question. */
static enum adtopk_status residual_pause(
    adtopk_context *context, const struct client_patience *patience)
{
    struct client_unfinished *state = &context->unfinished;
    const struct timespec pause = {.tv_nsec = RESIDUAL_PAUSE_NS};
    const uint64_t now = client_now_ns();

    if (state->busy_since_ns == 0) {
        state->busy_since_ns = now;
    }
    if (now - state->busy_since_ns > RESIDUAL_BUSY_MS * 1000000ull) {
        return client_refuse(context, ADTOPK_ERR_STATE,
            "the daemon has been at work on the residuals for %d ms", RESIDUAL_BUSY_MS);
    }
    if (patience->deadline_ns <= now) {
        return ADTOPK_PENDING;
    }
    return nanosleep(&pause, NULL) != 0 && patience->interruptible ? ADTOPK_INTERRUPTED : ADTOPK_OK;
}

static enum adtopk_status residual_part(
    adtopk_context *context, uint32_t count, const struct client_patience *patience)
{
    struct client_reply reply;
    bool busy = false;
    enum adtopk_status status = client_be_here(context, patience);

    if (status == ADTOPK_OK) {
        status = residual_ask(context, count, patience);
    }
    if (status == ADTOPK_OK) {
        status = residual_receive(context, patience, &reply);
    }
    if (status == ADTOPK_ERR_UNREACHABLE && context->failure.code == ADTOPK_OK) {
        return ADTOPK_OK; /* the daemon went away: comes back and asks again */
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    status = residual_take(context, reply.message, count, &busy);
    client_reply_drop(&reply);
    return busy ? residual_pause(context, patience) : status;
}

static enum adtopk_status residual_check(adtopk_context *context, uint32_t tensor, const float *out)
{
    const enum adtopk_status status =
        client_enter_tensor(context, "adtopk_residual()", tensor, false);

    if (status == ADTOPK_OK && out == NULL) {
        return client_refuse(context, ADTOPK_ERR_ARGUMENT, "adtopk_residual(): out is NULL");
    }
    if (status == ADTOPK_OK && context->step_state != CLIENT_STEP_NEW) {
        return client_refuse(context, ADTOPK_ERR_STATE,
            "adtopk_residual() in step %llu: wait for its end", (unsigned long long)context->step);
    }
    return status;
}

/* Begins anew, unless the last call read the same residual in this step and was not done. */
static void residual_begin(adtopk_context *context, uint32_t tensor, float *out)
{
    struct client_unfinished *state = &context->unfinished;

    if (state->residual != out || state->tensor != tensor ||
        state->residual_step != context->step) {
        state->residual = out;
        state->tensor = tensor;
        state->residual_step = context->step;
        state->read = 0;
        state->busy_since_ns = 0;
        state->answers = false;
    }
}

static enum adtopk_status residual_read(
    adtopk_context *context, uint32_t tensor, float *out, int timeout_ms)
{
    const struct client_patience patience = client_patience(context, timeout_ms);
    struct client_unfinished *state = context != NULL ? &context->unfinished : NULL;
    enum adtopk_status status = residual_check(context, tensor, out);

    if (status != ADTOPK_OK) {
        return status;
    }
    client_withdraw(context);
    residual_begin(context, tensor, out);
    while (status == ADTOPK_OK && state->read < context->tensor[tensor].numel) {
        const uint64_t left = context->tensor[tensor].numel - state->read;

        status = residual_part(context, left < LOCAL_PART ? (uint32_t)left : LOCAL_PART, &patience);
    }
    if (status != ADTOPK_PENDING && status != ADTOPK_INTERRUPTED) {
        state->residual = NULL;
    }
    return status;
}

enum adtopk_status adtopk_residual_for(
    adtopk_context *context, uint32_t tensor, float *out, int timeout_ms)
{
    client_lock(context);
    return client_unlock(context, residual_read(context, tensor, out, timeout_ms));
}

enum adtopk_status adtopk_residual(adtopk_context *context, uint32_t tensor, float *out)
{
    return adtopk_residual_for(context, tensor, out, -1);
}
