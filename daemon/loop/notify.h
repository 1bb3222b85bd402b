/*
 * Telling the service manager how far the daemon is: datagrams to $NOTIFY_SOCKET, the protocol of
 * sd_notify(3), without its library.
 */
#ifndef ADTOPK_NOTIFY_H
#define ADTOPK_NOTIFY_H

#include <stdint.h>

#include "proto/error.h"

/** Sends `state`, such as "READY=1"; waits a moment if the manager is behind with reading. Without
 * $NOTIFY_SOCKET there is no manager, and it returns ADTOPK_OK. */
enum adtopk_status notify_send(const char *state, struct error *err);

/** Sends a state that will soon be repeated. Never waits, so the message may get lost. */
void notify_try(const char *state);

/** Hands the manager a descriptor, which it keeps under this name and passes to the next process of
 * the service; with -1 it keeps what has the name no longer. */
enum adtopk_status notify_keep(const char *name, int fd, struct error *err);

/** How many descriptors the manager keeps of this service ($FDSTORE); 0: none. */
unsigned notify_keeps(void);

/** The manager expects "WATCHDOG=1" from this process within so many microseconds; 0: it does not.
 */
uint64_t notify_watchdog_us(void);

#endif
