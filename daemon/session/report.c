#include "daemon/session/report.h"

#include <stdio.h>

void report_error(struct report *report, enum adtopk_status status, const char *text, bool final)
{
    adtopk__local_error__init(&report->error);
    adtopk__local_reply__init(&report->reply);
    (void)snprintf(report->text, sizeof report->text, "%s", text);
    report->error.status = (uint32_t)status;
    report->error.text = report->text;
    report->error.final = final;
    report->reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_ERROR;
    report->reply.error = &report->error;
}

bool report_is_last(const Adtopk__LocalReply *reply)
{
    return reply->kind_case == ADTOPK__LOCAL_REPLY__KIND_BYE ||
           (reply->kind_case == ADTOPK__LOCAL_REPLY__KIND_ERROR && reply->error->final);
}
