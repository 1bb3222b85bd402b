/*
 * Sends the core's decisions to remote trainers.
 *
 * This file copies no update ahead. A session keeps only a list of the tensors whose updates are
 * there, and how much of the first one it has sent. It makes pieces from the job's results when the
 * trainer has taken earlier pieces. The results do not change meanwhile. The next round of a tensor
 * needs this rank's push or step end, and the daemon refuses these until it has told the trainer of
 * the step.
 *
 * A trainer that returns to its run may be one step behind: the step was accepted, and the daemon
 * was killed before it could tell that. The results still have the updates, and are sent again.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/remote/trainer.h"
#include "proto/local.h"
#include "proto/remote.h"

#define DELIVERY_ENTRIES (REMOTE_PIECE / 8u)  /* (index, value) pairs per piece */
#define DELIVERY_ELEMENTS (REMOTE_PIECE / 4u) /* dense elements per piece */
#define DELIVERY_SCAN (1u << 20) /* elements read for one piece, in about a millisecond */

/* ---- pieces ---- */

static bool delivery_part(
    zmq_msg_t *part, const void *first, size_t first_size, const void *second, size_t second_size)
{
    if (zmq_msg_init_size(part, first_size + second_size) != 0) {
        return false;
    }
    memcpy(zmq_msg_data(part), first, first_size);
    if (second_size > 0) {
        memcpy((uint8_t *)zmq_msg_data(part) + first_size, second, second_size);
    }
    return true;
}

static bool delivery_is_half(const struct local_update *update)
{
    return (update->forms & LOCAL_FORM_DENSE16) != 0;
}

/* Puts entries of an update in 16 bits into a piece. Their values are among its elements. */
static bool delivery_half_list(const uint8_t *results, const struct local_update *update,
    const uint32_t *index, uint64_t span, zmq_msg_t *part)
{
    const uint16_t *half = (const uint16_t *)(const void *)(results + update->half_offset);
    uint16_t *value;

    if (zmq_msg_init_size(part, 6 * span) != 0) {
        return false;
    }
    memcpy(zmq_msg_data(part), index, 4 * span);
    value = (uint16_t *)(void *)((uint8_t *)zmq_msg_data(part) + 4 * span);
    for (uint64_t i = 0; i < span; i++) {
        value[i] = half[index[i]];
    }
    return true;
}

/* Puts entries of a list into a piece. */
static bool delivery_list(const uint8_t *results, const struct local_update *update,
    Adtopk__RemoteUpdate *piece, zmq_msg_t *part)
{
    const uint64_t left = update->count - piece->first;
    const uint8_t *index = results + update->index_offset;
    const uint8_t *value = results + update->value_offset;

    piece->count = update->count;
    piece->sparse = true;
    piece->span = left < DELIVERY_ENTRIES ? left : DELIVERY_ENTRIES;
    if (delivery_is_half(update)) {
        return delivery_half_list(results, update,
            (const uint32_t *)(const void *)index + piece->first, piece->span, part);
    }
    return delivery_part(
        part, index + 4 * piece->first, 4 * piece->span, value + 4 * piece->first, 4 * piece->span);
}

/* Returns how many of the elements from `first` on, at most to `end`, make a sparse piece. *count
 * of them are not +0. */
static uint64_t delivery_scan(const uint32_t *bits, uint64_t first, uint64_t end, uint32_t *count)
{
    uint64_t at = first;

    for (*count = 0; at < end && *count < DELIVERY_ENTRIES; at++) {
        *count += bits[at] != 0;
    }
    return at - first;
}

/* Puts elements into a piece: only those that are not +0 if that is shorter, as for an update that
 * was sent sparse. */
static bool delivery_elements(const uint8_t *results, const struct local_update *update,
    uint64_t numel, Adtopk__RemoteUpdate *piece, zmq_msg_t *part)
{
    const uint32_t *bits = (const uint32_t *)(const void *)(results + update->dense_offset);
    const uint64_t left = numel - piece->first;
    uint32_t count, *index, *value;

    if (delivery_is_half(update)) {
        piece->span = left < DELIVERY_ELEMENTS ? left : DELIVERY_ELEMENTS;
        return delivery_part(
            part, results + update->half_offset + 2 * piece->first, 2 * piece->span, NULL, 0);
    }
    piece->span = delivery_scan(
        bits, piece->first, piece->first + (left < DELIVERY_SCAN ? left : DELIVERY_SCAN), &count);
    if (8ull * count >= 4 * piece->span) {
        piece->span = left < DELIVERY_ELEMENTS ? left : DELIVERY_ELEMENTS;
        return delivery_part(part, &bits[piece->first], 4 * piece->span, NULL, 0);
    }
    piece->sparse = true;
    if (zmq_msg_init_size(part, 8ull * count) != 0) {
        return false;
    }
    index = zmq_msg_data(part);
    value = index + count;
    for (uint64_t at = piece->first; at < piece->first + piece->span; at++) {
        if (bits[at] != 0) {
            *index++ = (uint32_t)at;
            *value++ = bits[at];
        }
    }
    return true;
}

