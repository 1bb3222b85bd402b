/* What remote trainers say: checked, and told to the core as events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/local/check.h"
#include "daemon/remote/trainer.h"
#include "proto/codec.h"
#include "proto/remote.h"

/* A request, and the part that came with it. */
struct intake {
    const Adtopk__RemoteRequest *request;
    const uint8_t *part;
    size_t part_size;
};

/* ---- open ---- */

/* Sessions that the user may hold: nobody but root can lock all others out. */
static bool intake_has_room(const struct remote *remote, uint32_t uid, char *text, size_t size)
{
    const uint32_t all = remote->config.max_sessions;
    const uint32_t share = uid == 0 ? all : all - all / 4;
    uint32_t held = 0;

    for (const struct trainer *one = remote->trainers; one != NULL; one = one->next) {
        held += one->uid == uid;
    }
    (void)snprintf(text, size, "the daemon serves %u remote trainers, %u of them yours, its limit",
        remote->count, held);
    return remote->count < all && held < share;
}

static enum adtopk_status intake_try_open(
    struct trainer *trainer, const Adtopk__LocalOpen *open, struct error *err)
{
    struct event event;
    enum adtopk_status status = check_open(open, REMOTE_VERSION, trainer->uid, &event, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    trainer->rank = open->rank;
    status = trainer_event(trainer, &event, err);
    trainer->known = status == ADTOPK_OK;
    return status;
}

/* A session for the connection, or NULL, and it is told why. */
static struct trainer *intake_new_session(
    struct remote *remote, struct gate_message *message, const char *key, uint32_t uid)
{
    const char *peer = zmq_msg_gets(&message->header, "Peer-Address");
    const void *route = zmq_msg_data(&message->route);
    const size_t route_size = zmq_msg_size(&message->route);
    struct trainer *trainer = NULL;
    char text[ERROR_TEXT_SIZE];

    if (!intake_has_room(remote, uid, text, sizeof text)) {
        trainer_turn_away(remote, route, route_size, ADTOPK_ERR_DENIED, text);
    } else if ((trainer = trainer_create(remote, route, route_size)) == NULL) {
        trainer_turn_away(
            remote, route, route_size, ADTOPK_ERR_MEMORY, "the daemon has no memory for a session");
    }
    if (trainer == NULL) {
        remote->stats.refused++;
        return NULL;
    }
    remote->stats.opened++;
    trainer->uid = uid;
    (void)snprintf(trainer->peer, sizeof trainer->peer, "%s", peer != NULL ? peer : "?");
    (void)snprintf(trainer->key, sizeof trainer->key, "%s", key);
    return trainer;
}

/* The first message of a connection. */
static void intake_open(struct remote *remote, struct gate_message *message,
    const Adtopk__LocalOpen *open, const char *key, uint32_t uid)
{
    Adtopk__LocalOpened opened = ADTOPK__LOCAL_OPENED__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;
    struct trainer *trainer = intake_new_session(remote, message, key, uid);
    struct error err = {.code = ADTOPK_OK};
    char version[] = ADTOPK_VERSION;

    if (trainer == NULL) {
        return;
    }
    trainer->received = 1;
    if (intake_try_open(trainer, open, &err) != ADTOPK_OK) {
        trainer_end(trainer, err.code, err.text);
        return;
    }
    opened.version = version;
    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_OPENED;
    reply.opened = &opened;
    trainer_answer(trainer, &reply);
}

/* ---- register, commit, mapped, leave: as on the same node ---- */

static enum adtopk_status intake_add_tensor(
    struct trainer *trainer, const struct tensor_spec *spec, struct error *err)
{
    struct trainer_tensor *added;

