/*
 * Telling the service manager how far the daemon is: datagrams to $NOTIFY_SOCKET, the protocol of
 * sd_notify(3), without its library.
 */
#ifndef ADTOPK_NOTIFY_H
#define ADTOPK_NOTIFY_H

#include "proto/error.h"

/** Sends `state`, such as "READY=1". Without $NOTIFY_SOCKET nobody wants to know: ADTOPK_OK. */
enum adtopk_status notify_send(const char *state, struct error *err);

#endif
