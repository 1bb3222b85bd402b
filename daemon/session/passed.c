#include "daemon/session/passed.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "proto/passed_sockets.h"

/* The path of a unix socket; "" if it has none, or is something else. */
static void passed_path(int fd, char path[sizeof(((struct sockaddr_un *)0)->sun_path) + 1])
{
    struct sockaddr_un address = {.sun_family = AF_UNSPEC};
    socklen_t size = sizeof(address);

    path[0] = '\0';
    if (getsockname(fd, (struct sockaddr *)&address, &size) == 0 && address.sun_family == AF_UNIX &&
        size > offsetof(struct sockaddr_un, sun_path)) {
        /* The kernel counts a NUL behind a path that fills the structure. */
        const size_t length = (size < sizeof(address) ? size : sizeof(address)) -
                              offsetof(struct sockaddr_un, sun_path);

        memcpy(path, address.sun_path, length);
        path[length] = '\0';
    }
}

static bool passed_is_known(const char *path, const char *const *paths)
{
    while (*paths != NULL && strcmp(*paths, path) != 0) {
        paths++;
    }
    return *paths != NULL && **paths != '\0';
}

/* The descriptor's name in $LISTEN_FDNAMES, where colons separate names; "" if it has none. */
static void passed_name(int fd, char *name, size_t size)
{
    const char *names = getenv("LISTEN_FDNAMES");
    const char *end;

    for (int at = PASSED_FIRST; names != NULL && at < fd; at++) {
        names = strchr(names, ':');
        names = names != NULL ? names + 1 : NULL;
    }
    end = names != NULL ? strchrnul(names, ':') : NULL;
    (void)snprintf(
        name, size, "%.*s", names != NULL ? (int)(end - names) : 0, names != NULL ? names : "");
}

/* A file without a path, or memory of a device, with a name, as this daemon leaves them with the
 * manager. */
static bool passed_is_file(int fd)
{
    struct stat status;
    char name[2];

    passed_name(fd, name, sizeof name);
    return fstat(fd, &status) == 0 && name[0] != '\0' &&
           ((S_ISREG(status.st_mode) && status.st_nlink == 0) || S_ISCHR(status.st_mode));
}

static enum adtopk_status passed_check_socket(int fd, const char *const *paths, struct error *err)
{
    char path[sizeof(((struct sockaddr_un *)0)->sun_path) + 1];

    passed_path(fd, path);
    if (!passed_is_known(path, paths)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "the service manager passed descriptor %d (LISTEN_FDS), which is no socket at %s or "
            "%s but %s",
            fd, paths[0], paths[1], path[0] != '\0' ? path : "something else");
    }
    if (!passed_listens(fd, SOCK_SEQPACKET)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "the service manager passed a socket for %s that does not listen for sequential "
            "packets: use ListenSequentialPacket=",
            path);
    }
    return ADTOPK_OK;
}

enum adtopk_status passed_check(const char *const *paths, struct error *err)
{
    for (int fd = PASSED_FIRST; fd < passed_end(); fd++) {
        if (!passed_is_file(fd) && passed_check_socket(fd, paths, err) != ADTOPK_OK) {
            return err->code;
        }
        if (passed_take(fd, err) != ADTOPK_OK) {
            return err->code;
        }
    }
    return ADTOPK_OK;
}

int passed_find(const char *path)
{
    for (int fd = PASSED_FIRST; fd < passed_end(); fd++) {
        char found[sizeof(((struct sockaddr_un *)0)->sun_path) + 1];

        passed_path(fd, found);
        if (strcmp(found, path) == 0) {
            return fd;
        }
    }
    return -1;
}

int passed_file(int after, char *name, size_t size)
{
    for (int fd = after < PASSED_FIRST ? PASSED_FIRST : after + 1; fd < passed_end(); fd++) {
        if (passed_is_file(fd)) {
            passed_name(fd, name, size);
            return fd;
        }
    }
    return -1;
}
