/*
 * What the core decided, told to remote trainers.
 *
 * Nothing of an update is copied ahead: a session only keeps which tensors are there and how far
 * it has come with the first of them, and pieces are made from the job's results when the trainer
 * has taken earlier ones. The results do not change meanwhile, because the next round of a tensor
 * needs this rank's push or step end, and those are refused until the step has been told.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/remote/trainer.h"
#include "proto/local.h"
#include "proto/remote.h"

#define DELIVERY_ENTRIES (REMOTE_PIECE / 8u)  /* (index, value) pairs of one piece */
#define DELIVERY_ELEMENTS (REMOTE_PIECE / 4u) /* dense ones */
#define DELIVERY_SCAN (1u << 20) /* elements looked at for one piece: about a millisecond */

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

/* Entries of a list. */
static bool delivery_list(const struct trainer *trainer, const struct local_update *update,
    Adtopk__RemoteUpdate *piece, zmq_msg_t *part)
{
    const uint64_t left = update->count - piece->first;
    const uint8_t *index = trainer->results + update->index_offset;
    const uint8_t *value = trainer->results + update->value_offset;

    piece->count = update->count;
    piece->sparse = true;
    piece->span = left < DELIVERY_ENTRIES ? left : DELIVERY_ENTRIES;
    return delivery_part(
        part, index + 4 * piece->first, 4 * piece->span, value + 4 * piece->first, 4 * piece->span);
}

/* How many of the elements from `first` on, at most to `end`, make a sparse piece; *count of them
 * are not +0. */
static uint64_t delivery_scan(const uint32_t *bits, uint64_t first, uint64_t end, uint32_t *count)
{
    uint64_t at = first;

    for (*count = 0; at < end && *count < DELIVERY_ENTRIES; at++) {
        *count += bits[at] != 0;
    }
    return at - first;
}

/* Elements: only those that are not +0 where that is shorter, as in an update that travelled
 * sparse. */
