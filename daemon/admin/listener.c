#include "daemon/admin/listener.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 64

static enum adtopk_status failed(
    struct error *err, const char *what, const struct sockaddr_un *address)
{
    return error_set(
        err, ADTOPK_ERR_SYSTEM, "cannot %s %s: %s", what, address->sun_path, strerror(errno));
}

/* Connecting tells a socket that is served from one that a daemon left behind when it died. */
static enum adtopk_status remove_stale(const struct sockaddr_un *address, struct error *err)
{
    struct stat file;
    int code = 0;
    int fd;

    if (lstat(address->sun_path, &file) != 0) {
        return errno == ENOENT ? ADTOPK_OK : failed(err, "look at", address);
    }
    if (!S_ISSOCK(file.st_mode)) {
        return error_set(err, ADTOPK_ERR_STATE, "%s exists and is not a socket", address->sun_path);
    }
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return failed(err, "make a socket for", address);
    }
    if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) != 0) {
        code = errno;
    }
    (void)close(fd);
    if (code == 0 || code == EAGAIN || code == EPROTOTYPE) {
        return error_set(err, ADTOPK_ERR_STATE, "control_socket: %s is in use by another process",
            address->sun_path);
    }
    errno = code;
    if (code != ECONNREFUSED) {
        return failed(err, "connect to", address);
    }
    return unlink(address->sun_path) == 0 || errno == ENOENT ? ADTOPK_OK
                                                             : failed(err, "replace", address);
}

/* Between bind() and listen() nobody can connect, so the mode is right from the first moment. */
static enum adtopk_status bind_and_listen(
    struct listener *listener, const struct sockaddr_un *address, mode_t mode, struct error *err)
{
    if (bind(listener->fd, (const struct sockaddr *)address, sizeof(*address)) != 0) {
        return failed(err, "create the socket", address);
    }
    memcpy(listener->path, address->sun_path, sizeof(listener->path));
    if (lstat(address->sun_path, &listener->file) != 0) {
        return failed(err, "look at", address);
    }
    if (chmod(address->sun_path, mode) != 0) {
        return failed(err, "set the mode of", address);
    }
    return listen(listener->fd, BACKLOG) == 0 ? ADTOPK_OK : failed(err, "listen on", address);
}

enum adtopk_status listener_open(
    struct listener *listener, const char *path, mode_t mode, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    enum adtopk_status status;
    size_t length = strlen(path);

    *listener = (struct listener){.fd = -1};
    if (length == 0 || length >= sizeof(address.sun_path)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "a socket's path has 1 to %zu bytes, this one %zu: %.100s",
            sizeof(address.sun_path) - 1, length, path);
    }
    memcpy(address.sun_path, path, length);
    status = remove_stale(&address, err);
    if (status != ADTOPK_OK) {
        return status;
    }
    listener->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0) {
        return failed(err, "make a socket for", &address);
    }
    status = bind_and_listen(listener, &address, mode, err);
    if (status != ADTOPK_OK) {
        listener_unlink(listener);
        listener_close(listener);
    }
    return status;
}

void listener_unlink(struct listener *listener)
{
    struct stat file;

    if (listener->path[0] != '\0' && lstat(listener->path, &file) == 0 &&
        file.st_ino == listener->file.st_ino && file.st_dev == listener->file.st_dev) {
        (void)unlink(listener->path);
    }
    listener->path[0] = '\0';
}

void listener_close(struct listener *listener)
{
    if (listener->fd >= 0) {
        (void)close(listener->fd);
    }
    listener->fd = -1;
}