    if (trainer->tensors == trainer->capacity) {
        const uint32_t capacity = trainer->capacity > 0 ? 2 * trainer->capacity : 64;
        struct trainer_tensor *grown = realloc(trainer->tensor, capacity * sizeof *grown);

        if (grown == NULL) {
            return error_set(err, ADTOPK_ERR_MEMORY, "no memory to register a tensor");
        }
        trainer->tensor = grown;
        trainer->capacity = capacity;
    }
    added = &trainer->tensor[trainer->tensors++];
    *added = (struct trainer_tensor){.numel = 1};
    for (unsigned i = 0; i < spec->shape.dims; i++) {
        added->numel *= spec->shape.size[i]; /* the core has checked the product */
    }
    added->bytes = added->numel * (spec->dtype == DTYPE_F32 ? 4 : 2);
    return ADTOPK_OK;
}

static enum adtopk_status intake_try_register(
    struct trainer *trainer, const Adtopk__LocalTensor *tensor, struct error *err)
{
    struct tensor_spec spec;
    struct event event = {.type = EVENT_RANK_REGISTER, .spec = &spec};
    enum adtopk_status status;

    if (trainer->tensors == CORE_MAX_TENSORS) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "tensor \"%.100s\" is over the limit of %d",
            tensor->name, CORE_MAX_TENSORS);
    }
    status = check_tensor(tensor, &spec, err);
    if (status == ADTOPK_OK) {
        status = trainer_event(trainer, &event, err);
    }
    return status == ADTOPK_OK ? intake_add_tensor(trainer, &spec, err) : status;
}

/* Nobody waits for an answer to a registration: what is wrong with it is told at commit. */
static void intake_register(struct trainer *trainer, const Adtopk__LocalRegister *batch)
{
    struct error err;

    for (size_t i = 0; i < batch->n_tensors && trainer->refused.code == ADTOPK_OK; i++) {
        if (intake_try_register(trainer, batch->tensors[i], &err) != ADTOPK_OK) {
            trainer->refused = err;
        }
    }
}

static void intake_commit(struct trainer *trainer)
{
    struct event event = {.type = EVENT_RANK_COMMIT};
    Adtopk__LocalArena arena = ADTOPK__LOCAL_ARENA__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;
    struct error err = trainer->refused;

    if (err.code != ADTOPK_OK || trainer_event(trainer, &event, &err) != ADTOPK_OK) {
        segment_drop(&trainer->gradients);
        trainer_judge(trainer, TRAINER_VERDICT_ERROR, &err);
        return;
    }
    arena.size = trainer->gradients.size;
    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_ARENA;
    reply.arena = &arena;
    trainer_move(trainer, TRAINER_ARENA);
    trainer_answer(trainer, &reply);
}

/* Mapped and leave: an event, and the state that follows. */
static void intake_simple(struct trainer *trainer, enum event_type type, enum trainer_state state)
{
    struct event event = {.type = type};
    struct error err;

    if (trainer_event(trainer, &event, &err) != ADTOPK_OK) {
        trainer_judge(trainer, TRAINER_VERDICT_END, &err);
        return;
    }
    if (type == EVENT_RANK_LEAVE) {
        trainer->known = false; /* it may hang up now */
    }
    trainer_move(trainer, state);
}

static bool intake_allowed(enum trainer_state state, Adtopk__LocalRequest__KindCase kind)
{
    switch (kind) {
    case ADTOPK__LOCAL_REQUEST__KIND_REGISTER:
    case ADTOPK__LOCAL_REQUEST__KIND_COMMIT: return state == TRAINER_OPEN;
    case ADTOPK__LOCAL_REQUEST__KIND_MAPPED: return state == TRAINER_ARENA;
    case ADTOPK__LOCAL_REQUEST__KIND_LEAVE: return state <= TRAINER_READY;
    default: return false;
    }
}

static enum adtopk_status intake_request(
    struct trainer *trainer, const Adtopk__LocalRequest *request, struct error *err)
{
    if (!intake_allowed(trainer->state, request->kind_case)) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "request %d came in state %d of its session",
            (int)request->kind_case, (int)trainer->state);
    }
    switch (request->kind_case) {
    case ADTOPK__LOCAL_REQUEST__KIND_REGISTER: intake_register(trainer, request->register_); break;
    case ADTOPK__LOCAL_REQUEST__KIND_COMMIT: intake_commit(trainer); break;
    case ADTOPK__LOCAL_REQUEST__KIND_MAPPED:
        intake_simple(trainer, EVENT_RANK_MAPPED, TRAINER_MAPPED);
        break;
    default: intake_simple(trainer, EVENT_RANK_LEAVE, TRAINER_LEAVING); break;
    }
    return ADTOPK_OK;
}