/* Sends the next piece of the first update in the queue. True if it was sent. */
static bool delivery_update(struct trainer *trainer)
{
    struct trainer_tensor *tensor =
        &trainer->tensor[trainer->updates.queue[trainer->updates.taken]];
    const uint8_t *results = trainer->results[tensor->batch];
    const struct local_update *update =
        (const struct local_update *)(const void *)(results + tensor->update);
    Adtopk__RemoteUpdate piece = ADTOPK__REMOTE_UPDATE__INIT;
    Adtopk__RemoteReply reply = ADTOPK__REMOTE_REPLY__INIT;
    const bool list = (update->forms & LOCAL_FORM_LIST) != 0;
    zmq_msg_t part;
    bool made = false;

    piece.tensor = trainer->updates.queue[trainer->updates.taken];
    piece.step = trainer->pushes.step;
    piece.status =
        (uint32_t)(trainer->updates.step_over && trainer->updates.step_status != ADTOPK_OK
                       ? trainer->updates.step_status
                       : tensor->status);
    /* If trainers see 16 bits, only the daemon uses the dense form in f32. */
    piece.forms = update->forms & LOCAL_FORMS;
    piece.forms &= delivery_is_half(update) ? ~(uint32_t)LOCAL_FORM_DENSE : LOCAL_FORMS;
    piece.unpushed = update->unpushed != 0;
    piece.final = update->final != 0;
    piece.first = trainer->updates.first;
    reply.kind_case = ADTOPK__REMOTE_REPLY__KIND_UPDATE;
    reply.update = &piece;
    if (piece.status == ADTOPK_OK) {
        made = list ? delivery_list(results, update, &piece, &part)
                    : delivery_elements(results, update, tensor->numel, &piece, &part);
        if (!made) {
            return false; /* no memory now */
        }
    }
    if (!trainer_send(trainer, &reply, made ? &part : NULL)) {
        return false;
    }
    trainer->updates.first += piece.span;
    if (!made || trainer->updates.first == (list ? update->count : tensor->numel)) {
        trainer->updates.first = 0;
        trainer->updates.taken++;
    }
    return true;
}

/* ---- the end of a step, operations ---- */

static bool delivery_step(struct trainer *trainer)
{
    Adtopk__RemoteStep step = ADTOPK__REMOTE_STEP__INIT;
    Adtopk__RemoteReply reply = ADTOPK__REMOTE_REPLY__INIT;

    step.number = trainer->pushes.step;
    step.status = (uint32_t)trainer->updates.step_status;
    step.ranks = trainer->updates.members.ranks;
    step.place = trainer->updates.members.place;
    step.root = trainer->updates.members.root;
    step.joined = trainer->updates.members.joined;
    step.due = trainer->updates.members.due;
    reply.kind_case = ADTOPK__REMOTE_REPLY__KIND_STEP;
    reply.step = &step;
    if (!trainer_send(trainer, &reply, NULL)) {
        return false;
    }
    trainer->pushes.step++;
    trainer->updates.queued = trainer->updates.taken = 0;
    trainer->updates.step_over = trainer->pushes.ended = false;
    return true;
}

static bool delivery_op(struct trainer *trainer)
{
    Adtopk__RemoteOpDone done = ADTOPK__REMOTE_OP_DONE__INIT;
    Adtopk__RemoteReply reply = ADTOPK__REMOTE_REPLY__INIT;
    const bool result = trainer->op.bytes > 0;
    zmq_msg_t part;

    done.number = trainer->op.number;
    reply.kind_case = ADTOPK__REMOTE_REPLY__KIND_OP_DONE;
    reply.op_done = &done;
    if (result && !delivery_part(&part, trainer->results[0] + trainer->op.result, trainer->op.bytes,
                      NULL, 0)) {
        return false;
    }
    if (!trainer_send(trainer, &reply, result ? &part : NULL)) {
        return false;
    }
    trainer->op.running = trainer->op.done = false;
    return true;
}

/* Finds the results of the first `batches`. The job may have been released since the last call. */
static void delivery_find_results(struct trainer *trainer, unsigned batches)
{
    const struct remote *remote = trainer->remote;

    for (unsigned b = 0; b < batches; b++) {
        trainer->results[b] = remote->config.results(remote->context, trainer->base.job, b);
    }
}

static bool delivery_next(struct trainer *trainer)
{
    if (trainer->op.done) {
        return delivery_op(trainer);
    }
    if (trainer->updates.taken < trainer->updates.queued) {
        return delivery_update(trainer);
    }
    return trainer->updates.step_over && delivery_step(trainer);
}

