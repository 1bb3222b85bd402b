#include "daemon/job/names.h"

const char *phase_name(enum phase phase)
{
    static const char *const names[PHASE_COUNT] = {
        [PHASE_COLLECT] = "collect",
        [PHASE_SELECT] = "select",
        [PHASE_EXCHANGE] = "exchange",
        [PHASE_REDUCE] = "reduce",
        [PHASE_SETTLE] = "settle",
    };

    return (unsigned)phase < PHASE_COUNT ? names[phase] : "unknown";
}

const char *wait_kind_name(enum wait_kind kind)
{
    static const char *const names[WAIT_KINDS] = {
        [WAIT_NOTHING] = "nothing",
        [WAIT_PEER] = "peer",
        [WAIT_RETURN] = "return",
        [WAIT_PUSH] = "push",
        [WAIT_CALL] = "operation",
        [WAIT_COMPUTE] = "compute",
        [WAIT_FRAME] = "frame",
        [WAIT_FORMING] = "forming",
        [WAIT_AGREE] = "agree",
        [WAIT_LEAVE] = "leave",
        [WAIT_SWITCH] = "switch",
        [WAIT_COMMIT] = "commit",
        [WAIT_BEGIN] = "begin",
        [WAIT_VACANT] = "vacant",
    };

    return (unsigned)kind < WAIT_KINDS ? names[kind] : "unknown";
}
