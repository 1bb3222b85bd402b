#include "daemon/session/joining.h"

#include <assert.h>
#include <string.h>

#include "daemon/session/check.h"
#include "proto/local.h"

/* ---- open ---- */

static enum adtopk_status joining_check_open(
    struct session *session, const Adtopk__LocalOpen *open, struct error *err)
{
    struct event event;
    const enum adtopk_status status =
        check_open(open, session->door->connection->version, session->uid, &event, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    event.open.pid = session->pid;
    event.open.returns = session->door->connection->returns;
    event.open.here = session->door->connection->here;
    if (session_raise(session, &event, err) != ADTOPK_OK) {
        return err->code;
    }
    session->key = event.open.key;
    return ADTOPK_OK;
}

static void joining_open(struct session *session, const Adtopk__LocalOpen *open)
{
    const uint64_t commit_ms = session->door->doors->limits.commit_ms;
    Adtopk__LocalOpened opened = ADTOPK__LOCAL_OPENED__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;
    char version[] = ADTOPK_VERSION;
    struct error err;

    if (joining_check_open(session, open, &err) != ADTOPK_OK) {
        session_end(session, err.code, err.text);
        return;
    }
    session->known = true;
    session->rank = open->rank;
    session->brings = open->batches;
    session->abilities = open->abilities;
    session->comes_back = open->comes_back;
    session->step = open->run != 0 ? open->first_step : UINT64_MAX;
    session->deadline_ms = commit_ms > 0 ? uv_now(session->door->loop) + commit_ms : UINT64_MAX;
    session_move(session, SESSION_OPEN);
    opened.version = version;
    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_OPENED;
    reply.opened = &opened;
    session_send(session, &reply);
}

/* ---- register ---- */

/* Whether the rank's gradients can lie where it says. */
static enum adtopk_status joining_place(
    struct session *session, const Adtopk__LocalTensor *tensor, struct error *err)
{
    const struct connection *connection = session->door->connection;
    const bool on_gpu = tensor->memory != 0;

    if (connection->place != NULL) {
        return connection->place(session, tensor->name, on_gpu ? tensor->device : NULL, err);
    }
    return !on_gpu ? ADTOPK_OK
                   : error_set(err, ADTOPK_ERR_ARGUMENT,
                         "tensor \"%s\" is in a GPU's memory: a daemon takes such gradients from "
                         "trainers on its own machine only",
                         tensor->name);
}

static enum adtopk_status joining_add(
    struct session *session, const Adtopk__LocalTensor *tensor, struct error *err)
{
    struct tensor_spec spec;
    struct event event = {.type = EVENT_RANK_REGISTER, .spec = &spec};
    enum adtopk_status status;

    if (session->tensors == CORE_MAX_TENSORS) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "tensor \"%.100s\" is over the limit of %d",
            tensor->name, CORE_MAX_TENSORS);
    }
    status = check_tensor(tensor, &spec, err);
    if (status == ADTOPK_OK) {
        spec.stays = spec.on_gpu && (session->abilities & LOCAL_CAN_RETURN) == 0;
        status = joining_place(session, tensor, err);
    }
    if (status == ADTOPK_OK && spec.shown_on_gpu != CORE_SHOWN_NOT && session->comes_back &&
        (session->abilities & LOCAL_CAN_FOLLOW) == 0) {
        status = error_set(err, ADTOPK_ERR_STATE,
            "with a client library of an earlier release no process comes back that sees updates "
            "on a GPU");
    }
    if (status == ADTOPK_OK) {
        status = session_raise(session, &event, err);
    }
    return status == ADTOPK_OK ? session->door->connection->add(session, &spec, err) : status;
}

/* A trainer does not wait for an answer to a registration. If one is refused, the answer to the
 * commit says why. */
static void joining_register(struct session *session, const Adtopk__LocalRegister *batch)
{
    struct error err;

    for (size_t i = 0; i < batch->n_tensors && session->refused.code == ADTOPK_OK; i++) {
        if (joining_add(session, batch->tensors[i], &err) != ADTOPK_OK) {
            session->refused = err;
        } else {
            session->tensors++;
        }
    }
}

/* ---- commit ---- */

void joining_wait(struct session *session)
{
    session_move(session, SESSION_RESERVING);
}

static void joining_begin_commit(struct session *session)
{
    const struct connection *connection = session->door->connection;

    if (session->refused.code != ADTOPK_OK) {
        session_judge(session, VERDICT_ERROR, &session->refused);
    } else if (connection->reserve == NULL || !connection->reserve(session)) {
        joining_commit(session);
    }
}

/* Handles a commit that the core refused: the client may register and commit again. One that
 * returns may not, because the core has arenas of it. */
static void joining_refused(struct session *session, const struct error *why)
{
    if (session->brings > 1 && session->batches == 0) {
        session_judge(session, VERDICT_END, why);
        return;
    }
    if (session->batches == 0) {
        session_take_back(session->door->doors, session->id);
    }
    if (session->state == SESSION_RESERVING) {
        session_move(session, session->batches == 0 ? SESSION_OPEN : SESSION_READY);
    }
    session_judge(session, VERDICT_ERROR, why);
}

void joining_commit(struct session *session)
{
    struct event event = {.type = EVENT_RANK_COMMIT};
    Adtopk__LocalArena arena = ADTOPK__LOCAL_ARENA__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;
    struct error err;

    if (session_raise(session, &event, &err) != ADTOPK_OK) {
        joining_refused(session, &err);
        return;
    }
    assert(session->lent > session->batches);
    session_move(session, SESSION_ARENA);
    arena.size = session->arena_size;
    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_ARENA;
    reply.arena = &arena;
    session_send(session, &reply);
}

/* ---- mapped, leave ---- */

