/*
 * Replies that several files send, with room for their content.
 */
#ifndef ADTOPK_SESSION_REPORT_H
#define ADTOPK_SESSION_REPORT_H

#include <stdbool.h>

#include "proto/error.h"
#include "proto/local.pb-c.h"

/* A reply with an error. It points into itself, so it must not move. */
struct report {
    Adtopk__LocalReply reply;
    Adtopk__LocalError error;
    char text[ERROR_TEXT_SIZE];
};

/** Fills in the reply. After a `final` error the session sends nothing more. */
void report_error(struct report *report, enum adtopk_status status, const char *text, bool final);

/** True if the session sends nothing after this reply. */
bool report_is_last(const Adtopk__LocalReply *reply);

#endif
