/* Checks the messages of remote trainers and passes them to the core as events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/remote/trainer.h"
#include "daemon/session/joining.h"
#include "proto/codec.h"
#include "proto/remote.h"

/* A request, and the part that came with it. */
struct intake {
    const Adtopk__RemoteRequest *request;
    const uint8_t *part;
    size_t part_size;
};

/* ---- sessions ---- */

/* Makes a session for the connection. If it cannot it tells the trainer why and returns NULL. */
static struct trainer *intake_new_session(
    struct remote *remote, struct gate_message *message, const char *key, uint32_t uid)
{
    const char *address = zmq_msg_gets(&message->header, "Peer-Address");
    const void *route = zmq_msg_data(&message->route);
    const size_t route_size = zmq_msg_size(&message->route);
    struct trainer *trainer = NULL;
    char text[ERROR_TEXT_SIZE], peer[SESSION_PEER_SIZE];

    (void)snprintf(peer, sizeof peer, "a process at %s", address != NULL ? address : "?");
    if (!door_admit(&remote->door, uid, text)) {
        door_refused(&remote->door, uid, peer, text);
        trainer_turn_away(remote, route, route_size, ADTOPK_ERR_DENIED, text);
    } else if ((trainer = trainer_create(remote, route, route_size, uid, peer)) == NULL) {
        static const char *const why = "the daemon has no memory for a session";

        door_refused(&remote->door, uid, peer, why);
        trainer_turn_away(remote, route, route_size, ADTOPK_ERR_MEMORY, why);
    } else {
        (void)snprintf(trainer->route.key, sizeof trainer->route.key, "%s", key);
    }
    return trainer;
}

/* Takes the first message of a connection. */
static void intake_open(struct remote *remote, struct gate_message *message,
    const Adtopk__LocalRequest *request, const char *key, uint32_t uid)
{
    struct trainer *trainer = intake_new_session(remote, message, key, uid);

    if (trainer != NULL) {
        trainer->route.received = 1;
        joining_take(&trainer->base, request);
    }
}

enum adtopk_status intake_add(
    struct session *session, const struct tensor_spec *spec, struct error *err)
{
    struct trainer *trainer = trainer_of(session);
    struct trainer_tensor *added;

    if (session->tensors == trainer->capacity) {
        const uint32_t capacity = trainer->capacity > 0 ? 2 * trainer->capacity : 64;
        struct trainer_tensor *grown = realloc(trainer->tensor, capacity * sizeof *grown);

        if (grown == NULL) {
            return error_set(err, ADTOPK_ERR_MEMORY, "no memory to register a tensor");
        }
        trainer->tensor = grown;
        trainer->capacity = capacity;
    }
    added = &trainer->tensor[session->tensors];
    *added = (struct trainer_tensor){.batch = session->lent, .numel = 1};
    for (unsigned i = 0; i < spec->shape.dims; i++) {
        added->numel *= spec->shape.size[i]; /* the core has checked the product */
    }
    added->bytes = added->numel * (spec->dtype == DTYPE_F32 ? 4 : 2);
    return ADTOPK_OK;
}

/* ---- training ---- */

/* Raises an event that the library checks before it sends the message. So an event that the core
 * refuses does not come from the library. */
static void intake_raise(struct trainer *trainer, struct event *event)
{
    struct error err;

    if (session_raise(&trainer->base, event, &err) != ADTOPK_OK) {
        session_judge(&trainer->base, VERDICT_REFUSE, &err);
    }
}

static enum adtopk_status intake_check_step(
    const struct trainer *trainer, const char *what, uint64_t step, struct error *err)
{
    if (step != trainer->pushes.step || trainer->pushes.ended || trainer->updates.step_over) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "%s in step %llu, and step %llu is %s", what,
            (unsigned long long)step, (unsigned long long)trainer->pushes.step,
            trainer->pushes.ended || trainer->updates.step_over ? "ended" : "open");
    }
    return ADTOPK_OK;
}

