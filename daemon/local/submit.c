/* Turns ring entries into events. */
#include "daemon/local/local_session.h"

/* Makes an event of an entry; the core checks tensor and step. */
static enum adtopk_status submit_event(
    const struct local_entry *entry, struct event *event, struct error *err)
{
    event->step.tensor = entry->tensor;
    event->step.number = entry->number;
    event->step.scale = entry->type == LOCAL_PUSH ? entry->scale : 0;
    event->step.lookahead = entry->type == LOCAL_PUSH ? entry->lookahead : 0;
    switch (entry->type) {
    case LOCAL_PUSH: event->type = EVENT_RANK_PUSH; return ADTOPK_OK;
    case LOCAL_STEP_END: event->type = EVENT_RANK_STEP_END; return ADTOPK_OK;
    case LOCAL_WAIT: event->type = EVENT_RANK_WAIT; return ADTOPK_OK;
    case LOCAL_OP: break;
    default:
        return error_set(
            err, ADTOPK_ERR_PROTOCOL, "an entry of its ring has the unknown type %u", entry->type);
    }
    if (entry->tensor >= OP_KIND_COUNT || entry->size > CORE_OP_SIZE) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "an entry of its ring asks for operation %u with %u bytes", entry->tensor, entry->size);
    }
    event->type = EVENT_RANK_OP;
    event->op.number = entry->number;
    event->op.kind = (enum op_kind)entry->tensor;
    event->op.root = entry->root;
    event->op.size = entry->size;
    return ADTOPK_OK;
}

/* Raises the event of an entry. The client library checks entries before it submits them. So an
 * entry that the core refuses does not come from the library. */
static void submit_entry(struct local_session *session, const struct local_entry *entry)
{
    struct event event = {0};
    struct error err;

    session->local->stats.entries++;
    if (submit_event(entry, &event, &err) != ADTOPK_OK) {
        session_refuse(&session->base, &err);
    } else if (session_raise(&session->base, &event, &err) != ADTOPK_OK) {
        session_judge(&session->base, VERDICT_REFUSE, &err);
    }
}

static int submit_next(struct local_session *session, struct local_entry *entry, struct error *err)
{
    return session->gpu.batch[0].flag != NULL ? gpu_take(session, entry, err)
                                              : ring_reader_take(&session->reader, entry, err);
}

bool submit_take(struct local_session *session, unsigned limit)
{
    struct local_entry entry;
    struct error err;
    unsigned taken = 0;
    int got = 1;

    while (session->base.state == SESSION_READY && session->base.verdict == VERDICT_NONE &&
           taken < limit && (got = submit_next(session, &entry, &err)) > 0) {
        submit_entry(session, &entry);
        taken++;
    }
    if (got < 0) {
        session_refuse(&session->base, &err);
    }
    if (taken > 0 && session->base.state != SESSION_CLOSED) {
        ring_reader_publish(&session->reader);
        reply_wake(session); /* the client may wait for room in the ring */
    }
    return taken > 0;
}

void submit_drain(struct session *session)
{
    (void)submit_take(local_session(session), LOCAL_RING_ENTRIES);
}
