#include "daemon/session/answer.h"

/* Tells the client that its next batch of tensors is in force, and where their updates will be. */
static enum adtopk_status answer_batch(
    struct session *session, const struct action *action, struct error *err)
{
    Adtopk__LocalReady ready = ADTOPK__LOCAL_READY__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;

    if (session->door->connection->ready(session, action, &ready, err) != ADTOPK_OK) {
        return err->code;
    }
    ready.step = action->number;
    ready.operation = action->operation;
    ready.run = action->run;
    ready.index = action->index;
    ready.ranks = action->members.ranks;
    ready.place = action->members.place;
    ready.root = action->members.root;
    ready.joined = action->members.joined;
    ready.due = action->members.due;
    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_READY;
    reply.ready = &ready;
    session->batches++;
    session_send(session, &reply);
    return ADTOPK_OK;
}

/* A rank that has returned hears of each of its batches. One that it has just committed may not be
 * in force yet. */
static void answer_ready(struct session *session, const struct action *action)
{
    enum adtopk_status status = ADTOPK_OK;
    struct error err;

    session->job = action->job;
    while (status == ADTOPK_OK && session->state == SESSION_MAPPED &&
           session->batches < action->batches) {
        status = answer_batch(session, action, &err);
    }
    if (status != ADTOPK_OK) {
        /* The job failed in the same iteration in which it became ready. The next action brings the
         * reason. */
        session_judge(session, VERDICT_END, &err);
    } else if (session->state == SESSION_MAPPED && session->batches == session->lent) {
        session_move(session, SESSION_READY);
    }
}

static void answer_closed(struct session *session)
{
    Adtopk__LocalBye bye = ADTOPK__LOCAL_BYE__INIT;
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;

    reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_BYE;
    reply.bye = &bye;
    session->known = false;
    session_send(session, &reply);
    session_close(session);
}

void answer_apply(struct doors *doors, const struct action *action)
{
    struct session *session = door_find(doors, action->session);

    if (session == NULL || session->state >= SESSION_ENDED) {
        return;
    }
    switch (action->type) {
    case ACTION_READY: answer_ready(session, action); break;
    case ACTION_DELIVERED:
    case ACTION_STEP:
    case ACTION_OP_DONE: session->door->connection->progress(session, action); break;
    case ACTION_FAILED:
        session->known = false;
        session_end(session, action->error->code, action->error->text);
        break;
    case ACTION_CLOSED: answer_closed(session); break;
    case ACTION_COMPUTE:
    case ACTION_POLICY:
    case ACTION_RECORDS:
    case ACTION_RANKS:
    case ACTION_CHECKPOINT:
    case ACTION_VERIFIED: break; /* a rank never gets this */
    }
}

void answer_emptied(struct doors *doors)
{
    doors->emptied++;
}
