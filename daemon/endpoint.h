/*
 * Endpoints: "tcp://HOST:PORT", HOST being a name, an IPv4 address or an IPv6 address in brackets.
 */
#ifndef ADTOPK_ENDPOINT_H
#define ADTOPK_ENDPOINT_H

#include <stdbool.h>

#include "proto/error.h"

/** Checks the form; `what` names the setting in the error. */
enum adtopk_status endpoint_check(const char *endpoint, const char *what, struct error *err);

/** True if a checked endpoint cannot be reached from, or lead to, another machine. */
bool endpoint_is_loopback(const char *endpoint);

#endif