bool delivery_pump(struct trainer *trainer, uint64_t end_ns)
{
    Adtopk__RemoteReply nothing = ADTOPK__REMOTE_REPLY__INIT;
    bool sent = false;

    if (trainer->base.state == SESSION_READY) {
        delivery_find_results(trainer, trainer->base.batches);
    }
    while ((!sent || uv_hrtime() < end_ns) && trainer->base.state == SESSION_READY &&
           trainer->results[0] != NULL &&
           trainer->route.sent - trainer->route.acknowledged < REMOTE_WINDOW &&
           delivery_next(trainer)) {
        sent = true;
    }
    if (trainer->base.state < SESSION_ENDED &&
        trainer->route.received - trainer->route.answered >= REMOTE_ACKNOWLEDGE) {
        sent |= trainer_send(trainer, &nothing, NULL);
    }
    return sent;
}

/* ---- actions ---- */

/* Finds the updates of the last batch, from the table at the start of its results. The daemon
 * itself wrote that table. */
static void delivery_take_layout(struct trainer *trainer)
{
    const unsigned batch = trainer->base.batches;
    const uint32_t first = trainer->laid;
    const struct local_results *table =
        (const struct local_results *)(const void *)trainer->results[batch];
    const uint32_t end = first + table->tensors;

    if (batch == 0) {
        trainer->op.gradient = table->op_gradient_offset;
        trainer->op.result = table->op_result_offset;
    }
    for (uint32_t i = first; i < end; i++) {
        trainer->tensor[i].gradient = table->tensor[i - first].gradient_offset;
        trainer->tensor[i].update = table->tensor[i - first].update_offset;
    }
    trainer->laid = end;
}

/* Sends all updates of the last step, and its end, to a trainer that has not heard of these. */
static void delivery_repeat(struct trainer *trainer, const struct action *action)
{
    trainer->pushes.step = action->number - 1;
    trainer->pushes.ended = true;
    for (uint32_t i = 0; i < trainer->laid; i++) {
        struct trainer_tensor *tensor = &trainer->tensor[i];
        const struct local_update *update =
            (const struct local_update *)(const void *)(trainer->results[tensor->batch] +
                                                        tensor->update);

        if (update->step == trainer->pushes.step && update->forms != 0) {
            trainer->updates.queue[trainer->updates.queued++] = i;
        }
    }
    trainer->updates.step_over = true;
    trainer->updates.step_status = action->status;
    trainer->updates.members = action->members;
}

/* All batches with which the trainer returned are ready. */
static void delivery_return(struct trainer *trainer, const struct action *action)
{
    trainer->op.next = action->operation;
    if (trainer->base.step + 1 == action->number) {
        delivery_repeat(trainer, action);
    }
    trainer->base.step = UINT64_MAX; /* it is here */
}

enum adtopk_status delivery_ready(struct session *session, const struct action *action,
    Adtopk__LocalReady *ready, struct error *err)
{
    struct trainer *trainer = trainer_of(session);
    uint32_t *queue =
        realloc(trainer->updates.queue, (session->tensors + 1) * sizeof *trainer->updates.queue);

    (void)ready; /* only the daemon maps the results */
    trainer->updates.queue = queue != NULL ? queue : trainer->updates.queue;
    delivery_find_results(trainer, session->batches + 1);
    if (trainer->results[session->batches] == NULL || queue == NULL) {
        return error_set(err, queue != NULL ? ADTOPK_ERR_STATE : ADTOPK_ERR_MEMORY,
            "the daemon's job has no results, or there is no memory to send them");
    }
    delivery_take_layout(trainer);
    trainer->pushes.step = action->number;
    if (session->batches + 1 == action->batches && session->step != UINT64_MAX) {
        delivery_return(trainer, action);
    }
    return ADTOPK_OK;
}

static void delivery_queue(struct trainer *trainer, const struct action *action)
{
    struct trainer_tensor *tensor = &trainer->tensor[action->tensor];
    struct trainer_updates *updates = &trainer->updates;

    if (trainer->base.state == SESSION_READY && action->tensor < trainer->base.tensors &&
        tensor->delivered != action->number + 1) {
        tensor->delivered = action->number + 1;
        tensor->status = action->status;
        updates->queue[updates->queued++] = action->tensor;
    }
}

/* The result may come from another node before a trainer that has returned calls the operation
 * again. intake_op() answers that call. */
static void delivery_op_done(struct trainer *trainer, uint64_t number)
{
    if (trainer->op.running && trainer->op.number == number) {
        trainer->op.done = true;
    } else {
        trainer->op.next = number + 1;
    }
}

void delivery_progress(struct session *session, const struct action *action)
{
    struct trainer *trainer = trainer_of(session);

    if (action->type == ACTION_DELIVERED) {
        delivery_queue(trainer, action);
    } else if (action->type == ACTION_STEP) {
        trainer->updates.step_over = true;
        trainer->updates.step_status = action->status;
        trainer->updates.members = action->members;
    } else {
        delivery_op_done(trainer, action->number);
    }
}
