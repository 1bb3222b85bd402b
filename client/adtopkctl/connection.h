/*
 * One request to the daemon's control socket.
 */
#ifndef ADTOPK_CONNECTION_H
#define ADTOPK_CONNECTION_H

#include "proto/error.h"

enum request_kind { REQUEST_STATUS, REQUEST_STATS };

/**
 * Asks, and waits at most timeout_ms for the whole document.
 *
 * job: of REQUEST_STATS; "" for all.
 * document: JSON text, to be freed with free(); set on success, and only then.
 * Errors: UNREACHABLE (no daemon there, or it went away), DENIED (the socket's permissions),
 * TIMEOUT, PROTOCOL, MEMORY, or what the daemon said.
 */
enum adtopk_status connection_ask(const char *path, int timeout_ms, enum request_kind kind,
    const char *job, char **document, struct error *err);

#endif
