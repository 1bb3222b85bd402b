#include "daemon/session/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "daemon/session/passed.h"
#include "proto/retry.h"

#define LISTENER_BACKLOG 128
#define LISTENER_ACCEPTS 16 /* per iteration of the loop */
#define LISTENER_PAUSE_MS 200
#define LISTENER_LOCK_TRIES 100
#define LISTENER_LOCK_PAUSE_NS 10000000
#define LISTENER_WHY_SIZE 128

static enum adtopk_status listener_failed(
    const struct listener *listener, const char *call, int reason, struct error *err)
{
    return error_set(err, ADTOPK_ERR_SYSTEM, "cannot listen on %s: %s: %s", listener->path, call,
        strerror(reason));
}

static int listener_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* ---- the file ---- */

/* Returns the descriptor that holds the lock, or -1 and err. */
static int listener_lock(const struct listener *listener, struct error *err)
{
    const struct timespec pause = {.tv_nsec = LISTENER_LOCK_PAUSE_NS};
    char copy[sizeof listener->path];
    int fd;

    memcpy(copy, listener->path, sizeof copy);
    RETRY(fd, open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0 && errno == ENOENT) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM,
            "cannot listen on %s: there is no such folder; make it, or set another path",
            listener->path);
    } else if (fd < 0) {
        (void)listener_failed(listener, "its folder", errno, err);
    }
    for (int tries = 0; fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0; tries++) {
        if (errno != EWOULDBLOCK || tries == LISTENER_LOCK_TRIES) {
            if (errno == EWOULDBLOCK) {
                (void)error_set(err, ADTOPK_ERR_STATE,
                    "cannot listen on %s: another process has locked its folder", listener->path);
            } else {
                (void)listener_failed(listener, "locking its folder", errno, err);
            }
            (void)close(fd);
            return -1;
        }
        (void)nanosleep(&pause, NULL);
    }
    return fd;
}

/* Removes the file of a dead daemon. Connecting shows whether a daemon still serves a socket. */
static enum adtopk_status listener_clear(
    const struct listener *listener, const struct sockaddr_un *address, struct error *err)
{
    struct stat file;
    int probe, reason;

    if (lstat(listener->path, &file) != 0) {
        return errno == ENOENT ? ADTOPK_OK : listener_failed(listener, "stat", errno, err);
    }
    if (!S_ISSOCK(file.st_mode)) {
        return error_set(err, ADTOPK_ERR_STATE, "cannot listen on %s: it exists and is no socket",
            listener->path);
    }
    probe = listener_socket();
    if (probe < 0) {
        return listener_failed(listener, "socket", errno, err);
    }
    reason = connect(probe, (const struct sockaddr *)address, sizeof *address) == 0 ? 0 : errno;
    (void)close(probe);
    if (reason == 0 || reason == EAGAIN || reason == EPROTOTYPE) {
        return error_set(err, ADTOPK_ERR_STATE, "cannot listen on %s: a daemon serves it already",
            listener->path);
    }
    if (reason != ECONNREFUSED) {
        return listener_failed(listener, "connect", reason, err);
    }
    return unlink(listener->path) == 0 || errno == ENOENT
               ? ADTOPK_OK
               : listener_failed(listener, "unlink", errno, err);
}

/* The socket has its mode from the first moment: a rank that looks for the next daemon takes "no
 * permission" for an answer. No client can connect before listen(). */
static enum adtopk_status listener_bind(
    struct listener *listener, const struct sockaddr_un *address, struct error *err)
{
    const mode_t mask = umask(~listener->config.mode & 0777);
    const int bound = bind(listener->fd, (const struct sockaddr *)address, sizeof *address);
    const int reason = errno;

    (void)umask(mask);
    if (bound != 0) {
        return listener_failed(listener, "bind", reason, err);
    }
    if (lstat(listener->path, &listener->file) != 0) {
        return listener_failed(listener, "stat", errno, err);
    }
    if (chmod(listener->path, listener->config.mode) != 0) { /* its folder may have an ACL */
        return listener_failed(listener, "chmod", errno, err);
    }
    return listen(listener->fd, LISTENER_BACKLOG) == 0
               ? ADTOPK_OK
               : listener_failed(listener, "listen", errno, err);
}

static enum adtopk_status listener_claim(struct listener *listener, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int lock = listener_lock(listener, err);
    enum adtopk_status status;

    if (lock < 0) {
        return ADTOPK_ERR_SYSTEM;
    }
    memcpy(address.sun_path, listener->path, sizeof address.sun_path);
    status = listener_clear(listener, &address, err);
    if (status == ADTOPK_OK) {
        status = listener_bind(listener, &address, err);
    }
    (void)close(lock);
    return status;
}

static void listener_release(struct listener *listener)
{
    struct stat file;

    if (listener->file.st_ino != 0 && lstat(listener->path, &file) == 0 &&
        file.st_ino == listener->file.st_ino && file.st_dev == listener->file.st_dev) {
        (void)unlink(listener->path);
    }
    if (listener->fd >= 0) {
        (void)close(listener->fd);
    }
    if (listener->spare >= 0) {
        (void)close(listener->spare);
    }
    listener->fd = listener->spare = -1;
}