/* Checks a piece before a byte of it is written: the core reads a tensor once it is pushed. */
static enum adtopk_status intake_check_piece(
    const struct trainer *trainer, const Adtopk__RemotePush *push, size_t size, struct error *err)
{
    const struct trainer_tensor *tensor;
    uint64_t expected;

    if (intake_check_step(trainer, "a push", push->step, err) != ADTOPK_OK) {
        return err->code;
    }
    if (push->tensor >= trainer->laid) { /* tensors of later batches have no arena yet */
        return error_set(err, ADTOPK_ERR_PROTOCOL, "a push of tensor %u, and there are %u",
            push->tensor, trainer->laid);
    }
    tensor = &trainer->tensor[push->tensor];
    if (tensor->pushed == push->step + 1) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "tensor %u was pushed twice in step %llu",
            push->tensor, (unsigned long long)push->step);
    }
    expected = tensor->begun == push->step + 1 ? tensor->received : 0;
    if (push->offset != expected) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "bytes of tensor %u from %llu on, and those from %llu on come next", push->tensor,
            (unsigned long long)push->offset, (unsigned long long)expected);
    }
    if (size == 0 || size > REMOTE_PIECE || size > tensor->bytes - expected) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "a piece of %zu bytes at %llu of tensor %u, which has %llu", size,
            (unsigned long long)expected, push->tensor, (unsigned long long)tensor->bytes);
    }
    return ADTOPK_OK;
}

static enum adtopk_status intake_push(
    struct trainer *trainer, const struct intake *intake, struct error *err)
{
    const Adtopk__RemotePush *push = intake->request->push;
    struct event event = {.type = EVENT_RANK_PUSH,
        .step = {.tensor = push->tensor, .number = push->step, .scale = push->scale}};
    struct trainer_tensor *tensor;

    if (intake_check_piece(trainer, push, intake->part_size, err) != ADTOPK_OK) {
        return err->code;
    }
    tensor = &trainer->tensor[push->tensor];
    memcpy((uint8_t *)trainer->gradients[tensor->batch].bytes + tensor->gradient + push->offset,
        intake->part, intake->part_size);
    tensor->begun = push->step + 1;
    tensor->received = push->offset + intake->part_size;
    if (tensor->received == tensor->bytes) {
        tensor->pushed = push->step + 1;
        intake_raise(trainer, &event);
    }
    return ADTOPK_OK;
}

static enum adtopk_status intake_step_end(
    struct trainer *trainer, const Adtopk__RemoteStepEnd *end, struct error *err)
{
    struct event event = {.type = EVENT_RANK_STEP_END, .step = {.number = end->step}};

    if (intake_check_step(trainer, "an end", end->step, err) != ADTOPK_OK) {
        return err->code;
    }
    trainer->pushes.ended = true;
    intake_raise(trainer, &event);
    return ADTOPK_OK;
}

static void intake_wait(struct trainer *trainer, const Adtopk__RemoteWait *wait)
{
    struct event event = {
        .type = EVENT_RANK_WAIT, .step = {.tensor = wait->tensor, .number = wait->step}};

    intake_raise(trainer, &event);
}

static enum adtopk_status intake_op(
    struct trainer *trainer, const struct intake *intake, struct error *err)
{
    const Adtopk__RemoteOp *op = intake->request->op;
    const bool root = op->root == trainer->base.rank;
    const bool gives = op->kind == OP_ALLREDUCE || (op->kind == OP_BROADCAST && root);
    struct event event = {.type = EVENT_RANK_OP,
        .op = {.number = op->number,
            .kind = (enum op_kind)op->kind,
            .root = op->root,
            .size = op->size}};

