/*
 * One request to the daemon's control socket.
 */
#ifndef ADTOPK_CONTROL_CONNECTION_H
#define ADTOPK_CONTROL_CONNECTION_H

#include <stdbool.h>

#include "proto/control.pb-c.h"
#include "proto/error.h"

/* How far a question came. */
enum connection_end { CONNECTION_UNSENT, CONNECTION_UNANSWERED, CONNECTION_ANSWERED };

/**
 * Sends `request` and waits at most timeout_ms for the whole document.
 *
 * document: JSON text, to be freed with free(); set only on success.
 * note: gets what the daemon reports meanwhile, a sentence on what the answer waits for.
 * wake: a descriptor, or -1. As soon as it can be read, the question is given up: PENDING.
 * end: of an error that is the daemon's answer CONNECTION_ANSWERED. Other errors: UNREACHABLE (no
 * daemon there, or it went away), DENIED (the socket's permissions), TIMEOUT, PROTOCOL, MEMORY.
 */
enum adtopk_status connection_ask(const char *path, int timeout_ms,
    const Adtopk__ControlRequest *request, void (*note)(const char *sentence), char **document,
    int wake, enum connection_end *end, struct error *err);

#endif
