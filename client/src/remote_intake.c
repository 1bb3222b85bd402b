/* What a daemon on another machine sends: answers, pieces of updates, and how far things are. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <zmq.h>

#include "client/src/remote.h"
#include "proto/codec.h"
#include "proto/remote.h"

static enum adtopk_status intake_broken(adtopk_context *context, const char *what)
{
    return client_fail(
        context, ADTOPK_ERR_PROTOCOL, "the daemon at %s sent %s", context->address, what);
}

/* ---- updates ---- */

/* Memory for the forms that the update has. */
static enum adtopk_status intake_make_room(
    adtopk_context *context, struct client_arrival *arrival, const struct client_tensor *tensor)
{
    bool room = true;

    if ((arrival->forms & LOCAL_FORM_DENSE) != 0 && arrival->dense == NULL) {
        arrival->dense = malloc(tensor->numel * sizeof(float));
        room = arrival->dense != NULL;
    }
    if ((arrival->forms & LOCAL_FORM_LIST) != 0 && arrival->count > arrival->capacity) {
        free(arrival->index);
        free(arrival->value);
        arrival->capacity = 0;
        arrival->index = malloc(arrival->count * sizeof(uint32_t));
        arrival->value = malloc(arrival->count * sizeof(float));
        room &= arrival->index != NULL && arrival->value != NULL;
        arrival->capacity = room ? arrival->count : 0;
    }
    return room ? ADTOPK_OK
                : client_fail(context, ADTOPK_ERR_MEMORY,
                      "no memory for the update of tensor \"%s\"", tensor->name);
}

/* The first piece says what the update is. */
static enum adtopk_status intake_begin_update(adtopk_context *context,
    const Adtopk__RemoteUpdate *piece, struct client_arrival *arrival,
    const struct client_tensor *tensor)
{
    const bool list = (piece->forms & LOCAL_FORM_LIST) != 0;
    enum adtopk_status status;

    if (piece->forms == 0 || piece->forms > (LOCAL_FORM_LIST | LOCAL_FORM_DENSE) ||
        piece->count > (list ? tensor->numel : 0)) {
        return intake_broken(context, "an update of an impossible form");
    }
    arrival->forms = piece->forms;
    arrival->count = piece->count;
    status = intake_make_room(context, arrival, tensor);
    if (status == ADTOPK_OK && list && (piece->forms & LOCAL_FORM_DENSE) != 0) {
        memset(arrival->dense, 0, tensor->numel * sizeof(float));
    }
    return status;
}

/* Elements given by their index. False if one lies outside [first, end). */
static bool intake_scatter(
    float *dense, const uint8_t *part, size_t count, uint64_t first, uint64_t end)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t index;

        memcpy(&index, part + 4 * i, sizeof index);
        if (index < first || index >= end) {
            return false;
        }
        if (dense != NULL) {
            memcpy(&dense[index], part + 4 * (count + i), sizeof *dense);
        }
    }
    return true;
}

/* Copies a piece to its place; false if it does not fit. */
static bool intake_place(const Adtopk__RemoteUpdate *piece, struct client_arrival *arrival,
    uint64_t numel, const uint8_t *part, size_t size)
{
    const bool list = (arrival->forms & LOCAL_FORM_LIST) != 0;
    const uint64_t total = list ? arrival->count : numel;

    if (piece->first != arrival->first || piece->span > total - piece->first ||
        piece->forms != arrival->forms || piece->count != arrival->count ||
        (piece->span == 0 && total > 0) || piece->sparse < list) {
        return false;
    }
    if (piece->span == 0) {
        return size == 0; /* an empty list has no memory */
    }
    if (list) {
        if (size != 8 * piece->span ||
            !intake_scatter((arrival->forms & LOCAL_FORM_DENSE) != 0 ? arrival->dense : NULL, part,
                piece->span, 0, numel)) {
            return false;
        }
        memcpy(arrival->index + piece->first, part, 4 * piece->span);
        memcpy(arrival->value + piece->first, part + 4 * piece->span, 4 * piece->span);
        return true;
    }
    if (piece->sparse) {
        memset(arrival->dense + piece->first, 0, piece->span * sizeof(float));
        return size % 8 == 0 && intake_scatter(arrival->dense, part, size / 8, piece->first,
                                    piece->first + piece->span);
    }
    if (size != 4 * piece->span) {
        return false;
    }
    memcpy(arrival->dense + piece->first, part, size);
    return true;
}