/* ---- training ---- */

/* Raises the event of something that the library checks before it sends it: what the core refuses
 * here, the library did not write. */
static void intake_raise(struct trainer *trainer, struct event *event)
{
    struct error err;

    if (trainer_event(trainer, event, &err) != ADTOPK_OK) {
        trainer_judge(trainer, TRAINER_VERDICT_REFUSE, &err);
    }
}

static enum adtopk_status intake_check_step(
    const struct trainer *trainer, const char *what, uint64_t step, struct error *err)
{
    if (step != trainer->step || trainer->ended || trainer->step_over) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "%s in step %llu, and step %llu is %s", what,
            (unsigned long long)step, (unsigned long long)trainer->step,
            trainer->ended || trainer->step_over ? "ended" : "open");
    }
    return ADTOPK_OK;
}

/* A piece is checked before a byte of it is written: what was pushed, the core reads. */
static enum adtopk_status intake_check_piece(
    const struct trainer *trainer, const Adtopk__RemotePush *push, size_t size, struct error *err)
{
    const struct trainer_tensor *tensor;
    const uint64_t expected = trainer->pushed_bytes;

    if (intake_check_step(trainer, "a push", push->step, err) != ADTOPK_OK) {
        return err->code;
    }
    if (push->tensor >= trainer->tensors) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "a push of tensor %u, and there are %u",
            push->tensor, trainer->tensors);
    }
    tensor = &trainer->tensor[push->tensor];
    if (tensor->pushed == push->step + 1) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "tensor %u was pushed twice in step %llu",
            push->tensor, (unsigned long long)push->step);
    }
    if (push->offset != expected || (expected > 0 && push->tensor != trainer->pushing)) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "bytes of tensor %u from %llu on, and those from %llu on of tensor %u come next",
            push->tensor, (unsigned long long)push->offset, (unsigned long long)expected,
            expected > 0 ? trainer->pushing : push->tensor);
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
    struct event event = {
        .type = EVENT_RANK_PUSH, .step = {.tensor = push->tensor, .number = push->step}};
    struct trainer_tensor *tensor;

    if (intake_check_piece(trainer, push, intake->part_size, err) != ADTOPK_OK) {
        return err->code;
    }
    tensor = &trainer->tensor[push->tensor];
    memcpy((uint8_t *)trainer->gradients.bytes + tensor->gradient + push->offset, intake->part,
        intake->part_size);
    trainer->pushing = push->tensor;
    trainer->pushed_bytes += intake->part_size;
    if (trainer->pushed_bytes == tensor->bytes) {
        trainer->pushed_bytes = 0;
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
    if (trainer->pushed_bytes > 0) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "step %llu ends in the middle of a push of tensor %u", (unsigned long long)end->step,
            trainer->pushing);
    }
    trainer->ended = true;
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
    const bool root = op->root == trainer->rank;
    const bool gives = op->kind == OP_ALLREDUCE || (op->kind == OP_BROADCAST && root);
    struct event event = {.type = EVENT_RANK_OP,
        .op = {.number = op->number,
            .kind = (enum op_kind)op->kind,
            .root = op->root,
            .size = op->size}};

    if (op->kind >= OP_KIND_COUNT || op->size > CORE_OP_SIZE || trainer->op_running ||
        intake->part_size != (gives ? op->size : 0)) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "operation %u with %u bytes, %zu of them here%s",
            op->kind, op->size, intake->part_size,
            trainer->op_running ? ", before the last one was done" : "");
    }
    if (intake->part_size > 0) {
        memcpy((uint8_t *)trainer->gradients.bytes + trainer->op_gradient, intake->part,
            intake->part_size);
    }
    trainer->op_running = true;
    trainer->op_number = op->number;
    trainer->op_bytes =
        op->kind == OP_ALLREDUCE || (op->kind == OP_BROADCAST && !root) ? op->size : 0;
    intake_raise(trainer, &event);
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
        return intake_request(trainer, request->request, err);
    }
    if (trainer->state == TRAINER_READY && trainer->gradients.bytes == NULL) {
        /* The job has ended and taken them back; the core's reason is on its way. */
        (void)error_set(&ended, ADTOPK_ERR_STATE, "the job has ended");
        trainer_judge(trainer, TRAINER_VERDICT_END, &ended);
        return ADTOPK_OK;
    }
    if (trainer->state != TRAINER_READY) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "message %d came in state %d of its session",
            (int)request->kind_case, (int)trainer->state);
    }
    switch (request->kind_case) {
    case ADTOPK__REMOTE_REQUEST__KIND_PUSH: return intake_push(trainer, intake, err);
    case ADTOPK__REMOTE_REQUEST__KIND_STEP_END:
        return intake_step_end(trainer, request->step_end, err);
    case ADTOPK__REMOTE_REQUEST__KIND_WAIT: intake_wait(trainer, request->wait); return ADTOPK_OK;
    default: return intake_op(trainer, intake, err);
    }
}