    if (op->kind >= OP_KIND_COUNT || op->size > CORE_OP_SIZE || trainer->op.running ||
        intake->part_size != (gives ? op->size : 0)) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "operation %u with %u bytes, %zu of them here%s",
            op->kind, op->size, intake->part_size,
            trainer->op.running ? ", before the last one was done" : "");
    }
    if (intake->part_size > 0) {
        memcpy((uint8_t *)trainer->gradients[0].bytes + trainer->op.gradient, intake->part,
            intake->part_size);
    }
    trainer->op.running = true;
    trainer->op.number = op->number;
    trainer->op.bytes =
        op->kind == OP_ALLREDUCE || (op->kind == OP_BROADCAST && !root) ? op->size : 0;
    if (trainer->op.next != 0 && op->number == trainer->op.next - 1) {
        trainer->op.done = true; /* before its daemon was killed: the results still have it */
    } else {
        intake_raise(trainer, &event);
    }
    return ADTOPK_OK;
}

/* ---- receiving ---- */

static enum adtopk_status intake_dispatch(
    struct trainer *trainer, const struct intake *intake, struct error *err)
{
    const Adtopk__RemoteRequest *request = intake->request;
    const bool brings = request->kind_case == ADTOPK__REMOTE_REQUEST__KIND_PUSH ||
                        request->kind_case == ADTOPK__REMOTE_REQUEST__KIND_OP;
    struct error ended;

    if (intake->part_size > 0 && !brings) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "message %d came with a part of %zu bytes",
            (int)request->kind_case, intake->part_size);
    }
    if (request->kind_case == ADTOPK__REMOTE_REQUEST__KIND_REQUEST) {
        joining_take(&trainer->base, request->request);
        return ADTOPK_OK;
    }
    if (trainer->base.state == SESSION_READY && trainer->gradients[0].bytes == NULL) {
        /* The job has ended and taken the arenas back. The core's reason is on its way. */
        (void)error_set(&ended, ADTOPK_ERR_STATE, "the job has ended");
        session_judge(&trainer->base, VERDICT_END, &ended);
        return ADTOPK_OK;
    }
    if (trainer->base.state != SESSION_READY) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "message %d came in state \"%s\" of its session",
            (int)request->kind_case, protocol_name(trainer->base.state));
    }
    switch (request->kind_case) {
    case ADTOPK__REMOTE_REQUEST__KIND_PUSH: return intake_push(trainer, intake, err);
    case ADTOPK__REMOTE_REQUEST__KIND_STEP_END:
        return intake_step_end(trainer, request->step_end, err);
    case ADTOPK__REMOTE_REQUEST__KIND_WAIT: intake_wait(trainer, request->wait); return ADTOPK_OK;
    default: return intake_op(trainer, intake, err);
    }
}

/* Counts a message. Error: a message is missing, or the trainer acknowledges more than the daemon
 * sent. */
static enum adtopk_status intake_count(
    struct trainer *trainer, const Adtopk__RemoteRequest *request, struct error *err)
{
    const bool counts = request->kind_case != ADTOPK__REMOTE_REQUEST__KIND__NOT_SET;

    if (request->sequence != trainer->route.received + (counts ? 1 : 0)) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "message %llu came after message %llu",
            (unsigned long long)request->sequence, (unsigned long long)trainer->route.received);
    }
    if (request->acknowledged < trainer->route.acknowledged ||
        request->acknowledged > trainer->route.sent) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "message %llu was taken, it says, after %llu and of %llu",
            (unsigned long long)request->acknowledged,
            (unsigned long long)trainer->route.acknowledged,
            (unsigned long long)trainer->route.sent);
    }
    trainer->route.received = request->sequence;
    trainer->route.acknowledged = request->acknowledged;
    return ADTOPK_OK;
}

static void intake_of_session(
    struct trainer *trainer, struct gate_message *message, const Adtopk__RemoteRequest *request)
{
    struct intake intake = {.request = request,
        .part = zmq_msg_data(&message->part),
        .part_size = zmq_msg_size(&message->part)};
    struct error err = {.code = ADTOPK_OK};

