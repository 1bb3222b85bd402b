#include "daemon/session/passed.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PASSED_FIRST 3 /* the descriptor that the protocol names */

/* The number in a variable; 0 if there is none, or one that no descriptor or process can have. */
static long passed_variable(const char *name)
{
    const char *text = getenv(name);
    char *end = NULL;
    long number;

    if (text == NULL || !isdigit((unsigned char)*text)) {
        return 0;
    }
    errno = 0;
    number = strtol(text, &end, 10);
    return errno == 0 && *end == '\0' && number < INT_MAX - PASSED_FIRST ? number : 0;
}

/* The descriptor after the last one that was passed. */
static int passed_end(void)
{
    const bool ours = passed_variable("LISTEN_PID") == (long)getpid();

    return PASSED_FIRST + (ours ? (int)passed_variable("LISTEN_FDS") : 0);
}

/* The path of a unix socket; "" if it has none, or is something else. */
static void passed_path(int fd, char path[sizeof(((struct sockaddr_un *)0)->sun_path) + 1])
{
    struct sockaddr_un address = {.sun_family = AF_UNSPEC};
    socklen_t size = sizeof(address);

    path[0] = '\0';
    if (getsockname(fd, (struct sockaddr *)&address, &size) == 0 && address.sun_family == AF_UNIX &&
        size > offsetof(struct sockaddr_un, sun_path)) {
        const size_t length = size - offsetof(struct sockaddr_un, sun_path);

        memcpy(path, address.sun_path, length);
        path[length] = '\0';
    }
}

static bool passed_option(int fd, int option, int wanted)
{
    int value = 0;
    socklen_t size = sizeof(value);

    return getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 && value == wanted;
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

/* A file without a path but with a name, as this daemon leaves them with the manager. */
static bool passed_is_file(int fd)
{
    struct stat status;
    char name[2];

    passed_name(fd, name, sizeof name);
    return fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 0 &&
           name[0] != '\0';
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
    if (!passed_option(fd, SO_TYPE, SOCK_SEQPACKET) || !passed_option(fd, SO_ACCEPTCONN, 1)) {
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
        if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 ||
            (!passed_is_file(fd) && fcntl(fd, F_SETFL, O_NONBLOCK) != 0)) {
            return error_set(
                err, ADTOPK_ERR_SYSTEM, "cannot use descriptor %d: %s", fd, strerror(errno));
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
