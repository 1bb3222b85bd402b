/*
 * Sockets and files that a service manager passed to this process, as systemd does (see
 * sd_listen_fds(3)): descriptors from PASSED_FIRST on, $LISTEN_FDS of them, if $LISTEN_PID is this
 * process.
 */
#ifndef ADTOPK_PASSED_SOCKETS_H
#define ADTOPK_PASSED_SOCKETS_H

#include <stdbool.h>

#include "proto/error.h"

#define PASSED_FIRST 3 /* the descriptor that the protocol names */

/** The descriptor after the last one that was passed; PASSED_FIRST: none was. */
int passed_end(void);

/** Whether it is a listening socket of this type (SOCK_STREAM, ...). */
bool passed_listens(int fd, int type);

/** Keeps it from programs that this one starts, and from blocking. Error: SYSTEM. */
enum adtopk_status passed_take(int fd, struct error *err);

#endif