static bool delivery_elements(const struct trainer *trainer, const struct local_update *update,
    uint64_t numel, Adtopk__RemoteUpdate *piece, zmq_msg_t *part)
{
    const uint32_t *bits =
        (const uint32_t *)(const void *)(trainer->results + update->dense_offset);
    const uint64_t left = numel - piece->first;
    uint32_t count, *index, *value;

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

/* The next piece of the first update in the queue; true if it was sent. */
static bool delivery_update(struct trainer *trainer)
{
    struct trainer_tensor *tensor = &trainer->tensor[trainer->queue[trainer->taken]];
    const struct local_update *update =
        (const struct local_update *)(const void *)(trainer->results + tensor->update);
    Adtopk__RemoteUpdate piece = ADTOPK__REMOTE_UPDATE__INIT;
    Adtopk__RemoteReply reply = ADTOPK__REMOTE_REPLY__INIT;
    const bool list = (update->forms & LOCAL_FORM_LIST) != 0;
    zmq_msg_t part;
    bool made = false;

    piece.tensor = trainer->queue[trainer->taken];
    piece.step = trainer->step;
    piece.status =
        (uint32_t)(trainer->step_over && trainer->step_status != ADTOPK_OK ? trainer->step_status
                                                                           : tensor->status);
    piece.forms = update->forms;
    piece.first = trainer->first;
    reply.kind_case = ADTOPK__REMOTE_REPLY__KIND_UPDATE;
    reply.update = &piece;
    if (piece.status == ADTOPK_OK) {
        made = list ? delivery_list(trainer, update, &piece, &part)
                    : delivery_elements(trainer, update, tensor->numel, &piece, &part);
        if (!made) {
            return false; /* no memory now */
        }
    }
    if (!trainer_send(trainer, &reply, made ? &part : NULL)) {
        return false;
    }
    trainer->first += piece.span;
    if (!made || trainer->first == (list ? update->count : tensor->numel)) {
        trainer->first = 0;
        trainer->taken++;
    }
    return true;
}

/* ---- the end of a step, operations ---- */

static bool delivery_step(struct trainer *trainer)
{
    Adtopk__RemoteStep step = ADTOPK__REMOTE_STEP__INIT;
    Adtopk__RemoteReply reply = ADTOPK__REMOTE_REPLY__INIT;

    step.number = trainer->step;
    step.status = (uint32_t)trainer->step_status;
    reply.kind_case = ADTOPK__REMOTE_REPLY__KIND_STEP;
    reply.step = &step;
    if (!trainer_send(trainer, &reply, NULL)) {
        return false;
    }
    trainer->step++;
    trainer->queued = trainer->taken = 0;
    trainer->step_over = trainer->ended = false;
    return true;
}

static bool delivery_op(struct trainer *trainer)
{
    Adtopk__RemoteOpDone done = ADTOPK__REMOTE_OP_DONE__INIT;
    Adtopk__RemoteReply reply = ADTOPK__REMOTE_REPLY__INIT;
    const bool result = trainer->op_bytes > 0;
    zmq_msg_t part;

    done.number = trainer->op_number;
    reply.kind_case = ADTOPK__REMOTE_REPLY__KIND_OP_DONE;
    reply.op_done = &done;
    if (result &&
        !delivery_part(&part, trainer->results + trainer->op_result, trainer->op_bytes, NULL, 0)) {
        return false;
    }
    if (!trainer_send(trainer, &reply, result ? &part : NULL)) {
        return false;
    }
    trainer->op_running = trainer->op_done = false;
    return true;
}

static bool delivery_next(struct trainer *trainer)
{
    if (trainer->op_done) {
        return delivery_op(trainer);
    }
    if (trainer->taken < trainer->queued) {
        return delivery_update(trainer);
    }
    return trainer->step_over && delivery_step(trainer);
}

bool delivery_pump(struct trainer *trainer, unsigned budget)
{
    Adtopk__RemoteReply nothing = ADTOPK__REMOTE_REPLY__INIT;
    bool sent = false;

    while (budget > 0 && trainer->state == TRAINER_READY && trainer->results != NULL &&
           trainer->sent - trainer->acknowledged < REMOTE_WINDOW && delivery_next(trainer)) {
        sent = true;
        budget--;
    }
    if (trainer->state != TRAINER_ENDED &&
        trainer->received - trainer->answered >= REMOTE_ACKNOWLEDGE) {
        sent |= trainer_send(trainer, &nothing, NULL);
    }
    return sent;
}

/* ---- actions ---- */

/* Where everything lies, from the table at the start of the results: the daemon's own memory. */
static void delivery_take_layout(struct trainer *trainer)
{
    const struct local_results *table =
        (const struct local_results *)(const void *)trainer->results;

    trainer->op_gradient = table->op_gradient_offset;
    trainer->op_result = table->op_result_offset;
    for (uint32_t i = 0; i < trainer->tensors; i++) {
        trainer->tensor[i].gradient = table->tensor[i].gradient_offset;
        trainer->tensor[i].update = table->tensor[i].update_offset;
    }
}

static void delivery_ready(struct trainer *trainer, const struct action *action)
{
    Adtopk__LocalReady ready = ADTOPK__LOCAL_READY__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;
    struct error err;

    if (trainer->state != TRAINER_MAPPED) {
        return;
    }
    trainer->job = action->job;
    trainer->results = arena_results(trainer->remote, trainer->job);
    trainer->queue = malloc((trainer->tensors + 1) * sizeof *trainer->queue);
    if (trainer->results == NULL || trainer->queue == NULL) {
        /* The job failed in the turn in which it became ready; why comes with the next action. */
        (void)error_set(&err, trainer->results == NULL ? ADTOPK_ERR_STATE : ADTOPK_ERR_MEMORY,
            "the daemon's job has no results, or there is no memory to send them");
        trainer_judge(trainer, TRAINER_VERDICT_END, &err);
        return;
    }
    delivery_take_layout(trainer);
    trainer->step = action->number;
    ready.step = action->number;
    ready.operation = action->operation;
    ready.run = action->run;
    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_READY;
    reply.ready = &ready;
    trainer_move(trainer, TRAINER_READY);
    trainer_answer(trainer, &reply);
}

static void delivery_queue(struct trainer *trainer, const struct action *action)
{
    struct trainer_tensor *tensor = &trainer->tensor[action->tensor];

    if (trainer->state != TRAINER_READY || action->tensor >= trainer->tensors) {
        return;
    }
    if (tensor->delivered != action->number + 1) {
        tensor->delivered = action->number + 1;
        tensor->status = action->status;
        trainer->queue[trainer->queued++] = action->tensor;
    }
}

static void delivery_closed(struct trainer *trainer)
{
    Adtopk__LocalBye bye = ADTOPK__LOCAL_BYE__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;

    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_BYE;
    reply.bye = &bye;
    trainer->known = false;
    trainer_answer(trainer, &reply);
    trainer_lost(trainer, "");
}

void remote_apply(struct remote *remote, const struct action *action)
{
    struct trainer *trainer = trainer_find(remote, action->session);

    if (trainer == NULL || trainer->state == TRAINER_ENDED) {
        return;
    }
    switch (action->type) {
    case ACTION_READY: delivery_ready(trainer, action); break;
    case ACTION_DELIVERED: delivery_queue(trainer, action); break;
    case ACTION_STEP:
        trainer->step_over = true;
        trainer->step_status = action->status;
        break;
    case ACTION_OP_DONE: trainer->op_done = true; break;
    case ACTION_FAILED:
        trainer->known = false;
        trainer_end(trainer, action->error->code, action->error->text);
        break;
    case ACTION_CLOSED: delivery_closed(trainer); break;
    case ACTION_COMPUTE:
    case ACTION_POLICY:
    case ACTION_VERIFIED: break; /* not a rank's */
    }
}
