/* The session socket: binding it where no other daemon lives, and accepting. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon/local/session.h"

#define LISTEN_BACKLOG 128
#define LISTEN_ACCEPTS 16 /* a turn */
#define LISTEN_LOCK_TRIES 100
#define LISTEN_LOCK_PAUSE_NS 10000000

static enum adtopk_status listen_failed(
    const char *path, const char *call, int reason, struct error *err)
{
    return error_set(
        err, ADTOPK_ERR_SYSTEM, "cannot listen on %s: %s: %s", path, call, strerror(reason));
}

int local_lock_directory(const char *path, struct error *err)
{
    const struct timespec pause = {.tv_nsec = LISTEN_LOCK_PAUSE_NS};
    char *copy = strdup(path);
    int fd;

    if (copy == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for the socket's path");
        return -1;
    }
    fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        (void)listen_failed(path, "its directory", errno, err);
    }
    free(copy);
    for (int tries = 0; fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0; tries++) {
        if (errno != EWOULDBLOCK || tries == LISTEN_LOCK_TRIES) {
            (void)listen_failed(path, "locking its directory", errno, err);
            (void)close(fd);
            return -1;
        }
        (void)nanosleep(&pause, NULL);
    }
    return fd;
}

/* Removes what a dead daemon left; an error if the path is anything else. */
static enum adtopk_status listen_clear(
    const struct local *local, const struct sockaddr_un *address, struct error *err)
{
    struct stat status;
    int probe, reason;

    if (lstat(local->path, &status) != 0) {
        return errno == ENOENT ? ADTOPK_OK : listen_failed(local->path, "stat", errno, err);
    }
    if (!S_ISSOCK(status.st_mode)) {
        return error_set(
            err, ADTOPK_ERR_STATE, "cannot listen on %s: it exists and is no socket", local->path);
    }
    probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0) {
        return listen_failed(local->path, "socket", errno, err);
    }
    reason = connect(probe, (const struct sockaddr *)address, sizeof *address) == 0 ? 0 : errno;
    (void)close(probe);
    if (reason != ECONNREFUSED) {
        return error_set(
            err, ADTOPK_ERR_STATE, "cannot listen on %s: a daemon serves it already", local->path);
    }
    return unlink(local->path) == 0 ? ADTOPK_OK : listen_failed(local->path, "unlink", errno, err);
}

static enum adtopk_status listen_bind(
    struct local *local, const struct sockaddr_un *address, struct error *err)
{
    struct stat status;

    if (bind(local->listener, (const struct sockaddr *)address, sizeof *address) != 0) {
        return listen_failed(local->path, "bind", errno, err);
    }
    if (lstat(local->path, &status) != 0) {
        return listen_failed(local->path, "stat", errno, err);
    }
    local->path_device = status.st_dev;
    local->path_inode = status.st_ino;
    if (chmod(local->path, (mode_t)local->config.mode) != 0) {
        return listen_failed(local->path, "chmod", errno, err);
    }
    if (listen(local->listener, LISTEN_BACKLOG) != 0) {
        return listen_failed(local->path, "listen", errno, err);
    }
    return ADTOPK_OK;
}

enum adtopk_status listen_open(struct local *local, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    enum adtopk_status status;
    int lock;

    if (local->path[0] == '\0' || strlen(local->path) >= sizeof address.sun_path) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "cannot listen on \"%s\": a socket path has 1 to %zu bytes", local->path,
            sizeof address.sun_path - 1);
    }
    memcpy(address.sun_path, local->path, strlen(local->path) + 1);
    local->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    local->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (local->spare < 0 || local->listener < 0) {
        return listen_failed(local->path, "socket", errno, err);
    }
    lock = local_lock_directory(local->path, err);
    if (lock < 0) {
        return err->code;
    }
    status = listen_clear(local, &address, err);
    if (status == ADTOPK_OK) {
        status = listen_bind(local, &address, err);
    }
    (void)close(lock);
    return status;
}

/* No descriptors left: spends the spare one to say so, and stops for a moment, or the listening
 * socket would stay readable and the loop would spin. */
