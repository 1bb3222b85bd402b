#include "daemon/job/names.h"

#include <stdio.h>

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

const char *dtype_name(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32: return "f32";
    case DTYPE_F16: return "f16";
    case DTYPE_BF16: return "bf16";
    default: return "unknown";
    }
}

struct spec_text spec_describe(const struct tensor_spec *spec)
{
    struct spec_text said;
    const size_t room = sizeof(said.text);
    int used = snprintf(said.text, room, "%s [", dtype_name(spec->dtype));

    for (unsigned d = 0; d < spec->shape.dims; d++) {
        used += snprintf(said.text + used, room - (size_t)used, "%s%llu", d > 0 ? ", " : "",
            (unsigned long long)spec->shape.size[d]);
    }
    (void)snprintf(said.text + used, room - (size_t)used, "]");
    return said;
}
