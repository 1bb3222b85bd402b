#include "proto/error.h"

#include <stdio.h>

#include "proto/utf8.h"

bool error_is_failure(uint32_t code)
{
    return code >= ADTOPK_ERR_ARGUMENT && code <= ADTOPK_ERR_POLICY;
}

enum adtopk_status error_set_args(
    struct error *err, enum adtopk_status code, const char *format, va_list args)
{
    if (err != NULL) {
        err->code = code;
        (void)vsnprintf(err->text, sizeof(err->text), format, args);
        utf8_cut(err->text, sizeof(err->text)); /* It may have been cut in mid-character. */
    }
    return code;
}

enum adtopk_status error_set(struct error *err, enum adtopk_status code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)error_set_args(err, code, format, args);
    va_end(args);
    return code;
}

const char *error_s(uint64_t count)
{
    return count == 1 ? "" : "s";
}

const char *adtopk_status_name(enum adtopk_status status)
{
    static const char *const names[ERROR_STATUSES] = {
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
        [ADTOPK_PENDING] = "pending",
        [ADTOPK_INTERRUPTED] = "interrupted",
    };

    return (unsigned)status < ERROR_STATUSES ? names[status] : "unknown";
}