/* Counts a message; an error if one is missing, or more is said to be taken than was sent. */
static enum adtopk_status intake_count(
    struct trainer *trainer, const Adtopk__RemoteRequest *request, struct error *err)
{
    const bool counts = request->kind_case != ADTOPK__REMOTE_REQUEST__KIND__NOT_SET;

    if (request->sequence != trainer->received + (counts ? 1 : 0)) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "message %llu came after message %llu",
            (unsigned long long)request->sequence, (unsigned long long)trainer->received);
    }
    if (request->acknowledged < trainer->acknowledged || request->acknowledged > trainer->sent) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "message %llu was taken, it says, after %llu and of %llu",
            (unsigned long long)request->acknowledged, (unsigned long long)trainer->acknowledged,
            (unsigned long long)trainer->sent);
    }
    trainer->received = request->sequence;
    trainer->acknowledged = request->acknowledged;
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
        trainer->state < TRAINER_LEAVING) {
        (void)intake_dispatch(trainer, &intake, &err);
    }
    if (err.code != ADTOPK_OK) {
        trainer_refuse(trainer, &err);
    }
}

static bool intake_is_opening(const Adtopk__RemoteRequest *request)
{
    return request != NULL && request->sequence == 1 &&
           request->kind_case == ADTOPK__REMOTE_REQUEST__KIND_REQUEST &&
           request->request->kind_case == ADTOPK__LOCAL_REQUEST__KIND_OPEN;
}

/* Who sent the message: the key (or "") and the user. False if nobody may send it. */
static bool intake_identify(
    struct remote *remote, struct gate_message *message, const char **key, uint32_t *uid)
{
    uint16_t who;

    *key = "";
    *uid = remote->config.owner;
    if (remote->gate.zap.socket == NULL) {
        return true;
    }
    if (!message->whole || (who = gate_who(&remote->gate, message)) == GATE_NOBODY) {
        return false;
    }
    *key = zmq_msg_gets(&message->header, "User-Id");
    *uid = remote->gate.uid[who];
    return true;
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
    if (trainer != NULL && (trainer->uid != uid || strcmp(trainer->key, key) != 0)) {
        /* Only one connection has a routing id at a time: the session's is gone. */
        trainer_lost(trainer, "its connection broke, and another one took its routing id");
        remote->stats.strays++;
        return;
    }
    if (message->whole) {
        request = (Adtopk__RemoteRequest *)(void *)codec_unpack(&adtopk__remote_request__descriptor,
            zmq_msg_data(&message->header), zmq_msg_size(&message->header), REMOTE_HEADER_MAX,
            &err);
    }
    if (trainer != NULL &&
        (trainer->state == TRAINER_ENDED || trainer->verdict != TRAINER_VERDICT_NONE)) {
        remote->stats.strays++; /* its end is on its way to it */
    } else if (trainer != NULL && request == NULL) {
        trainer_refuse(trainer, &err);
    } else if (trainer != NULL) {
        intake_of_session(trainer, message, request);
    } else if (intake_is_opening(request)) {
        intake_open(remote, message, request->request->open, key, uid);
    } else {
        remote->stats.strays++;
    }
    if (request != NULL) {
        codec_free(&request->base);
    }
}
