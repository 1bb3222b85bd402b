#include "daemon/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum adtopk_status notify_send(const char *state, struct error *err)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = path != NULL ? strlen(path) : 0;
    ssize_t sent;
    int fd;

    if (length == 0) {
        return ADTOPK_OK;
    }
    if (length >= sizeof(address.sun_path) || (path[0] != '/' && path[0] != '@')) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "NOTIFY_SOCKET=%.110s is no socket's path", path);
    }
    memcpy(address.sun_path, path, length);
    if (path[0] == '@') { /* an abstract socket: its name begins with a NUL */
        address.sun_path[0] = '\0';
    }
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "cannot make a socket: %s", strerror(errno));
    }
    sent = sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&address,
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length));
    if (sent < 0) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "cannot notify %.110s: %s", path, strerror(errno));
    }
    (void)close(fd);
    return sent < 0 ? ADTOPK_ERR_SYSTEM : ADTOPK_OK;
}
