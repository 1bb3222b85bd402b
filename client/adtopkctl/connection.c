#include "client/adtopkctl/connection.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "proto/codec.h"

#define DOCUMENT_MAX (256u << 20) /* bytes: no daemon sends more */

struct connection {
    int fd;
    const char *path;
    int64_t deadline_ms;
    char *text;
    size_t size;
    bool answered; /* with an error */
    void (*note)(const char *sentence);
};

static int64_t now_ms(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static enum adtopk_status connection_lost(
    const struct connection *connection, const char *what, struct error *err)
{
    return error_set(err, ADTOPK_ERR_UNREACHABLE, "%s %s: %s", what, connection->path,
        errno != 0 ? strerror(errno) : "the daemon closed the connection");
}

/* Waits until the socket is ready for `events`. */
static enum adtopk_status await(
    const struct connection *connection, short events, struct error *err)
{
    for (;;) {
        struct pollfd entry = {.fd = connection->fd, .events = events};
        int64_t left = connection->deadline_ms - now_ms();
        int ready = left > 0 ? poll(&entry, 1, (int)left) : 0;

        if (ready > 0) {
            return ADTOPK_OK;
        }
        if (ready == 0) {
            return error_set(err, ADTOPK_ERR_TIMEOUT, "no answer on %s in time", connection->path);
        }
        if (errno != EINTR) {
            return connection_lost(connection, "cannot wait for", err);
        }
    }
}

static enum adtopk_status connect_to(struct connection *connection, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(connection->path);

    if (length == 0 || length >= sizeof(address.sun_path)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "a socket's path has 1 to %zu bytes, not %zu",
            sizeof(address.sun_path) - 1, length);
    }
    memcpy(address.sun_path, connection->path, length);
    connection->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connection->fd < 0) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "cannot make a socket: %s", strerror(errno));
    }
    while (connect(connection->fd, (const struct sockaddr *)&address, sizeof(address)) != 0) {
        /* EAGAIN: the daemon's queue of connections is full, and poll() does not tell when not. */
        struct timespec pause = {.tv_nsec = 10000000};

        if (errno == EACCES || errno == EPERM) {
            return error_set(err, ADTOPK_ERR_DENIED, "cannot connect to %s: %s", connection->path,
                strerror(errno));
        }
        if (errno == ENOENT || errno == ECONNREFUSED) {
            return error_set(err, ADTOPK_ERR_UNREACHABLE,
                "cannot connect to %s: %s; does adtopkd run, with this control_socket?",
                connection->path, strerror(errno));
        }
        if ((errno != EAGAIN && errno != EINTR) || now_ms() >= connection->deadline_ms) {
            return connection_lost(connection, "cannot connect to", err);
        }
        (void)nanosleep(&pause, NULL);
    }
    return ADTOPK_OK;
}

static enum adtopk_status send_request(
    const struct connection *connection, const Adtopk__ControlRequest *request, struct error *err)
{
    size_t size = 0;
    uint8_t *bytes = codec_pack(&request->base, &size);
    ssize_t sent;

    if (bytes == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the request");
    }
    sent = send(connection->fd, bytes, size, MSG_NOSIGNAL); /* the first: there is room */
    free(bytes);
    return sent >= 0 ? ADTOPK_OK : connection_lost(connection, "cannot send to", err);
}

static enum adtopk_status connection_append(
    struct connection *connection, const char *text, struct error *err)
{
    size_t length = strlen(text);
    char *grown;

    if (length > DOCUMENT_MAX - connection->size) {
        return error_set(
            err, ADTOPK_ERR_PROTOCOL, "the answer is longer than %u bytes", DOCUMENT_MAX);
    }
    grown = realloc(connection->text, connection->size + length + 1);
    if (grown == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the answer");
    }
    memcpy(grown + connection->size, text, length + 1);
    connection->text = grown;
    connection->size += length;
    return ADTOPK_OK;
}

/* One reply; *more tells whether another one follows. */
static enum adtopk_status receive(struct connection *connection, bool *more, struct error *err)
{
    static const size_t room = CODEC_LOCAL_MAX;
    uint8_t bytes[CODEC_LOCAL_MAX];
    Adtopk__ControlReply *reply;
    enum adtopk_status status = await(connection, POLLIN, err);
    ssize_t size;

    if (status != ADTOPK_OK) {
        return status;
    }
    errno = 0;
    size = recv(connection->fd, bytes, room, 0);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
        return ADTOPK_OK;
    }
    if (size <= 0) {
        return connection_lost(connection, "cannot read from", err);
    }
    reply = (Adtopk__ControlReply *)codec_unpack(
        &adtopk__control_reply__descriptor, bytes, (size_t)size, room, err);
    if (reply == NULL) {
        return err->code;
    }
    connection->answered = reply->status != ADTOPK_OK;
    if (connection->answered) {
        status = error_set(err,
            reply->status < ERROR_STATUSES ? (enum adtopk_status)reply->status
                                           : ADTOPK_ERR_PROTOCOL,
            "%s", reply->text);
    } else {
        *more = reply->more != 0;
        if (reply->note[0] != '\0') {
            connection->note(reply->note);
        }
        status = connection_append(connection, reply->text, err);
    }
    codec_free(&reply->base);
    return status;
}

enum adtopk_status connection_ask(const char *path, int timeout_ms,
    const Adtopk__ControlRequest *request, void (*note)(const char *sentence), char **document,
    bool *answered, struct error *err)
{
    struct connection connection = {
        .fd = -1, .path = path, .deadline_ms = now_ms() + timeout_ms, .note = note};
    enum adtopk_status status = connect_to(&connection, err);
    bool more = true;

    if (status == ADTOPK_OK) {
        status = send_request(&connection, request, err);
    }
    while (status == ADTOPK_OK && more) {
        status = receive(&connection, &more, err);
    }
    if (connection.fd >= 0) {
        (void)close(connection.fd);
    }
    *answered = connection.answered;
    if (status == ADTOPK_OK) {
        *document = connection.text;
    } else {
        free(connection.text);
    }
    return status;
}
