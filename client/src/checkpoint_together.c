/* What saving and loading have in common: agreement of the ranks, and questions to the daemon. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/src/checkpoint.h"
#include "proto/codec.h"
#include "proto/local.h"

#define TOGETHER_NAMED 8u /* ranks that an error names at most */

bool together_is_first(const struct together *together)
{
    return together->job->ranks[0] == (uint32_t)together->context->place.rank;
}

enum adtopk_status together_keep(struct together *together, struct client_piece *piece)
{
    adtopk_context *context = together->context;
    enum adtopk_status status;

    client_lock(context);
    status = client_keep(context, piece);
    if (status != ADTOPK_OK) {
        together->error = context->error;
        together->error.code = status;
    }
    return client_unlock(context, status);
}

/* Asks for a message. The caller frees it with codec_free(). */
static ProtobufCMessage *together_ask(struct together *together, uint32_t section, uint32_t tensor,
    const ProtobufCMessageDescriptor *type)
{
    uint8_t bytes[LOCAL_KEEP_SIZE];
    struct client_piece piece = {
        .section = section, .tensor = tensor, .out = bytes, .size = sizeof bytes};

    return together_keep(together, &piece) == ADTOPK_OK
               ? codec_unpack(type, bytes, piece.size, sizeof bytes, &together->error)
               : NULL;
}

Adtopk__CheckpointTensor *together_tensor(struct together *together, uint32_t tensor)
{
    Adtopk__CheckpointTensor *message = (Adtopk__CheckpointTensor *)together_ask(
        together, LOCAL_KEEP_TENSOR, tensor, &adtopk__checkpoint_tensor__descriptor);

    if (message != NULL && checkpoint_check_tensor(message, &together->error) != ADTOPK_OK) {
        codec_free(&message->base);
        message = NULL;
    }
    return message;
}

/* The policy comes in pieces. */
static enum adtopk_status together_policy(struct together *together)
{
    const uint32_t size = together->job->policy_size;
    struct client_piece piece = {.section = LOCAL_KEEP_POLICY};
    enum adtopk_status status = ADTOPK_OK;

    together->policy = calloc(1, (size_t)size + 1);
    if (together->policy == NULL) {
        return error_set(&together->error, ADTOPK_ERR_MEMORY, "no memory for a policy");
    }
    for (uint32_t at = 0; status == ADTOPK_OK && at < size; at += (uint32_t)piece.size) {
        piece.first = at;
        piece.count = size - at;
        piece.out = together->policy + at;
        piece.size = size - at;
        status = together_keep(together, &piece);
        if (status == ADTOPK_OK && piece.size == 0) {
            status = error_set(&together->error, ADTOPK_ERR_STATE,
                "the policy changed while a checkpoint was being made");
        }
    }
    return status;
}

/* ---- agreement ---- */

/* Makes the operation until it is done, whatever signals come. */
static enum adtopk_status together_sum(struct together *together)
{
    enum adtopk_status status;

    do {
        status = adtopk_allreduce(together->context, together->flag, 2 * (size_t)together->ranks);
    } while (status == ADTOPK_INTERRUPTED);
    return status;
}

enum adtopk_status together_share(struct together *together, void *bytes, size_t size)
{
    enum adtopk_status status;

    do {
        status = adtopk_broadcast(together->context, bytes, size, (int)together->root);
    } while (status == ADTOPK_INTERRUPTED);
    if (status != ADTOPK_OK) {
        (void)error_set(&together->error, status, "%s", adtopk_message(together->context));
    }
    return status;
}

/* Names the ranks that have an error. */
static enum adtopk_status together_blame(struct together *together)
{
    enum adtopk_status first = ADTOPK_OK;
    char list[128] = "";
    size_t used = 0;
    unsigned named = 0;

    for (uint32_t r = 0; r < together->ranks; r++) {
        const int status = (int)together->flag[together->ranks + r];
        if (status == ADTOPK_OK) {
            continue;
        }
        first = first == ADTOPK_OK ? (enum adtopk_status)status : first;
        if (named < TOGETHER_NAMED) {
            used +=
                (size_t)snprintf(list + used, sizeof list - used, "%s%u", named > 0 ? ", " : "", r);
        }
        named++;
    }
    if (first == ADTOPK_OK) {
        return ADTOPK_OK;
    }
    return error_set(&together->error,
        error_is_failure((uint32_t)first) ? first : ADTOPK_ERR_PROTOCOL,
        "%s: rank%s %s%s refused (%s): %s own message%s why", together->call, named > 1 ? "s" : "",
        list, named > TOGETHER_NAMED ? ", ..." : "", adtopk_status_name(first),
        named > 1 ? "their" : "its", named > 1 ? "s say" : " says");
}

