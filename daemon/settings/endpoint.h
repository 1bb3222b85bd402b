/*
 * Endpoints: "tcp://HOST:PORT", HOST being a name, an IPv4 address or an IPv6 address in brackets.
 */
#ifndef ADTOPK_ENDPOINT_H
#define ADTOPK_ENDPOINT_H

#include <stdbool.h>

#include "proto/error.h"

#define ENDPOINT_HOST_SIZE 254 /* the longest name in DNS, and a NUL */

/** Splits an endpoint into host, without brackets, and port, which points into the endpoint. False
 * if it has another form. */
bool endpoint_split(const char *endpoint, char host[ENDPOINT_HOST_SIZE], const char **port);

/** Checks the form; `what` names the setting in the error. */
enum adtopk_status endpoint_check(const char *endpoint, const char *what, struct error *err);

/** True if the host is an IPv6 address. */
bool endpoint_is_ipv6(const char *endpoint);

/** True if the host is an address, not a name that has to be looked up. */
bool endpoint_is_address(const char *endpoint);

/** True if the host is that of every address of a machine, so that no other machine can use it. */
bool endpoint_is_any(const char *endpoint);

/** True if a checked endpoint cannot be reached from, or lead to, another machine. */
bool endpoint_is_loopback(const char *endpoint);

#endif