static void listen_exhausted(struct local *local)
{
    if (local->spare >= 0) {
        int socket;

        (void)close(local->spare);
        socket = accept4(local->listener, NULL, NULL, SOCK_CLOEXEC);
        if (socket >= 0) {
            reply_refuse(socket, ADTOPK_ERR_SYSTEM, "the daemon has no file descriptors left");
            (void)close(socket);
            local->stats.refused++;
        }
        local->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    local->paused = true;
    (void)uv_poll_stop(&local->listen_poll);
    session_schedule(local);
}

/* Sessions that the user may hold: nobody but root can lock all others out. */
static uint32_t listen_share(const struct local *local, uid_t uid)
{
    const uint32_t all = local->config.max_sessions;
    const uint32_t limit = local->limits.user_sessions;

    return uid == 0 ? all : limit > 0 && limit < all ? limit : all - all / 4;
}

/* Sessions of all users beyond which this one, who holds so many, is refused. */
static uint32_t listen_room(const struct local *local, uid_t uid, uint32_t held)
{
    const uint32_t all = local->config.max_sessions;

    return uid == 0 ? all : held < all / 64 ? all - all / 16 : all - all / 8;
}

static uint32_t listen_held(const struct local *local, uid_t uid)
{
    uint32_t held = 0;

    for (const struct session *session = local->sessions; session != NULL;
         session = session->next) {
        held += session->uid == uid;
    }
    return held;
}

/* True if this user may have one more session; else `text` says why not. */
static bool listen_admits_user(struct local *local, uid_t uid, char text[ERROR_TEXT_SIZE])
{
    const uint32_t held = listen_held(local, uid);
    const uint32_t share = listen_share(local, uid);

    if (held >= share) {
        (void)snprintf(text, ERROR_TEXT_SIZE,
            "user %u has %u sessions on this daemon already, and one user may have %u "
            "(user_sessions)",
            (unsigned)uid, held, share);
        local->stats.refused_share++;
        return false;
    }
    if (local->used >= listen_room(local, uid, held)) {
        (void)snprintf(text, ERROR_TEXT_SIZE,
            "user %u has %u sessions on this daemon and all users %u of %u; the rest is kept for "
            "root and for users with fewer",
            (unsigned)uid, held, local->used, local->config.max_sessions);
        local->stats.refused_share++;
        return false;
    }
    return true;
}

/* The same of the user at the other end. */
static bool listen_admits(struct local *local, int socket, char text[ERROR_TEXT_SIZE])
{
    struct ucred peer;
    socklen_t size = sizeof peer;

    if (local->used >= local->config.max_sessions) {
        (void)snprintf(text, ERROR_TEXT_SIZE, "the daemon serves %u sessions already, its limit",
            local->config.max_sessions);
        return false;
    }
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        return true; /* session_create() fails for the same reason */
    }
    return listen_admits_user(local, peer.uid, text);
}

static void listen_take(struct local *local, int socket)
{
    struct error err;
    char text[ERROR_TEXT_SIZE];

    if (!listen_admits(local, socket, text)) {
        reply_refuse(socket, ADTOPK_ERR_DENIED, text);
        (void)close(socket);
        local->stats.refused++;
    } else if (session_create(local, socket, &err) != ADTOPK_OK) {
        local->stats.refused++;
    } else {
        local->stats.accepted++;
    }
}

static void listen_on_readable(uv_poll_t *poll, int status, int events)
{
    struct local *local = poll->data;

    (void)status;
    (void)events;
    for (int i = 0; i < LISTEN_ACCEPTS; i++) {
        const int socket = accept4(local->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (socket >= 0) {
            listen_take(local, socket);
        } else if (errno == EAGAIN) {
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            listen_exhausted(local); /* EMFILE, ENFILE, ENOMEM */
            return;
        }
    }
}

void listen_start(struct local *local)
{
    local->paused = false;
    if (local->spare < 0) {
        local->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    (void)uv_poll_start(&local->listen_poll, UV_READABLE, listen_on_readable);
}

void listen_close(struct local *local)
{
    struct stat status;

    if (local->path_inode != 0 && lstat(local->path, &status) == 0 &&
        status.st_dev == local->path_device && status.st_ino == local->path_inode) {
        (void)unlink(local->path);
    }
    if (local->listener >= 0) {
        (void)close(local->listener);
    }
    if (local->spare >= 0) {
        (void)close(local->spare);
    }
    local->listener = local->spare = -1;
}