static void joining_mapped(struct session *session)
{
    const struct connection *connection = session->door->connection;
    struct event event = {.type = EVENT_RANK_MAPPED};
    struct error err;

    if (session->lent == 0) {
        /* The job has ended meanwhile and taken the arena back. The core's reason is on its way. */
        (void)error_set(&err, ADTOPK_ERR_STATE, "the job has ended");
        session_judge(session, VERDICT_END, &err);
    } else if (connection->seal != NULL && connection->seal(session, &err) != ADTOPK_OK) {
        session_refuse(session, &err);
    } else if (session_raise(session, &event, &err) != ADTOPK_OK) {
        session_judge(session, VERDICT_END, &err);
    } else {
        session_move(session, session->lent < session->brings ? SESSION_OPEN : SESSION_MAPPED);
    }
}

static void joining_leave(struct session *session)
{
    struct event event = {.type = EVENT_RANK_LEAVE};
    struct error err;

    if (session->door->connection->drain != NULL) {
        session->door->connection->drain(session);
    }
    if (session->state >= SESSION_LEAVING || session->verdict != VERDICT_NONE) {
        return;
    }
    if (session_raise(session, &event, &err) != ADTOPK_OK) {
        session_judge(session, VERDICT_END, &err);
        return;
    }
    session->known = false; /* from now on the client may hang up */
    session_move(session, SESSION_LEAVING);
}

_Static_assert((int)KEEP_SECTIONS == (int)LOCAL_KEEP_SECTIONS &&
                   (int)KEEP_ELEMENTS == (int)LOCAL_KEEP_ELEMENTS,
    "sections have one number in messages and events");

/* ---- reading residuals ---- */

static void joining_residual(struct session *session, const Adtopk__LocalResidual *asked)
{
    float values[CORE_READ_STEP];
    struct event event = {
        .type = EVENT_RANK_READ, .read = {asked->tensor, asked->first, asked->count, values}};
    Adtopk__LocalPart part = ADTOPK__LOCAL_PART__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;
    struct error err;
    const enum adtopk_status status = session_raise(session, &event, &err);

    if (status != ADTOPK_OK && status != ADTOPK_PENDING) {
        session_judge(session, VERDICT_ERROR, &err);
        return;
    }
    part.values.data = (uint8_t *)values;
    part.values.len = status == ADTOPK_OK ? asked->count * sizeof values[0] : 0;
    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_PART;
    part.number = asked->number;
    reply.part = &part;
    session_send(session, &reply);
}

/* ---- checkpoints ---- */

static void joining_answer_keep(struct session *session, const Adtopk__LocalKeep *asked,
    const struct event_keep *keep, bool taken)
{
    Adtopk__LocalPart part = ADTOPK__LOCAL_PART__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;

    part.number = asked->number;
    part.taken = taken;
    part.values.data = keep->bytes;
    part.values.len = taken && !keep->writes ? keep->size : 0;
    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_PART;
    reply.part = &part;
    session_send(session, &reply);
}

static void joining_keep(struct session *session, const Adtopk__LocalKeep *asked)
{
    float room[CORE_KEEP_SIZE / sizeof(float)];
    struct event_keep keep = {.writes = asked->writes,
        .section =
            asked->section < KEEP_SECTIONS ? (enum keep_section)asked->section : KEEP_SECTIONS,
        .tensor = asked->tensor,
        .residual = asked->residual,
        .first = asked->first,
        .count = asked->count,
        .bytes = (uint8_t *)room};
    struct event event = {.type = EVENT_RANK_KEEP, .keep = &keep};
    struct error err;
    enum adtopk_status status;

    if (asked->writes) {
        keep.size = asked->bytes.len;
        if (keep.size > 0 && keep.size <= sizeof room) { /* the core refuses more */
            (void)memcpy(room, asked->bytes.data, keep.size);
        }
    }
    status = session_raise(session, &event, &err);
    if (status != ADTOPK_OK && status != ADTOPK_PENDING) {
        session_judge(session, VERDICT_ERROR, &err);
    } else {
        joining_answer_keep(session, asked, &keep, status == ADTOPK_OK);
    }
}

static void joining_show(struct session *session, const Adtopk__LocalShow *asked)
{
    Adtopk__LocalShown shown = ADTOPK__LOCAL_SHOWN__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;

    shown.number = asked->number;
    if (session->door->connection->show != NULL) {
        session->door->connection->show(session, asked->part, &shown);
    }
    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_SHOWN;
    reply.shown = &shown;
    session_send(session, &reply);
}

void joining_take(struct session *session, const Adtopk__LocalRequest *request)
{
    struct error err;

    assert(session->state < SESSION_LEAVING && session->verdict == VERDICT_NONE);
    if (protocol_allow(session->state, request->kind_case, &err) != ADTOPK_OK) {
        session_refuse(session, &err);
        return;
    }
    switch (request->kind_case) {
    case ADTOPK__LOCAL_REQUEST__KIND_OPEN: joining_open(session, request->open); break;
    case ADTOPK__LOCAL_REQUEST__KIND_REGISTER: joining_register(session, request->register_); break;
    case ADTOPK__LOCAL_REQUEST__KIND_COMMIT: joining_begin_commit(session); break;
    case ADTOPK__LOCAL_REQUEST__KIND_MAPPED: joining_mapped(session); break;
    case ADTOPK__LOCAL_REQUEST__KIND_RESIDUAL: joining_residual(session, request->residual); break;
    case ADTOPK__LOCAL_REQUEST__KIND_SHOW: joining_show(session, request->show); break;
    case ADTOPK__LOCAL_REQUEST__KIND_KEEP: joining_keep(session, request->keep); break;
    default: joining_leave(session); break;
    }
}