static enum adtopk_status intake_update(
    adtopk_context *context, const Adtopk__RemoteUpdate *piece, const uint8_t *part, size_t size)
{
    struct client_remote *remote = context->remote;
    struct client_arrival *arrival;
    const struct client_tensor *tensor;
    uint64_t total;

    if (!context->committed || piece->tensor >= context->tensors || piece->step != context->step ||
        piece->status >= ADTOPK_STATUS_COUNT ||
        atomic_load(&remote->page->delivered[piece->tensor]) >> 8 > context->step) {
        return intake_broken(context, "an update that does not belong here");
    }
    tensor = &context->tensor[piece->tensor];
    arrival = &remote->arrival[piece->tensor];
    if (piece->status == ADTOPK_OK) {
        if (arrival->first == 0 &&
            intake_begin_update(context, piece, arrival, tensor) != ADTOPK_OK) {
            return context->failure.code;
        }
        if (!intake_place(piece, arrival, tensor->numel, part, size)) {
            return intake_broken(context, "a piece of an update that does not fit");
        }
        arrival->first += piece->span;
    }
    total = (arrival->forms & LOCAL_FORM_LIST) != 0 ? arrival->count : tensor->numel;
    if (piece->status != ADTOPK_OK || arrival->first == total) {
        arrival->first = 0;
        atomic_store(&remote->page->delivered[piece->tensor],
            (piece->step + 1) << 8 | (uint8_t)piece->status);
    }
    return ADTOPK_OK;
}

/* ---- steps and operations ---- */

static enum adtopk_status intake_step(adtopk_context *context, const Adtopk__RemoteStep *step)
{
    struct local_page *page = context->remote->page;

    if (!context->committed || step->number != context->step ||
        step->status >= ADTOPK_STATUS_COUNT) {
        return intake_broken(context, "the end of a step that is not open");
    }
    atomic_store(&page->step_status, step->status);
    atomic_store(&page->steps_done, step->number + 1);
    return ADTOPK_OK;
}

static enum adtopk_status intake_op(
    adtopk_context *context, const Adtopk__RemoteOpDone *done, const uint8_t *part, size_t size)
{
    struct client_remote *remote = context->remote;

    if (!context->committed || done->number != context->operation || size != remote->op_bytes) {
        return intake_broken(context, "the result of another operation");
    }
    if (size > 0) {
        memcpy(remote->op_out, part, size);
    }
    atomic_store(&remote->page->ops_done, done->number + 1);
    return ADTOPK_OK;
}

/* ---- messages ---- */

static enum adtopk_status intake_dispatch(
    adtopk_context *context, Adtopk__RemoteReply *reply, const uint8_t *part, size_t size)
{
    const bool counts = reply->kind_case != ADTOPK__REMOTE_REPLY__KIND__NOT_SET;
    struct client_remote *remote = context->remote;

    if (reply->sequence != remote->received + (counts ? 1 : 0) ||
        reply->acknowledged < remote->acknowledged || reply->acknowledged > remote->sent) {
        return intake_broken(context, "messages of which some are missing");
    }
    remote->received = reply->sequence;
    remote->acknowledged = reply->acknowledged;
    switch (reply->kind_case) {
    case ADTOPK__REMOTE_REPLY__KIND_UPDATE:
        return intake_update(context, reply->update, part, size);
    case ADTOPK__REMOTE_REPLY__KIND_STEP: return intake_step(context, reply->step);
    case ADTOPK__REMOTE_REPLY__KIND_OP_DONE: return intake_op(context, reply->op_done, part, size);
    case ADTOPK__REMOTE_REPLY__KIND_REPLY: break;
    default: return ADTOPK_OK;
    }
    if (reply->reply->kind_case == ADTOPK__LOCAL_REPLY__KIND_ERROR && reply->reply->error->final) {
        return client_fail(context, (enum adtopk_status)reply->reply->error->status, "%.239s",
            reply->reply->error->text);
    }
    if (remote->reply != NULL) {
        return intake_broken(context, "an answer that nobody waits for");
    }
    remote->reply = reply;
    return ADTOPK_OK;
}

enum adtopk_status client_intake_message(adtopk_context *context, const uint8_t *header,
    size_t header_size, const uint8_t *part, size_t part_size)
{
    struct client_remote *remote = context->remote;
    Adtopk__RemoteReply *reply = (Adtopk__RemoteReply *)(void *)codec_unpack(
        &adtopk__remote_reply__descriptor, header, header_size, REMOTE_HEADER_MAX, NULL);
    enum adtopk_status status;

    if (reply == NULL) {
        return intake_broken(context, "a malformed message");
    }
    status = intake_dispatch(context, reply, part, part_size);
    if (remote->reply != reply) {
        codec_free(&reply->base);
    }
    return status;
}

enum adtopk_status client_intake(adtopk_context *context, bool *took)
{
    struct client_remote *remote = context->remote;
    enum adtopk_status status = ADTOPK_OK;
    zmq_msg_t header, part;
    bool whole = true;

    (void)zmq_msg_init(&header);
    (void)zmq_msg_init(&part);
    *took = zmq_msg_recv(&header, remote->dealer, ZMQ_DONTWAIT) >= 0;
    if (*took && zmq_msg_more(&header) != 0) {
        whole = zmq_msg_recv(&part, remote->dealer, ZMQ_DONTWAIT) >= 0 && zmq_msg_more(&part) == 0;
    }
    if (*took) {
        status = whole ? client_intake_message(context, zmq_msg_data(&header),
                             zmq_msg_size(&header), zmq_msg_data(&part), zmq_msg_size(&part))
                       : intake_broken(context, "a message of too many parts");
    }
    (void)zmq_msg_close(&header);
    (void)zmq_msg_close(&part);
    return status;
}
