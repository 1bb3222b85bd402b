#include "daemon/session/protocol.h"

#define BIT(state) (1u << SESSION_##state)

/* Each state's name, and the states to which it may move. */
static const struct {
    const char *name;
    unsigned next;
} protocol_table[SESSION_STATES] = {
    [SESSION_CONNECTED] = {"connected", BIT(OPEN) | BIT(ENDED) | BIT(CLOSED)},
    [SESSION_OPEN] = {"open",
        BIT(RESERVING) | BIT(ARENA) | BIT(LEAVING) | BIT(ENDED) | BIT(CLOSED)},
    [SESSION_RESERVING] = {"reserving",
        BIT(OPEN) | BIT(READY) | BIT(ARENA) | BIT(ENDED) | BIT(CLOSED)},
    [SESSION_ARENA] = {"arena", BIT(OPEN) | BIT(MAPPED) | BIT(LEAVING) | BIT(ENDED) | BIT(CLOSED)},
    [SESSION_MAPPED] = {"mapped", BIT(READY) | BIT(LEAVING) | BIT(ENDED) | BIT(CLOSED)},
    [SESSION_READY] = {"ready",
        BIT(RESERVING) | BIT(ARENA) | BIT(LEAVING) | BIT(ENDED) | BIT(CLOSED)},
    [SESSION_LEAVING] = {"leaving", BIT(ENDED) | BIT(CLOSED)},
    [SESSION_ENDED] = {"ended", BIT(CLOSED)},
    [SESSION_CLOSED] = {"closed", 0},
};

bool protocol_may_move(enum session_state from, enum session_state to)
{
    return (protocol_table[from].next & (1u << to)) != 0;
}

const char *protocol_name(enum session_state state)
{
    return protocol_table[state].name;
}

/* The states in which each kind of request may come. */
static unsigned protocol_states(Adtopk__LocalRequest__KindCase kind)
{
    switch (kind) {
    case ADTOPK__LOCAL_REQUEST__KIND_OPEN: return BIT(CONNECTED);
    case ADTOPK__LOCAL_REQUEST__KIND_REGISTER:
    case ADTOPK__LOCAL_REQUEST__KIND_COMMIT: return BIT(OPEN) | BIT(READY);
    case ADTOPK__LOCAL_REQUEST__KIND_MAPPED: return BIT(ARENA);
    case ADTOPK__LOCAL_REQUEST__KIND_RESIDUAL:
    case ADTOPK__LOCAL_REQUEST__KIND_SHOW:
    case ADTOPK__LOCAL_REQUEST__KIND_KEEP: return BIT(READY);
    case ADTOPK__LOCAL_REQUEST__KIND_LEAVE:
        return BIT(OPEN) | BIT(ARENA) | BIT(MAPPED) | BIT(READY);
    default: return 0;
    }
}

enum adtopk_status protocol_allow(
    enum session_state state, Adtopk__LocalRequest__KindCase kind, struct error *err)
{
    if ((protocol_states(kind) & (1u << state)) == 0) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "request %d came in state \"%s\" of its session",
            (int)kind, protocol_name(state));
    }
    return ADTOPK_OK;
}
