#include "daemon/session/session.h"

#include <assert.h>
#include <stdio.h>

#include "daemon/session/report.h"
#include "proto/utf8.h"

#define SESSION_REASON_SIZE 240 /* length of the text that the core gets */

void session_begin(struct session *session, struct door *door, unsigned users)
{
    assert(session->state == SESSION_CONNECTED && users > 0);
    door_enter(door, session);
    session->users = users;
    session->deadline_ms = uv_now(door->loop) + door->connection->silence_ms;
}

void session_move(struct session *session, enum session_state state)
{
    assert(protocol_may_move(session->state, state));
    session->state = state;
    session->door->connection->moved(session);
}

enum adtopk_status session_raise(struct session *session, struct event *event, struct error *err)
{
    event->session = session->id;
    return session->door->doors->event(session->door->doors->context, event, err);
}

void session_send(struct session *session, Adtopk__LocalReply *reply)
{
    const char *fault;

    assert(session->state != SESSION_CLOSED && !session->told);
    session->told = report_is_last(reply);
    fault = session->door->connection->send(session, reply);
    if (fault != NULL) {
        session_lost(session, fault);
    }
}

/* ---- ending ---- */

/* Tells the core, once, that the rank is gone, if the core knows the rank. */
static void session_tell(struct session *session, const char *between, const char *what)
{
    char reason[ERROR_TEXT_SIZE];
    struct event event = {.type = EVENT_RANK_LOST, .reason = reason};
    struct error ignored;

    if (session->known) {
        session->known = false;
        session->door->stats.lost++;
        (void)snprintf(reason, sizeof reason, "%s%s%.*s", session->peer, between,
            UTF8_FIT(SESSION_REASON_SIZE, what));
        (void)session_raise(session, &event, &ignored);
    }
}

void session_lost(struct session *session, const char *what)
{
    if (session->state != SESSION_CLOSED) {
        session_tell(session, " ", what);
        session_close(session);
    }
}

static void session_error(
    struct session *session, enum adtopk_status status, const char *text, bool final)
{
    struct report report;

    report_error(&report, status, text, final);
    session_send(session, &report.reply);
}

void session_end(struct session *session, enum adtopk_status status, const char *text)
{
    const uint32_t linger_ms = session->door->connection->linger_ms;

    if (session->state >= SESSION_ENDED) {
        return;
    }
    session->deadline_ms = uv_now(session->door->loop) + linger_ms;
    session_move(session, SESSION_ENDED);
    session_error(session, status, text, true);
    if (linger_ms == 0 && session->state != SESSION_CLOSED) {
        session_close(session);
    }
}

/* Ends the session for a reason that other parties than its client may have caused. */
static void session_part(struct session *session, enum adtopk_status status, const char *text)
{
    session_tell(session, ": ", text);
    session_end(session, status, text);
}

void session_refuse(struct session *session, const struct error *why)
{
    if (session->state >= SESSION_ENDED) {
        return;
    }
    if (why->code == ADTOPK_ERR_MEMORY) { /* that is not the client's fault */
        session_part(session, why->code, why->text);
        return;
    }
    session->door->stats.protocol_errors++;
    door_warn(session->door, session->uid, session->peer, why->text);
    /* What comes at a wrong time is the trainer's mistake, and its reason says enough. */
    session_tell(
        session, why->code == ADTOPK_ERR_STATE ? ": " : " broke the protocol: ", why->text);
    session_end(session, why->code, why->text);
}

void session_judge(struct session *session, enum verdict verdict, const struct error *why)
{
    session->verdict = verdict;
    session->verdict_error = *why;
    session->verdict_emptied = session->door->doors->emptied;
    session->door->connection->moved(session);
}

bool session_execute(struct session *session)
{
    const struct error why = session->verdict_error;
    const enum verdict verdict = session->verdict;

    if (verdict == VERDICT_NONE || session->door->doors->emptied <= session->verdict_emptied) {
        return verdict != VERDICT_NONE;
    }
    session->verdict = VERDICT_NONE;
    if (session->state >= SESSION_ENDED) {
        return true; /* the core's reason has come */
    }
    switch (verdict) {
    case VERDICT_ERROR: session_error(session, why.code, why.text, false); break;
    case VERDICT_REFUSE: session_refuse(session, &why); break;
    default: session_part(session, why.code, why.text); break;
    }
    return true;
}

void session_close(struct session *session)
{
    assert(!session->known);
    if (session->state != SESSION_CLOSED) {
        assert(session->users > 0);
        session->door->stats.sessions--;
        session->verdict = VERDICT_NONE;
        session_move(session, SESSION_CLOSED);
    }
}

static void session_collect(struct session *session)
{
    if (session->state == SESSION_CLOSED && session->users == 0 && session->lent == 0) {
        door_leave(session);
        session->door->connection->free(session);
    }
}

void session_drop(struct session *session)
{
    assert(session->users > 0);
    session->users--;
    session_collect(session);
}

/* ---- the arena ---- */

const void *session_lend(
    struct doors *doors, session_id id, unsigned batch, uint64_t size, struct error *err)
{
    struct session *session = door_find(doors, id);
    const void *arena;

    if (session == NULL || session->lent != batch) {
        (void)error_set(
            err, ADTOPK_ERR_STATE, "session %llu takes no gradient arena", (unsigned long long)id);
        return NULL;
    }
    session->arena_size = size;
    arena = session->door->connection->arena(session, batch, &session->arena_size, err);
    session->lent += arena != NULL ? 1 : 0;
    return arena;
}

void session_take_back(struct doors *doors, session_id id)
{
    struct session *session = door_find(doors, id);

    if (session != NULL && session->lent > 0) {
        session->lent = 0;
        session->door->connection->give_back(session);
        session_collect(session);
    }
}

/* ---- deadlines ---- */

static void session_late(struct session *session)
{
    char text[ERROR_TEXT_SIZE];

    (void)snprintf(text, sizeof text,
        "the session was opened and nothing was committed within %llu ms (commit_timeout_ms)",
        (unsigned long long)session->door->doors->limits.commit_ms);
    session_part(session, ADTOPK_ERR_TIMEOUT, text);
}

bool session_expire(struct door *door)
{
    const uint64_t now = uv_now(door->loop);
    bool again = false;

    for (struct session *one = door->sessions; one != NULL; one = one->next) {
        const bool late = now >= one->deadline_ms;

        if (late && one->state == SESSION_CONNECTED) {
            session_end(one, ADTOPK_ERR_TIMEOUT, "nothing was said after connecting");
        } else if (late && one->state == SESSION_OPEN) {
            session_late(one);
        } else if (late && one->state == SESSION_ENDED) {
            session_close(one);
        }
        again |= one->state <= SESSION_RESERVING || one->state == SESSION_ENDED;
    }
    return again;
}

void session_stop(struct door *door, bool stay)
{
    for (struct session *one = door->sessions, *next; one != NULL; one = next) {
        next = one->next;
        one->known = false;
        if (!stay) {
            session_end(one, ADTOPK_ERR_UNREACHABLE, "the daemon stops");
        }
        session_close(one);
        session_take_back(door->doors, one->id);
    }
}
