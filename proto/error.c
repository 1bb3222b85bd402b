#include "proto/error.h"

#include <stdarg.h>
#include <stdio.h>

enum adtopk_status error_set(struct error *err, enum adtopk_status code, const char *format, ...)
{
    va_list args;

    if (err == NULL) {
        return code;
    }
    err->code = code;
    va_start(args, format);
    (void)vsnprintf(err->text, sizeof(err->text), format, args);
    va_end(args);
    return code;
}

const char *adtopk_status_name(enum adtopk_status status)
{
    static const char *const names[ADTOPK_STATUS_COUNT] = {
        [ADTOPK_OK] = "ok",
        [ADTOPK_NONFINITE] = "nonfinite",
        [ADTOPK_ERR_ARGUMENT] = "argument",
        [ADTOPK_ERR_STATE] = "state",
        [ADTOPK_ERR_MEMORY] = "memory",
        [ADTOPK_ERR_UNREACHABLE] = "unreachable",
        [ADTOPK_ERR_DENIED] = "denied",
        [ADTOPK_ERR_MISMATCH] = "mismatch",
        [ADTOPK_ERR_TIMEOUT] = "timeout",
        [ADTOPK_ERR_PEER] = "peer",
        [ADTOPK_ERR_PROTOCOL] = "protocol",
        [ADTOPK_ERR_LOST] = "lost",
        [ADTOPK_ERR_SYSTEM] = "system",
        [ADTOPK_ERR_POLICY] = "policy",
    };

    return (unsigned)status < ADTOPK_STATUS_COUNT ? names[status] : "unknown";
}
