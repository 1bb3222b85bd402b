/*
 * Reads a residual part by part, so that messages stay short and no part takes the daemon long.
 *
 * A call may return before it has the whole residual; the context remembers how far it is.
 */
#include <string.h>

#include "client/src/question.h"

/* Asks for the next part, unless the answer to an earlier question is still to come. */
static enum adtopk_status residual_ask(adtopk_context *context, uint32_t count,
    const struct client_patience *patience, struct client_reply *reply)
{
    const struct client_unfinished *state = &context->unfinished;
    Adtopk__LocalResidual part = ADTOPK__LOCAL_RESIDUAL__INIT;
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;

    part.tensor = state->tensor;
    part.first = state->read;
    part.count = count;
    part.number = state->asked + 1;
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_RESIDUAL;
    request.residual = &part;
    return client_question(context, &request, patience, reply);
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
    return ADTOPK_OK;
}

static enum adtopk_status residual_part(
    adtopk_context *context, uint32_t count, const struct client_patience *patience)
{
    struct client_reply reply;
    bool busy = false;
    enum adtopk_status status = residual_ask(context, count, patience, &reply);

    if (status != ADTOPK_OK || reply.message == NULL) {
        return status;
    }
    status = residual_take(context, reply.message, count, &busy);
    client_reply_drop(&reply);
    return busy ? client_question_pause(context, patience) : status;
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
