/*
 * A client sends a request and gets its document in as many replies as it takes; only then is the
 * next request read, so a client that does not read costs one document until its time is up.
 */
#include "daemon/admin/control.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/admin/listener.h"
#include "daemon/admin/report.h"
#include "proto/codec.h"
#include "proto/control.pb-c.h"

#define REQUEST_MAX 4096u
#define CHUNK 32768u /* bytes of a document in one reply */
#define ACCEPTS_PER_CALL 8

struct client {
    uv_poll_t poll;
    struct control *control;
    int fd;
    struct ucred who;
    char *document; /* being sent; NULL between requests */
    size_t size;
    size_t sent;
    uint32_t status;
    bool last; /* drop the client once the document is sent */
    uint64_t progress_ms;
    struct client *next;
};

struct control {
    uv_loop_t *loop;
    struct control_config config;
    struct listener listener;
    uv_poll_t poll;
    uv_timer_t timer;
    int spare; /* descriptor given up to accept, and drop, when there are no others; or -1 */
    bool closing;
    unsigned handles; /* that have not closed yet */
    uint64_t started_ms;
    struct client *clients;
};

static void note(const struct control *control, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void note(const struct control *control, const char *format, ...)
{
    char line[ERROR_TEXT_SIZE];
    va_list args;

    if (control->config.log != NULL) {
        va_start(args, format);
        (void)vsnprintf(line, sizeof(line), format, args);
        va_end(args);
        control->config.log(control->config.context, line);
    }
}

/* ------------------------------------------------------------------ the life of a client */

static void handle_closed(struct control *control)
{
    control->handles--;
    if (control->handles == 0 && control->closing) {
        listener_close(&control->listener);
        if (control->spare >= 0) {
            (void)close(control->spare);
        }
        free(control);
    }
}

static void on_client_closed(uv_handle_t *handle)
{
    struct client *client = handle->data;
    struct control *control = client->control;

    (void)close(client->fd);
    free(client->document);
    free(client);
    handle_closed(control);
}

static void client_drop(struct client *client)
{
    struct client **link = &client->control->clients;

    while (*link != client) {
        link = &(*link)->next;
    }
    *link = client->next;
    uv_close((uv_handle_t *)&client->poll, on_client_closed);
}

/* ------------------------------------------------------------------ replies */

/* Bytes of the next piece: a UTF-8 sequence is not cut. */
static size_t next_piece(const struct client *client)
{
    size_t left = client->size - client->sent;
    size_t piece = left < CHUNK ? left : CHUNK;

    while (piece < left && piece > 1 &&
           ((unsigned char)client->document[client->sent + piece] & 0xC0) == 0x80) {
        piece--;
    }
    return piece;
}

/* Sends one reply; 0, or the error number. */
static int send_piece(struct client *client)
{
    size_t piece = next_piece(client);
    Adtopk__ControlReply reply = ADTOPK__CONTROL_REPLY__INIT;
    char *text = strndup(client->document + client->sent, piece);
    uint8_t *bytes = NULL;
    size_t size = 0;
    int code = 0;

    if (text != NULL) {
        reply.status = client->status;
        reply.text = text;
        reply.more = client->sent + piece < client->size;
        bytes = codec_pack(&reply.base, &size);
    }
    free(text);
    if (bytes == NULL) {
        return ENOMEM;
    }
    if (send(client->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        code = errno;
    } else {
        client->sent += piece;
        client->progress_ms = uv_now(client->control->loop);
    }
    free(bytes);
    return code;
}

static void on_client(uv_poll_t *handle, int status, int events);

static void client_watch(struct client *client, int events)
{
    if (uv_poll_start(&client->poll, events, on_client) != 0) {
        client_drop(client);
    }
}

static void client_send(struct client *client)
{
    int code = 0;

    while (code == 0 && client->sent < client->size) {
        code = send_piece(client);
    }
    if (code == EAGAIN || code == EINTR || code == ENOBUFS) {
        client_watch(client, UV_WRITABLE | UV_DISCONNECT);
        return;
    }
    free(client->document);
    client->document = NULL;
    if (code != 0 || client->last) {
        client_drop(client);
    } else {
        client_watch(client, UV_READABLE);
    }
}

/* Takes the document; without one, memory was short. */
static void client_reply(struct client *client, uint32_t status, char *document)
{
    if (document == NULL) {
        client_drop(client);
        return;
    }
    client->document = document;
    client->size = strlen(document);
    client->sent = 0;
    client->status = status;
    client->last = status != ADTOPK_OK;
    client_send(client);
}

static void client_refuse(struct client *client, enum adtopk_status status, const char *why)
{
    note(client->control, "refused a request of uid %u, pid %d: %s", client->who.uid,
        client->who.pid, why);
    client_reply(client, status, strdup(why));
}

/* ------------------------------------------------------------------ requests */

static struct report_network describe_network(const struct control *control)
{
    return control->config.network != NULL ? control->config.network(control->config.context)
                                           : (struct report_network){.protection = NULL};
}

static struct report_daemon describe(const struct control *control)
{
    return (struct report_daemon){
        .core = control->config.core,
        .history = control->config.history,
        .node = control->config.node,
        .incarnation = control->config.incarnation,
        .uptime_s = (uv_now(control->loop) - control->started_ms) / 1000,
        .sessions = control->config.sessions(control->config.context),
        .network = describe_network(control),
    };
}

static void answer_status(struct client *client)
{
    struct report_daemon daemon = describe(client->control);

    client_reply(client, ADTOPK_OK, report_status(&daemon));
}

static void answer_stats(struct client *client, const char *job)
{
    struct report_daemon daemon = describe(client->control);
    bool found = false;
    char *document = report_stats(&daemon, job, &found);
    char why[160];

    if (found) {
        client_reply(client, ADTOPK_OK, document);
        return;
    }
    free(document);
    (void)snprintf(why, sizeof(why), "no job \"%.64s\" has or had ranks on this node", job);
    client_refuse(client, ADTOPK_ERR_ARGUMENT, why);
}

static void answer(struct client *client, const Adtopk__ControlRequest *request)
{
    if (request->version != 1) {
        client_refuse(client, ADTOPK_ERR_PROTOCOL, "this daemon speaks version 1 of the messages");
    } else if (request->kind_case == ADTOPK__CONTROL_REQUEST__KIND_STATUS) {
        answer_status(client);
    } else if (request->kind_case == ADTOPK__CONTROL_REQUEST__KIND_STATS) {
        answer_stats(client, request->stats->job);
    } else {
        client_refuse(client, ADTOPK_ERR_PROTOCOL, "this daemon does not know that request");
    }
}

static void take_request(struct client *client, const uint8_t *bytes, size_t size)
{
    struct error err = {.code = ADTOPK_OK};
    ProtobufCMessage *message =
        codec_unpack(&adtopk__control_request__descriptor, bytes, size, REQUEST_MAX, &err);

    if (message == NULL) {
        client_refuse(client, err.code, err.text);
        return;
    }
    answer(client, (const Adtopk__ControlRequest *)message);
    codec_free(message);
}

/* Descriptors are never taken: without room for them the kernel closes them and says so. */
static void client_read(struct client *client)
{
    uint8_t bytes[REQUEST_MAX];
    struct iovec part = {.iov_base = bytes, .iov_len = sizeof(bytes)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t size = recvmsg(client->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    client->progress_ms = uv_now(client->control->loop);
    if (size <= 0) { /* an empty message means nothing either */
        client_drop(client);
    } else if ((message.msg_flags & MSG_CTRUNC) != 0) {
        client_refuse(client, ADTOPK_ERR_PROTOCOL, "a request with descriptors");
    } else if ((message.msg_flags & MSG_TRUNC) != 0) {
        client_refuse(client, ADTOPK_ERR_PROTOCOL, "a request of more than 4096 bytes");
    } else {
        take_request(client, bytes, (size_t)size);
    }
}

static void on_client(uv_poll_t *handle, int status, int events)
{
    struct client *client = handle->data;

    if (status < 0 || (events & UV_DISCONNECT) != 0) {
        client_drop(client);
    } else if (client->document != NULL) {
        client_send(client);
    } else {
        client_read(client);
    }
}

/* ------------------------------------------------------------------ accepting */

static bool has_room(const struct control *control, uid_t uid)
{
    unsigned all = 0;
    unsigned same = 0;

    for (const struct client *client = control->clients; client != NULL; client = client->next) {
        all++;
        same += client->who.uid == uid ? 1 : 0;
    }
    return all < CONTROL_CLIENTS && (uid == 0 || same < CONTROL_CLIENTS_A_USER);
}

/* Takes the descriptor over if it returns true. */
static bool client_open(struct control *control, int fd)
{
    struct client *client = calloc(1, sizeof(*client));
    socklen_t size = sizeof(client->who);

    if (client == NULL) {
        return false;
    }
    client->fd = fd;
    client->control = control;
    client->poll.data = client;
    client->progress_ms = uv_now(control->loop);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &client->who, &size) != 0 ||
        !has_room(control, client->who.uid) ||
        uv_poll_init(control->loop, &client->poll, fd) != 0) {
        free(client);
        return false;
    }
    control->handles++;
    client->next = control->clients;
    control->clients = client;
    client_watch(client, UV_READABLE);
    return true;
}

/* Nobody can be served without a descriptor, but a connection that is left in the queue would
 * wake the loop for ever. */
static void shed(struct control *control)
{
    int fd;

    if (control->spare >= 0) {
        (void)close(control->spare);
    }
    fd = accept4(control->listener.fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) {
        (void)close(fd);
    }
    control->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    note(control, "no descriptors left: dropped a connection");
    if (fd < 0) {
        (void)uv_poll_stop(&control->poll); /* until the timer starts it again */
    }
}

static void on_connection(uv_poll_t *handle, int status, int events)
{
    struct control *control = handle->data;

    (void)status;
    (void)events;
    for (int i = 0; i < ACCEPTS_PER_CALL; i++) {
        int fd = accept4(control->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0) {
            if (!client_open(control, fd)) {
                note(control, "too many clients: dropped a connection");
                (void)close(fd);
            }
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            shed(control);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

static void on_timer(uv_timer_t *handle)
{
    struct control *control = handle->data;
    uint64_t now = uv_now(control->loop);
    struct client *next;

    for (struct client *client = control->clients; client != NULL; client = next) {
        next = client->next;
        if (now - client->progress_ms >= control->config.idle_ms) {
            client_drop(client);
        }
    }
    (void)uv_poll_start(&control->poll, UV_READABLE, on_connection);
}

/* ------------------------------------------------------------------ opening and closing */

static enum adtopk_status start(struct control *control, struct error *err)
{
    uint64_t tick = control->config.idle_ms / 4 + 1;
    int code = uv_poll_init(control->loop, &control->poll, control->listener.fd);

    if (code == 0) {
        control->handles = 2;
        (void)uv_timer_init(control->loop, &control->timer); /* cannot fail */
        control->poll.data = control;
        control->timer.data = control;
        code = uv_poll_start(&control->poll, UV_READABLE, on_connection);
    }
    if (code == 0) {
        code = uv_timer_start(&control->timer, on_timer, tick, tick);
    }
    return code == 0 ? ADTOPK_OK
                     : error_set(err, ADTOPK_ERR_SYSTEM, "cannot watch the socket %s: %s",
                           control->listener.path, uv_strerror(code));
}

struct control *control_create(
    uv_loop_t *loop, const struct control_config *config, struct error *err)
{
    struct control *control = calloc(1, sizeof(*control));

    if (control == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for the control socket");
        return NULL;
    }
    control->loop = loop;
    control->config = *config;
    control->config.path = NULL; /* the listener has its own copy */
    control->config.idle_ms = config->idle_ms > 0 ? config->idle_ms : CONTROL_IDLE_MS;
    uv_update_time(loop);
    control->started_ms = uv_now(loop);
    if (listener_open(&control->listener, config->path, 0666, err) != ADTOPK_OK) {
        free(control);
        return NULL;
    }
    control->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (start(control, err) != ADTOPK_OK) {
        control_close(control);
        return NULL;
    }
    return control;
}

static void on_closed(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

void control_close(struct control *control)
{
    control->closing = true;
    listener_unlink(&control->listener);
    while (control->clients != NULL) {
        client_drop(control->clients);
    }
    if (control->handles == 0) { /* the poll handle could not even be made */
        control->handles = 1;
        handle_closed(control);
        return;
    }
    uv_close((uv_handle_t *)&control->poll, on_closed);
    uv_close((uv_handle_t *)&control->timer, on_closed);
}
