#include "daemon/loop/notify.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/retry.h"

#define PATIENCE_US 100000

/* Sends the state, and the descriptor unless it is -1. */
static ssize_t notify_write(int fd, const struct sockaddr_un *address, socklen_t size,
    const char *state, int passed, int flags)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof passed)] = {0};
    struct iovec text = {.iov_base = (void *)(uintptr_t)state, .iov_len = strlen(state)};
    struct msghdr message = {.msg_name = (void *)(uintptr_t)address,
        .msg_namelen = size,
        .msg_iov = &text,
        .msg_iovlen = 1};
    ssize_t sent;

    if (passed >= 0) {
        struct cmsghdr *header;

        message.msg_control = control;
        message.msg_controllen = sizeof control;
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof passed);
        memcpy(CMSG_DATA(header), &passed, sizeof passed);
    }
    RETRY(sent, sendmsg(fd, &message, MSG_NOSIGNAL | flags));
    return sent;
}

static enum adtopk_status notify_send_state(
    const char *state, int passed, int flags, struct error *err)
{
    const struct timeval patience = {.tv_usec = PATIENCE_US};
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
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    sent = notify_write(fd, &address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length),
        state, passed, flags);
    if (sent < 0) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "cannot notify %.110s: %s", path, strerror(errno));
    }
    (void)close(fd);
    return sent < 0 ? ADTOPK_ERR_SYSTEM : ADTOPK_OK;
}

enum adtopk_status notify_send(const char *state, struct error *err)
{
    return notify_send_state(state, -1, 0, err);
}

void notify_try(const char *state)
{
    (void)notify_send_state(state, -1, MSG_DONTWAIT, NULL);
}

/* The number in a variable; 0 if there is none. */
static uint64_t notify_variable_number(const char *name)
{
    const char *text = getenv(name);
    char *end = NULL;
    unsigned long long number;

    if (text == NULL || !isdigit((unsigned char)*text)) {
        return 0;
    }
    errno = 0;
    number = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' ? number : 0;
}

uint64_t notify_watchdog_us(void)
{
    const bool ours = getenv("WATCHDOG_PID") == NULL ||
                      notify_variable_number("WATCHDOG_PID") == (uint64_t)getpid();

    return ours ? notify_variable_number("WATCHDOG_USEC") : 0;
}

enum adtopk_status notify_keep(const char *name, int fd, struct error *err)
{
    char state[256];

    (void)snprintf(state, sizeof(state), "%s=1\nFDNAME=%s%s", fd >= 0 ? "FDSTORE" : "FDSTOREREMOVE",
        name, fd >= 0 ? "\nFDPOLL=0" : "");
    return notify_send_state(state, fd, 0, err);
}

unsigned notify_keeps(void)
{
    const uint64_t most = getenv("NOTIFY_SOCKET") != NULL ? notify_variable_number("FDSTORE") : 0;

    return most < UINT_MAX ? (unsigned)most : UINT_MAX;
}