enum adtopk_status together_agree(struct together *together, float number)
{
    const uint32_t own = (uint32_t)together->context->place.rank;
    const enum adtopk_status mine = together->error.code;
    enum adtopk_status status;

    memset(together->flag, 0, 2 * (size_t)together->ranks * sizeof *together->flag);
    together->flag[own] = number;
    together->flag[together->ranks + own] = (float)mine;
    status = together_sum(together);
    if (status != ADTOPK_OK) {
        return error_set(&together->error, status, "%s", adtopk_message(together->context));
    }
    return mine != ADTOPK_OK ? mine : together_blame(together);
}

/* All ranks see the same nodes, so all of them refuse. */
enum adtopk_status together_meet(struct together *together)
{
    const bool first = together->error.code == ADTOPK_OK && together_is_first(together);
    const uint32_t before = together->nodes;
    const enum adtopk_status status = together_agree(together, first ? 1 : 0);

    if (status != ADTOPK_OK) {
        return status;
    }
    together->nodes = 0;
    for (uint32_t r = together->ranks; r-- > 0;) {
        if (together->flag[r] > 0) {
            together->root = r;
            together->nodes++;
        }
    }
    return before == 0 || together->nodes == before
               ? ADTOPK_OK
               : error_set(&together->error, ADTOPK_ERR_STATE,
                     "%s: a node was lost meanwhile: call it again", together->call);
}

/* ---- the call ---- */

/* Whether the ranks can meet. Where they cannot, only this rank hears of it. */
static enum adtopk_status together_check(adtopk_context *context, const char *call)
{
    const enum adtopk_status status = client_enter(context);

    if (status != ADTOPK_OK) {
        return status;
    }
    if (context->commit != CLIENT_COMMIT_DONE || context->tensors != context->batch.ready) {
        return client_refuse(context, ADTOPK_ERR_STATE, "%s before adtopk_commit()", call);
    }
    if (context->step_state != CLIENT_STEP_NEW) {
        return client_refuse(context, ADTOPK_ERR_STATE, "%s in step %llu: wait for its end", call,
            (unsigned long long)context->step);
    }
    return context->unfinished.operates
               ? client_refuse(context, ADTOPK_ERR_STATE,
                     "%s while another collective operation is under way", call)
               : ADTOPK_OK;
}

static void together_free_job(struct together *together)
{
    codec_free(together->job != NULL ? &together->job->base : NULL);
    free(together->policy);
    together->job = NULL;
    together->policy = NULL;
}

enum adtopk_status together_ask_job(struct together *together)
{
    together_free_job(together);
    together->job = (Adtopk__CheckpointJob *)together_ask(
        together, LOCAL_KEEP_JOB, 0, &adtopk__checkpoint_job__descriptor);
    if (together->job != NULL &&
        checkpoint_check_job(together->job, &together->error) == ADTOPK_OK &&
        together_is_first(together)) {
        (void)together_policy(together);
    }
    return together->error.code;
}

static enum adtopk_status together_enter(struct together *together)
{
    adtopk_context *context = together->context;
    const enum adtopk_status status = together_check(context, together->call);

    if (status != ADTOPK_OK) {
        return status;
    }
    together->ranks = (uint32_t)context->place.world_size;
    together->flag = calloc(together->ranks, 2 * sizeof *together->flag);
    if (together->flag == NULL) {
        return client_refuse(context, ADTOPK_ERR_MEMORY, "%s: no memory", together->call);
    }
    client_parts_begin(context);
    return ADTOPK_OK;
}

enum adtopk_status together_begin(
    struct together *together, adtopk_context *context, const char *call)
{
    *together = (struct together){.context = context, .call = call};
    client_lock(context);
    return client_unlock(context, together_enter(together));
}

void together_in(struct together *together, const char *folder)
{
    together->folder = folder;
    if (folder == NULL || folder[0] == '\0') {
        (void)error_set(&together->error, ADTOPK_ERR_ARGUMENT, "%s: folder is %s", together->call,
            folder == NULL ? "NULL" : "\"\"");
    } else {
        (void)together_ask_job(together);
    }
}

enum adtopk_status together_end(struct together *together, enum adtopk_status status)
{
    adtopk_context *context = together->context;

    client_lock(context);
    if (status != ADTOPK_OK && context->failure.code == ADTOPK_OK) {
        (void)client_refuse(context, status, "%s", together->error.text);
    } else if (status != ADTOPK_OK) {
        status = client_fail(context, context->failure.code, "%s", context->failure.text);
    }
    client_parts_end(context); /* from here on adtopk_close() may free it */
    (void)client_unlock(context, status);
    together_free_job(together);
    free(together->flag);
    return status;
}
