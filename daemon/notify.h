/*
 * Telling the service manager how far the daemon is: datagrams to $NOTIFY_SOCKET, the protocol of
 * sd_notify(3), without its library.
 */
#ifndef ADTOPK_NOTIFY_H
#define ADTOPK_NOTIFY_H

#include <stdint.h>

#include "proto/error.h"

/** Sends `state`, such as "READY=1"; waits a moment if the manager is behind with reading. Without
 * $NOTIFY_SOCKET nobody wants to know: ADTOPK_OK. */
enum adtopk_status notify_send(const char *state, struct error *err);

/** Sends what soon will be said again, and never waits: it may get lost. */
void notify_try(const char *state);

/** Within how many microseconds the manager wants to hear "WATCHDOG=1" from this process; 0: it
 * does not ask for that. */
uint64_t notify_watchdog_us(void);

#endif
