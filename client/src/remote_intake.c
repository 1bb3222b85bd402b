/* Messages from a daemon on another machine: answers, pieces of updates, and counters. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/src/remote.h"
#include "kernels/base/convert.h"
#include "proto/codec.h"
#include "proto/remote.h"
#include "proto/retry.h"

static enum adtopk_status intake_broken(adtopk_context *context, const char *what)
{
    return client_fail(
        context, ADTOPK_ERR_PROTOCOL, "the daemon at %s sent %s", context->place.address, what);
}

/* ---- updates ---- */

/* Makes memory for the forms that the update has. */
static enum adtopk_status intake_make_room(
    adtopk_context *context, struct client_arrival *arrival, const struct client_tensor *tensor)
{
    bool room = true;

    if ((arrival->forms & LOCAL_FORM_DENSE) != 0 && arrival->dense == NULL) {
        arrival->dense = malloc(tensor->numel * sizeof(float));
        room = arrival->dense != NULL;
    }
    if ((arrival->forms & LOCAL_FORM_DENSE16) != 0 && arrival->half == NULL) {
        arrival->half = malloc(tensor->numel * sizeof(uint16_t));
        room = arrival->half != NULL;
    }
    if ((arrival->forms & LOCAL_FORM_LIST) != 0 &&
        (arrival->capacity == 0 || arrival->count > arrival->capacity)) {
        const uint64_t capacity =
            arrival->count > 0 ? arrival->count : 1; /* not NULL, because the form is there */

        free(arrival->index);
        free(arrival->value);
        arrival->index = malloc(capacity * sizeof(uint32_t));
        arrival->value = malloc(capacity * sizeof(float));
        room &= arrival->index != NULL && arrival->value != NULL;
        arrival->capacity = room ? capacity : 0;
    }
    return room ? ADTOPK_OK
                : client_fail(context, ADTOPK_ERR_MEMORY,
                      "no memory for the update of tensor \"%s\"", tensor->name);
}

/* Whether an update may have these forms: elements, entries or both, and never elements in both 16
 * bits and f32. */
static bool intake_may_have(const struct client_tensor *tensor, uint32_t forms)
{
    if ((tensor->forms & ADTOPK_FORM_DENSE16) != 0) {
        return (forms & ~(uint32_t)LOCAL_FORM_LIST) == LOCAL_FORM_DENSE16;
    }
    return forms != 0 && forms <= (LOCAL_FORM_LIST | LOCAL_FORM_DENSE);
}

/* Begins an update with its first piece, which says what forms it has. */
static enum adtopk_status intake_begin_update(adtopk_context *context,
    const Adtopk__RemoteUpdate *piece, struct client_arrival *arrival,
    const struct client_tensor *tensor)
{
    const bool list = (piece->forms & LOCAL_FORM_LIST) != 0;
    enum adtopk_status status;

    if (!intake_may_have(tensor, piece->forms) || piece->count > (list ? tensor->numel : 0)) {
        return intake_broken(context, "an update of an impossible form");
    }
    arrival->forms = piece->forms;
    arrival->count = piece->count;
    arrival->unpushed = piece->unpushed;
    arrival->final = piece->final;
    status = intake_make_room(context, arrival, tensor);
    if (status == ADTOPK_OK && list && (piece->forms & LOCAL_FORM_DENSE) != 0) {
        memset(arrival->dense, 0, tensor->numel * sizeof(float));
    }
    if (status == ADTOPK_OK && list && arrival->half != NULL) {
        memset(arrival->half, 0, tensor->numel * sizeof(uint16_t));
    }
    return status;
}

/* Copies entries or elements of 16 bits each. False if one lies outside of the tensor. */
static bool intake_place_half(const Adtopk__RemoteUpdate *piece, struct client_arrival *arrival,
    const struct client_tensor *tensor, const uint8_t *part, size_t size)
{
    const bool list = (arrival->forms & LOCAL_FORM_LIST) != 0;

    if (size != (list ? 6 : 2) * piece->span) {
        return false;
    }
    for (uint64_t i = 0; list && i < piece->span; i++) {
        uint32_t index;
        uint16_t half;

        memcpy(&index, part + 4 * i, sizeof index);
        memcpy(&half, part + 4 * piece->span + 2 * i, sizeof half);
        if (index >= tensor->numel) {
            return false;
        }
        arrival->half[index] = half;
        arrival->index[piece->first + i] = index;
        arrival->value[piece->first + i] =
            tensor->dtype == ADTOPK_F16 ? convert_f16(half) : convert_bf16(half);
    }
    if (!list) {
        memcpy(arrival->half + piece->first, part, size);
    }
    return true;
}

