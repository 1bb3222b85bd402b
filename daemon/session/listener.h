/*
 * A listening AF_UNIX SOCK_SEQPACKET socket in the daemon's loop. Its owner gets each connection
 * with the credentials of the process at the other end.
 *
 * - The listener replaces a dead daemon's file. It is an error if another process serves the file,
 *   or if the file is no socket.
 * - A socket that the service manager passed for the path (passed.h) is used as it is, and its file
 *   stays.
 * - A flood of connections waits: each iteration of the loop takes a few of them.
 * - Without free descriptors, the listener accepts one connection on a spare descriptor and refuses
 *   it. It then pauses, because the waiting connections would wake the loop again at once.
 */
#ifndef ADTOPK_SESSION_LISTENER_H
#define ADTOPK_SESSION_LISTENER_H

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <uv.h>

#include "proto/error.h"

struct listener_config {
    const char *path; /* the listener keeps a copy */
    mode_t mode;      /* permissions of the socket, such as 0666 */
    /* Takes the connection over, and closes it if it refuses the client. */
    void (*accepted)(void *context, int fd, const struct ucred *who);
    /* Tells the client at `fd` why it cannot be served, such as that no descriptors are left. The
     * listener closes `fd`. */
    void (*exhausted)(void *context, int fd, const char *why);
    void *context;
};

struct listener {
    struct listener_config config;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    /* The socket's file, so that the listener unlinks no other file; 0: it has none. */
    struct stat file;
    int fd;
    int spare; /* a descriptor to use when no others are left; or -1 */
    uv_poll_t poll;
    uv_timer_t timer; /* ends a pause */
    unsigned handles; /* handles that have not closed yet */
    void (*closed)(void *context);
};

/** Binds, listens, and accepts from now on. Errors name the path: ARGUMENT (too long), STATE
 * (another daemon serves it, or it is no socket), SYSTEM. After an error there is nothing to close.
 * While the function looks at the path and binds, it locks the path's directory, at most for a
 * second. So only one of several daemons gets the path. */
enum adtopk_status listener_open(struct listener *listener, uv_loop_t *loop,
    const struct listener_config *config, struct error *err);

/** Stops accepting, and unlinks the file unless another daemon has replaced it. Later the loop
 * calls closed(config->context): nothing uses the listener any more. */
void listener_close(struct listener *listener, void (*closed)(void *context));

#endif
