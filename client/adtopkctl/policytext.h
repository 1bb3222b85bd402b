/*
 * A policy as it stands on the command line, as a JSON document.
 */
#ifndef ADTOPK_POLICYTEXT_H
#define ADTOPK_POLICYTEXT_H

#include <stdbool.h>

#include "proto/error.h"

#define POLICYTEXT_MAX 50000u /* fits into a request */

/**
 * argument: one FILE, "-" for standard input, or KEY=VALUE...; count: how many, at least 1. A text
 * with "=" behind lower-case letters and "_" is KEY=VALUE, so a file of such a name is ./NAME. A
 * VALUE that is not JSON is a text.
 *
 * text: to be freed with free(), on success only. pairs: whether it is made of KEY=VALUE. Errors:
 * ARGUMENT (mixed, or too long), POLICY (not JSON), SYSTEM (the file), MEMORY. The function does
 * not check whether the document is a policy.
 */
enum adtopk_status policytext_read(
    const char *const *argument, unsigned count, char **text, bool *pairs, struct error *err);

/** The name in errors of the document that policytext_read() makes of these arguments. */
const char *policytext_name(const char *const *argument, unsigned count);

#endif
