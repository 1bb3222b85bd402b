/*
 * A listening AF_UNIX SOCK_SEQPACKET socket in the daemon's loop. Its owner gets each connection
 * with the credentials of the process at the other end.
 *
 *   - A dead daemon's file is replaced. A file that somebody serves, or that is no socket, is an
 *     error.
 *   - A flood of connections waits: each turn of the loop takes a few of them.
 *   - Without free descriptors, one connection is accepted on a spare descriptor and refused. The
 *     listener then pauses, because the waiting connections would wake the loop again at once.
 */
#ifndef ADTOPK_SESSION_LISTENER_H
#define ADTOPK_SESSION_LISTENER_H

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <uv.h>

#include "proto/error.h"

struct listener_config {
    const char *path; /* copied */
    mode_t mode;      /* permissions of the socket, such as 0666 */
    /* Takes the connection over, and closes it if it refuses the client. */
    void (*accepted)(void *context, int fd, const struct ucred *who);
    /* Tells the client at `fd` that no descriptors are left. The listener closes `fd`. */
    void (*exhausted)(void *context, int fd);
    void *context;
};

struct listener {
    struct listener_config config;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    struct stat file; /* the socket's file, so that no other file is unlinked; 0: none is ours */
    int fd;
    int spare; /* the descriptor to spend when there are no others; or -1 */
    uv_poll_t poll;
    uv_timer_t timer; /* ends a pause */
    unsigned handles; /* that have not closed yet */
    void (*closed)(void *context);
};

/** Binds, listens, and accepts from now on. While it looks at the path and binds, it holds a lock
 * on the path's directory, at most a second, so that of several daemons only one gets the path.
 * Errors name the path: ARGUMENT (too long), STATE (another daemon serves it, or it is no socket),
 * SYSTEM. After an error there is nothing to close. */
enum adtopk_status listener_open(struct listener *listener, uv_loop_t *loop,
    const struct listener_config *config, struct error *err);

/** Stops accepting and unlinks the file, unless another daemon has replaced it. Later, in the loop,
 * closed(config->context) says that the listener is not used any more. */
void listener_close(struct listener *listener, void (*closed)(void *context));

#endif