/* ---- accepting ---- */

static void listener_on_readable(uv_poll_t *poll, int status, int events);

static void listener_start(struct listener *listener)
{
    if (listener->spare < 0) {
        RETRY(listener->spare, open("/dev/null", O_RDONLY | O_CLOEXEC));
    }
    (void)uv_poll_start(&listener->poll, UV_READABLE, listener_on_readable);
}

static void listener_on_timer(uv_timer_t *timer)
{
    listener_start(timer->data);
}

static void listener_say_why(int reason, char why[LISTENER_WHY_SIZE])
{
    struct rlimit limit = {.rlim_cur = 0};

    if (reason == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        (void)snprintf(why, LISTENER_WHY_SIZE,
            "the daemon has no file descriptors left: its limit is %llu (LimitNOFILE=)",
            (unsigned long long)limit.rlim_cur);
    } else {
        (void)snprintf(why, LISTENER_WHY_SIZE, "the daemon cannot take another connection: %s",
            strerror(reason));
    }
}

static void listener_exhausted(struct listener *listener, int reason)
{
    char why[LISTENER_WHY_SIZE];
    int fd;

    if (listener->spare >= 0) {
        (void)close(listener->spare);
    }
    fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) {
        listener_say_why(reason, why);
        listener->config.exhausted(listener->config.context, fd, why);
        (void)close(fd);
    }
    RETRY(listener->spare, open("/dev/null", O_RDONLY | O_CLOEXEC));
    (void)uv_poll_stop(&listener->poll);
    (void)uv_timer_start(&listener->timer, listener_on_timer, LISTENER_PAUSE_MS, 0);
}

static void listener_accept(const struct listener *listener, int fd)
{
    struct ucred who;
    socklen_t size = sizeof who;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0) {
        listener->config.accepted(listener->config.context, fd, &who);
    } else {
        (void)close(fd);
    }
}

static void listener_on_readable(uv_poll_t *poll, int status, int events)
{
    struct listener *listener = poll->data;

    (void)status;
    (void)events;
    for (int i = 0; i < LISTENER_ACCEPTS; i++) {
        const int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0) {
            listener_accept(listener, fd);
        } else if (errno == EAGAIN) {
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            listener_exhausted(listener, errno); /* EMFILE, ENFILE, ENOMEM, ENOBUFS */
            return;
        }
    }
}

/* ---- opening and closing ---- */

/* Does everything that can fail and that can be undone without the loop. */
static enum adtopk_status listener_prepare(
    struct listener *listener, uv_loop_t *loop, struct error *err)
{
    enum adtopk_status status;
    bool passed;
    int code;

    RETRY(listener->spare, open("/dev/null", O_RDONLY | O_CLOEXEC));
    listener->fd = passed_find(listener->path);
    passed = listener->fd >= 0;
    listener->fd = passed ? listener->fd : listener_socket();
    if (listener->spare < 0 || listener->fd < 0) {
        return listener_failed(listener, "socket", errno, err);
    }
    status = passed ? ADTOPK_OK : listener_claim(listener, err);
    if (status != ADTOPK_OK) {
        return status;
    }
    code = uv_poll_init(loop, &listener->poll, listener->fd);
    return code == 0 ? ADTOPK_OK
                     : error_set(err, ADTOPK_ERR_SYSTEM, "cannot watch the socket %s: %s",
                           listener->path, uv_strerror(code));
}

enum adtopk_status listener_open(struct listener *listener, uv_loop_t *loop,
    const struct listener_config *config, struct error *err)
{
    const size_t length = strlen(config->path);
    enum adtopk_status status;

    *listener = (struct listener){.config = *config, .fd = -1, .spare = -1, .handles = 2};
    listener->config.path = listener->path;
    if (length == 0 || length >= sizeof listener->path) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "cannot listen on \"%.120s\": a socket's path has 1 to %zu bytes, this one has %zu",
            config->path, sizeof listener->path - 1, length);
    }
    memcpy(listener->path, config->path, length);
    status = listener_prepare(listener, loop, err);
    if (status != ADTOPK_OK) {
        listener_release(listener);
        return status;
    }
    (void)uv_timer_init(loop, &listener->timer);
    listener->poll.data = listener->timer.data = listener;
    listener_start(listener);
    return ADTOPK_OK;
}

static void listener_on_closed(uv_handle_t *handle)
{
    struct listener *listener = handle->data;

    if (--listener->handles == 0) {
        listener->closed(listener->config.context);
    }
}

void listener_close(struct listener *listener, void (*closed)(void *context))
{
    listener->closed = closed;
    uv_close((uv_handle_t *)&listener->poll, listener_on_closed);
    uv_close((uv_handle_t *)&listener->timer, listener_on_closed);
    listener_release(listener);
}
