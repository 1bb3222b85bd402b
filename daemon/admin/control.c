/*
 * A client sends a request and gets its document in as many replies as it takes; only then is the
 * next request read. What may go wrong:
 *   - It does not read, or says nothing: it costs one document until its time is up.
 *   - It sends rubbish, or what it may not: it gets a sentence, and the daemon hangs up.
 *   - It goes away while it waits for an outcome: its ticket is forgotten, the core goes on.
 *   - There are too many of it, or no descriptors left: the connection is dropped.
 */
#include "daemon/admin/control.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/admin/client.h"
#include "proto/codec.h"
#include "proto/control.pb-c.h"

#define REQUEST_MAX CODEC_LOCAL_MAX
#define CHUNK 32768u /* bytes of a document in one reply */
#define ACCEPTS_PER_CALL 8
#define TICK_MS 1000 /* at most between looks at the clock */

static void log_line(const struct control *control, enum control_topic topic, uint32_t uid,
    const char *format, va_list args)
{
    char line[ERROR_TEXT_SIZE * 2];

    if (control->config.log != NULL) {
        (void)vsnprintf(line, sizeof(line), format, args);
        control->config.log(control->config.context, topic, uid, line);
    }
}

void control_note(const struct control *control, enum control_topic topic, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    log_line(control, topic, control->rights.self, format, args);
    va_end(args);
}

void client_log(const struct client *client, enum control_topic topic, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    log_line(client->control, topic, client->who.uid, format, args);
    va_end(args);
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

/* Tells it meanwhile what the outcome waits for. One small packet: where there is no room for it,
 * the client has enough to read. */
static void client_note(struct client *client, const char *sentence)
{
    Adtopk__ControlReply reply = ADTOPK__CONTROL_REPLY__INIT;
    uint8_t *bytes;
    size_t size = 0;

    reply.note = (char *)(uintptr_t)sentence;
    reply.more = 1;
    bytes = codec_pack(&reply.base, &size);
    if (bytes != NULL) {
        (void)send(client->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    free(bytes);
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

void client_reply(struct client *client, uint32_t status, char *document)
{
    if (document == NULL) {
        control_note(client->control, CONTROL_WARNING, "no memory for an answer");
        client_drop(client);
        return;
    }
    client->ticket = 0;
    client->document = document;
    client->size = strlen(document);
    client->sent = 0;
    client->status = status;
    client->last = status != ADTOPK_OK;
    client_send(client);
}

void client_refuse(struct client *client, enum adtopk_status status, const char *why)
{
    client_log(client, status == ADTOPK_ERR_DENIED ? CONTROL_REFUSED : CONTROL_DEBUG,
        "refused a request of uid %u, pid %d: %s", client->who.uid, client->who.pid, why);
    client_reply(client, status, strdup(why));
}

void client_await(struct client *client)
{
    client_watch(client, UV_DISCONNECT);
}

/* ------------------------------------------------------------------ requests */

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
        client_refuse(client, ADTOPK_ERR_PROTOCOL, "a request of more than 60000 bytes");
    } else {
        request_take(client, bytes, (size_t)size);
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
    return uid == 0 ? all < CONTROL_CLIENTS
                    : all < CONTROL_CLIENTS - CONTROL_CLIENTS_FREE && same < CONTROL_CLIENTS_A_USER;
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
    control_note(control, CONTROL_WARNING, "no descriptors left: dropped a connection");
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
                control_note(control, CONTROL_WARNING, "too many clients: dropped a connection");
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

/* The sentence does not say that nothing will happen: the core may be at it. */
static void check_wait(struct client *client, uint64_t now)
{
    char waits[ERROR_TEXT_SIZE];
    char why[ERROR_TEXT_SIZE + 160];

    if (now >= client->deadline_ms) {
        request_waits(client, waits);
        (void)snprintf(why, sizeof(why),
            "no outcome within %" PRIu64 " ms; the daemon goes on with it all the same%s%s",
            client->limit_ms, waits[0] != '\0' ? "; " : "", waits);
        client_refuse(client, ADTOPK_ERR_TIMEOUT, why);
    } else if (!client->noted && now + client->limit_ms >= client->deadline_ms + CONTROL_NOTE_MS) {
        request_waits(client, waits);
        if (waits[0] != '\0') {
            client->noted = true;
            client_note(client, waits);
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
        if (client->ticket != 0) {
            check_wait(client, now);
        } else if (now - client->progress_ms >= control->config.idle_ms) {
            client_drop(client);
        }
    }
    (void)uv_poll_start(&control->poll, UV_READABLE, on_connection);
}

/* ------------------------------------------------------------------ opening and closing */

static enum adtopk_status start(struct control *control, struct error *err)
{
    uint64_t quarter = control->config.idle_ms / 4 + 1;
    uint64_t tick = quarter < TICK_MS ? quarter : TICK_MS;
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
    control->config.group = config->group != NULL ? config->group : CONTROL_GROUP;
    control->user_requests = CONTROL_PENDING_A_USER;
    control->rights = rights_of(geteuid(), control->config.group);
    control->config.idle_ms = config->idle_ms > 0 ? config->idle_ms : CONTROL_IDLE_MS;
    uv_update_time(loop);
    control->started_ms = uv_now(loop);
    if (listener_open(&control->listener, config->path, 0666, err) != ADTOPK_OK) {
        free(control);
        return NULL;
    }
    if (!control->rights.has_group) { /* the default one may well be missing */
        control_note(control,
            strcmp(control->config.group, CONTROL_GROUP) == 0 ? CONTROL_DEBUG : CONTROL_WARNING,
            "there is no group \"%s\": only root, uid %u and jobs' owners may change things",
            control->config.group, control->rights.self);
    }
    control->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (start(control, err) != ADTOPK_OK) {
        control_close(control);
        return NULL;
    }
    return control;
}

static void drop_request(struct control *control, uint64_t ticket)
{
    for (unsigned i = 0; i < control->pending; i++) {
        if (control->request[i].ticket == ticket) {
            control->request[i] = control->request[--control->pending];
            return;
        }
    }
}

void control_limit(struct control *control, unsigned requests)
{
    control->user_requests = requests;
}

void control_apply(struct control *control, const struct action *action)
{
    struct client *client = control->clients;

    drop_request(control, action->ticket);
    while (client != NULL && client->ticket != action->ticket) {
        client = client->next;
    }
    if (client != NULL) {
        client->progress_ms = uv_now(control->loop);
        request_finish(client, action);
    } else {
        control_note(control, CONTROL_INFO, "the outcome of a request whose client has gone: %s",
            action->status == ADTOPK_OK ? "done" : action->error->text);
    }
}

bool control_is_draining(const struct control *control)
{
    return control->draining;
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
