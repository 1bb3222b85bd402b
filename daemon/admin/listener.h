/*
 * A listening AF_UNIX SOCK_SEQPACKET socket: its file is made, and taken away, with care for
 * another daemon's.
 */
#ifndef ADTOPK_LISTENER_H
#define ADTOPK_LISTENER_H

#include <sys/stat.h>
#include <sys/un.h>

#include "proto/error.h"

struct listener {
    int fd;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    struct stat file; /* so that only our own file is unlinked */
};

/** Binds and listens; a file that no daemon serves any more is replaced. Errors name the path:
 * ARGUMENT (too long), STATE (served by another daemon, or no socket), SYSTEM. */
enum adtopk_status listener_open(
    struct listener *listener, const char *path, mode_t mode, struct error *err);

/** Takes the file away, unless it is another daemon's by now. */
void listener_unlink(struct listener *listener);

void listener_close(struct listener *listener);

#endif
