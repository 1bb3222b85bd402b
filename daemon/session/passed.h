/*
 * What a service manager passed to this process (proto/passed_sockets.h). Each listening socket
 * belongs to the path to which it is bound. Each file without a path, and each device, is what the
 * process before left with the manager, under a name in $LISTEN_FDNAMES.
 */
#ifndef ADTOPK_SESSION_PASSED_H
#define ADTOPK_SESSION_PASSED_H

#include <stddef.h>

#include "proto/error.h"

/** Checks that each passed descriptor is such a file, or a listening SOCK_SEQPACKET socket at one
 * of these paths (ends with NULL), and keeps them from programs that this one starts. ARGUMENT: the
 * sentence names the socket. Call it once, before other threads. */
enum adtopk_status passed_check(const char *const *paths, struct error *err);

/** The socket that was passed for this path; -1: none was. It is the caller's, and its file the
 * service manager's. */
int passed_find(const char *path);

/** The first file above the descriptor `after` that was passed, and its name, "" if it has none;
 * -1: there is none. It is the caller's. */
int passed_file(int after, char *name, size_t size);

#endif