    trainer->remote->stats.received++;
    if (intake_count(trainer, request, &err) == ADTOPK_OK &&
        request->kind_case != ADTOPK__REMOTE_REQUEST__KIND__NOT_SET &&
        trainer->base.state < SESSION_LEAVING) {
        (void)intake_dispatch(trainer, &intake, &err);
    }
    if (err.code != ADTOPK_OK) {
        session_refuse(&trainer->base, &err);
    }
}

static bool intake_is_opening(const Adtopk__RemoteRequest *request)
{
    return request != NULL && request->sequence == 1 &&
           request->kind_case == ADTOPK__REMOTE_REQUEST__KIND_REQUEST &&
           request->request->kind_case == ADTOPK__LOCAL_REQUEST__KIND_OPEN;
}

/* Finds the sender of the message: the key (or "") and the user. False if nobody may send it. */
static bool intake_identify(
    struct remote *remote, struct gate_message *message, const char **key, uint32_t *uid)
{
    uint16_t who;

    *key = "";
    *uid = remote->config.owner;
    if (remote->gate.zap.socket == NULL) {
        return true;
    }
    if (!message->has_header || (who = gate_who(&remote->gate, message)) == GATE_NOBODY) {
        return false;
    }
    *key = zmq_msg_gets(&message->header, "User-Id");
    *uid = remote->gate.uid[who];
    return true;
}

/* Whether the trainer gives up while the answer to a request that was refused is on its way. */
static bool intake_gives_up(const struct trainer *trainer, const Adtopk__RemoteRequest *request)
{
    return trainer->base.verdict == VERDICT_ERROR && request != NULL &&
           request->kind_case == ADTOPK__REMOTE_REQUEST__KIND_REQUEST &&
           request->request->kind_case == ADTOPK__LOCAL_REQUEST__KIND_LEAVE;
}

/* A message of a trainer with a session. If it could not be read, request is NULL, and `why` says
 * why. */
static void intake_of_trainer(struct trainer *trainer, struct gate_message *message,
    const Adtopk__RemoteRequest *request, const struct error *why)
{
    if (intake_gives_up(trainer, request)) {
        trainer->base.verdict = VERDICT_NONE; /* nobody reads that answer */
    }
    if (trainer->base.state >= SESSION_ENDED || trainer->base.verdict != VERDICT_NONE) {
        /* The message about the session's end is on its way. */
        trainer->remote->stats.strays++;
    } else if (request == NULL) {
        session_refuse(&trainer->base, why);
    } else {
        intake_of_session(trainer, message, request);
    }
}

void intake_take(struct remote *remote, struct gate_message *message)
{
    struct trainer *trainer =
        trainer_of_route(remote, zmq_msg_data(&message->route), zmq_msg_size(&message->route));
    Adtopk__RemoteRequest *request = NULL;
    struct error err = {.code = ADTOPK_ERR_PROTOCOL, .text = "a message has too many parts"};
    const char *key;
    uint32_t uid;

    if (!intake_identify(remote, message, &key, &uid)) {
        remote->stats.strays++;
        return;
    }
    if (trainer != NULL && (trainer->base.uid != uid || strcmp(trainer->route.key, key) != 0)) {
        /* Only one connection has a routing id at a time, so the session's connection is gone. */
        session_lost(&trainer->base, "lost its connection, and another one took its routing id");
        remote->stats.strays++;
        return;
    }
    if (message->whole) {
        request = (Adtopk__RemoteRequest *)(void *)codec_unpack(&adtopk__remote_request__descriptor,
            zmq_msg_data(&message->header), zmq_msg_size(&message->header), REMOTE_HEADER_MAX,
            &err);
    }
    if (trainer != NULL) {
        intake_of_trainer(trainer, message, request, &err);
    } else if (intake_is_opening(request)) {
        intake_open(remote, message, request->request, key, uid);
    } else if (err.code == ADTOPK_ERR_MEMORY) {
        trainer_turn_away(remote, zmq_msg_data(&message->route), zmq_msg_size(&message->route),
            err.code, err.text);
    } else {
        remote->stats.strays++;
    }
    if (request != NULL) {
        codec_free(&request->base);
    }
}
