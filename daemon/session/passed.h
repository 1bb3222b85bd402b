/*
 * Listening sockets that a service manager passed to this process (proto/passed_sockets.h). Each
 * belongs to the path to which it is bound.
 */
#ifndef ADTOPK_SESSION_PASSED_H
#define ADTOPK_SESSION_PASSED_H

#include "proto/error.h"

/** Checks that each passed socket is a listening SOCK_SEQPACKET one, at one of these paths (ends
 * with NULL), and keeps them from programs that this one starts. ARGUMENT: the sentence names the
 * socket. Call it once, before other threads. */
enum adtopk_status passed_check(const char *const *paths, struct error *err);

/** The socket that was passed for this path; -1: none was. It is the caller's, and its file the
 * service manager's. */
int passed_find(const char *path);

#endif