/* Copies elements by their index. False if one lies outside of [first, end). */
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
    const struct client_tensor *tensor, const uint8_t *part, size_t size)
{
    const uint64_t numel = tensor->numel;
    const bool list = (arrival->forms & LOCAL_FORM_LIST) != 0;
    const uint64_t total = list ? arrival->count : numel;

    if (piece->first != arrival->first || piece->span > total - piece->first ||
        piece->forms != arrival->forms || piece->count != arrival->count ||
        (piece->span == 0 && total > 0) || (list && !piece->sparse)) {
        return false;
    }
    if (piece->span == 0) {
        return size == 0; /* an empty list */
    }
    if ((arrival->forms & LOCAL_FORM_DENSE16) != 0) {
        return intake_place_half(piece, arrival, tensor, part, size);
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

    if (context->commit != CLIENT_COMMIT_DONE || piece->tensor >= context->batch.ready ||
        piece->step != context->step || piece->status >= ERROR_STATUSES) {
        return intake_broken(context, "an update that does not belong here");
    }
    if (atomic_load(&remote->page->delivered[piece->tensor]) >> 8 > context->step) {
        return remote->life > 0 ? ADTOPK_OK /* it came before its daemon went away */
                                : intake_broken(context, "an update that was there already");
    }
    tensor = &context->tensor[piece->tensor];
    arrival = &remote->arrival[piece->tensor];
    if (piece->status == ADTOPK_OK) {
        if (arrival->first == 0 &&
            intake_begin_update(context, piece, arrival, tensor) != ADTOPK_OK) {
            return context->failure.code;
        }
        if (!intake_place(piece, arrival, tensor, part, size)) {
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

    if (context->commit != CLIENT_COMMIT_DONE || step->number != context->step ||
        step->status >= ERROR_STATUSES) {
        return intake_broken(context, "the end of a step that is not open");
    }
    atomic_store(&page->ranks, step->ranks);
    atomic_store(&page->place, step->place);
    atomic_store(&page->root, step->root);
    atomic_store(&page->joined, step->joined);
    atomic_store(&page->due, step->due ? 1 : 0);
    atomic_store(&page->step_status, step->status);
    atomic_store(&page->steps_done, step->number + 1);
    return ADTOPK_OK;
}

static enum adtopk_status remote_intake_op(
    adtopk_context *context, const Adtopk__RemoteOpDone *done, const uint8_t *part, size_t size)
{
    struct client_remote *remote = context->remote;

    if (context->commit != CLIENT_COMMIT_DONE || done->number != context->unfinished.number ||
        size != remote->op_bytes) {
        return intake_broken(context, "the result of another operation");
    }
    if (size > 0) {
        memcpy(remote->op_out, part, size);
    }
    atomic_store(&remote->page->ops_done, done->number + 1);
    return ADTOPK_OK;
}

/* ---- messages ---- */

static enum adtopk_status remote_intake_dispatch(
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
    case ADTOPK__REMOTE_REPLY__KIND_OP_DONE:
        return remote_intake_op(context, reply->op_done, part, size);
    case ADTOPK__REMOTE_REPLY__KIND_REPLY: break;
    default: return ADTOPK_OK;
    }
    if (reply->reply->kind_case == ADTOPK__LOCAL_REPLY__KIND_ERROR && reply->reply->error->final) {
        return client_told(context, reply->reply->error->status, reply->reply->error->text, true);
    }
    if (client_reply_is_stale(context, reply->reply)) {
        return ADTOPK_OK;
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
    struct error err = {.code = ADTOPK_OK};
    Adtopk__RemoteReply *reply = (Adtopk__RemoteReply *)(void *)codec_unpack(
        &adtopk__remote_reply__descriptor, header, header_size, REMOTE_HEADER_MAX, &err);
    enum adtopk_status status;

    if (reply == NULL && err.code == ADTOPK_ERR_MEMORY) {
        return client_fail(context, ADTOPK_ERR_MEMORY, "%s", err.text);
    }
    if (reply == NULL) {
        return intake_broken(context, "a malformed message");
    }
    status = remote_intake_dispatch(context, reply, part, part_size);
    if (remote->reply != reply) {
        codec_free(&reply->base);
    }
    return status;
}

static bool intake_receive(const struct client_remote *remote, zmq_msg_t *part)
{
    int size;

    RETRY(size, remote->zmq->msg_recv(part, remote->dealer, ZMQ_DONTWAIT));
    return size >= 0;
}

enum adtopk_status client_intake(adtopk_context *context, bool *took)
{
    struct client_remote *remote = context->remote;
    enum adtopk_status status = ADTOPK_OK;
    zmq_msg_t header, part;
    bool whole = true;

    (void)remote->zmq->msg_init(&header);
    (void)remote->zmq->msg_init(&part);
    *took = intake_receive(remote, &header);
    if (*took && remote->zmq->msg_more(&header) != 0) {
        whole = intake_receive(remote, &part) && remote->zmq->msg_more(&part) == 0;
    }
    if (*took) {
        status = whole ? client_intake_message(context, remote->zmq->msg_data(&header),
                             remote->zmq->msg_size(&header), remote->zmq->msg_data(&part),
                             remote->zmq->msg_size(&part))
                       : intake_broken(context, "a message of too many parts");
    }
    (void)remote->zmq->msg_close(&header);
    (void)remote->zmq->msg_close(&part);
    return status;
}
