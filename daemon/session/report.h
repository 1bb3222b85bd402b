/*
 * Replies that more than one place sends, with room for what they say.
 */
#ifndef ADTOPK_SESSION_REPORT_H
#define ADTOPK_SESSION_REPORT_H

#include <stdbool.h>

#include "proto/error.h"
#include "proto/local.pb-c.h"

/* A reply that tells an error. It points into itself: it must not move. */
struct report {
    Adtopk__LocalReply reply;
    Adtopk__LocalError error;
    char text[ERROR_TEXT_SIZE];
};

/** Fills in the reply; after a `final` error the session says nothing more. */
void report_error(struct report *report, enum adtopk_status status, const char *text, bool final);

/** True if the session says nothing after this reply. */
bool report_is_last(const Adtopk__LocalReply *reply);

#endif
