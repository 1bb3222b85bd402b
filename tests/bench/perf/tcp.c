#include "tests/bench/perf/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int listen_somewhere(struct sockaddr_in *address)
{
    socklen_t length = sizeof(*address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    *address =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd >= 0 &&
        (bind(fd, (const struct sockaddr *)address, sizeof(*address)) != 0 || listen(fd, 1) != 0 ||
            getsockname(fd, (struct sockaddr *)address, &length) != 0)) {
        (void)close(fd);
        fd = -1;
    }
    return fd;
}

static bool hurry(int fd)
{
    const int yes = 1;

    return fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)) == 0;
}

enum adtopk_status tcp_pair(int fd[2], struct error *err)
{
    struct sockaddr_in address;
    const int listener = listen_somewhere(&address);

    fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fd[1] = -1;
    if (listener >= 0 && fd[0] >= 0 &&
        connect(fd[0], (const struct sockaddr *)&address, sizeof(address)) == 0) {
        fd[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    }
    if (listener >= 0) {
        (void)close(listener);
    }
    if (!hurry(fd[0]) || !hurry(fd[1])) {
        const int why = errno;

        tcp_close(fd);
        return error_set(err, ADTOPK_ERR_SYSTEM, "cannot connect over loopback: %s", strerror(why));
    }
    return ADTOPK_OK;
}

void tcp_close(int fd[2])
{
    for (int i = 0; i < 2; i++) {
        if (fd[i] >= 0) {
            (void)close(fd[i]);
        }
        fd[i] = -1;
    }
}

bool tcp_send(int fd, const void *bytes, size_t size)
{
    const char *at = bytes;

    while (size > 0) {
        const ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);

        if (sent < 0 && errno != EINTR) {
            return false;
        }
        at += sent > 0 ? sent : 0;
        size -= sent > 0 ? (size_t)sent : 0;
    }
    return true;
}

bool tcp_receive(int fd, void *bytes, size_t size)
{
    char *at = bytes;

    while (size > 0) {
        const ssize_t got = recv(fd, at, size, 0);

        if (got == 0 || (got < 0 && errno != EINTR)) {
            return false;
        }
        at += got > 0 ? got : 0;
        size -= got > 0 ? (size_t)got : 0;
    }
    return true;
}

/* Moves *at by what a call transferred; false if it failed for good. */
static bool moved(ssize_t bytes, size_t *at)
{
    if (bytes > 0) {
        *at += (size_t)bytes;
    }
    return bytes > 0 || (bytes < 0 && (errno == EAGAIN || errno == EINTR));
}

bool tcp_exchange(int fd, const void *out, void *in, size_t size)
{
    size_t sent = 0;
    size_t received = 0;

    while (sent < size || received < size) {
        struct pollfd entry = {.fd = fd};

        entry.events = (short)((sent < size ? POLLOUT : 0) | (received < size ? POLLIN : 0));
        if (poll(&entry, 1, -1) < 0 && errno != EINTR) {
            return false;
        }
        if (sent < size && (entry.revents & (POLLOUT | POLLERR)) != 0 &&
            !moved(send(fd, (const char *)out + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT),
                &sent)) {
            return false;
        }
        if (received < size && (entry.revents & (POLLIN | POLLHUP)) != 0 &&
            !moved(recv(fd, (char *)in + received, size - received, MSG_DONTWAIT), &received)) {
            return false;
        }
    }
    return true;
}
