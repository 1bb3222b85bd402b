/*
 * The steps of one request to the daemon's control socket, of which none waits. Callers wait as
 * they like: connection.c in poll(), the exporter in its loop.
 *
 *     control_open(), until it is not PENDING; control_send(); then, whenever the descriptor is
 *     readable, control_receive(), until `more` is false. The document is answer.text.
 */
#ifndef ADTOPK_CONTROL_EXCHANGE_H
#define ADTOPK_CONTROL_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/control.pb-c.h"
#include "proto/error.h"

/* Where a daemon listens for operators unless its control_socket says otherwise. */
#define CONTROL_DEFAULT_SOCKET "/run/adtopk/control/adtopkd.sock"

/* An answer that arrives in pieces. Begins with zeros; `text` is to be freed by its owner. */
struct control_answer {
    char *text;
    size_t size;
    bool more;    /* another piece follows */
    bool refused; /* the daemon answered with an error */
};

/** Connects *fd, non-blocking and close-on-exec, to be closed by the caller if it is not -1.
 * PENDING: the daemon's queue of connections is full; ask again soon. Errors: ARGUMENT (the path's
 * length), UNREACHABLE (no daemon there), DENIED (the socket's permissions), SYSTEM. */
enum adtopk_status control_open(const char *path, int *fd, struct error *err);

/** Sends the request, which must be the first of this connection. MEMORY, UNREACHABLE. OK also if
 * the daemon has hung up: control_receive() tells why. */
enum adtopk_status control_send(
    int fd, const char *path, const Adtopk__ControlRequest *request, struct error *err);

/** Reads one piece and tells in answer->more whether another one follows. PENDING: there is none
 * yet. note (NULL: nobody): gets what the daemon reports meanwhile. An error of the daemon is
 * returned as such, with answer->refused set; others: UNREACHABLE (it went away), PROTOCOL, MEMORY.
 */
enum adtopk_status control_receive(int fd, const char *path, struct control_answer *answer,
    void (*note)(const char *sentence), struct error *err);

#endif
