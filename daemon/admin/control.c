/*
 * A client sends a request and gets its document in as many replies as it takes. Only then does the
 * daemon read the next request. What may go wrong:
 *   - The client does not read, or sends nothing: it costs one document until its time is up.
 *   - It sends a malformed or forbidden request: it gets a sentence, and the daemon hangs up.
 *   - It goes away while it waits for an outcome: its ticket is forgotten, the core goes on.
 *   - There are too many clients, or no descriptors left: the connection is dropped.
 */
#include "daemon/admin/control.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/admin/client.h"
#include "daemon/admin/jobname.h"
#include "proto/codec.h"
#include "proto/control.pb-c.h"
#include "proto/retry.h"

#define REQUEST_MAX CODEC_LOCAL_MAX
#define CHUNK 32768u /* bytes of a document in one reply */
#define TICK_MS 1000 /* the longest time between two checks of the clock */

static void control_log_line(const struct control *control, enum control_topic topic, uint32_t uid,
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
    control_log_line(control, topic, control->rights.self, format, args);
    va_end(args);
}

/* The same about what a user did, whose share of the log's lines it takes. */
static void control_note_of(
    const struct control *control, uid_t uid, enum control_topic topic, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    control_log_line(control, topic, uid, format, args);
    va_end(args);
}

void client_log(const struct client *client, enum control_topic topic, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    control_log_line(client->control, topic, client->who.uid, format, args);
    va_end(args);
}

/* ------------------------------------------------------------------ the life of a client */

static void control_handle_closed(struct control *control)
{
    control->handles--;
    if (control->handles == 0 && control->closing) {
        free(control);
    }
}

static void control_on_client_closed(uv_handle_t *handle)
{
    struct client *client = handle->data;
    struct control *control = client->control;

    (void)close(client->fd);
    free(client->document);
    free(client);
    control_handle_closed(control);
}

static void control_client_drop(struct client *client)
{
    struct client **link = &client->control->clients;

    while (*link != client) {
        link = &(*link)->next;
    }
    *link = client->next;
    uv_close((uv_handle_t *)&client->poll, control_on_client_closed);
}

/* ------------------------------------------------------------------ replies */

/* Bytes of the next piece: a UTF-8 sequence is not cut. */
static size_t control_next_piece(const struct client *client)
{
    size_t left = client->size - client->sent;
    size_t piece = left < CHUNK ? left : CHUNK;

    while (piece < left && piece > 1 &&
           ((unsigned char)client->document[client->sent + piece] & 0xC0) == 0x80) {
        piece--;
    }
    return piece;
}

#define CONTROL_SMALL (ERROR_TEXT_SIZE + 64u) /* bytes: a reply with one sentence */

/* Sends a sentence. It needs no memory and does not wait: if there is no room for it, the client
 * has enough to read. */
static void control_say(int fd, const Adtopk__ControlReply *reply)
{
    uint8_t bytes[CONTROL_SMALL];
    ssize_t sent;

    if (adtopk__control_reply__get_packed_size(reply) <= sizeof(bytes)) {
        RETRY(sent, send(fd, bytes, adtopk__control_reply__pack(reply, bytes),
                        MSG_DONTWAIT | MSG_NOSIGNAL));
    }
}

/* Says why the connection closes before its request was answered. */
static void control_turn_away(int fd, enum adtopk_status status, const char *why)
{
    Adtopk__ControlReply reply = ADTOPK__CONTROL_REPLY__INIT;

    reply.status = status;
    reply.text = (char *)(uintptr_t)why;
    control_say(fd, &reply);
}

/* Sends one reply; 0, or the error number. */
static int control_send_piece(struct client *client)
{
    size_t piece = control_next_piece(client);
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

/* Tells the client what the outcome waits for. */
static void control_client_note(struct client *client, const char *sentence)
{
    Adtopk__ControlReply reply = ADTOPK__CONTROL_REPLY__INIT;

    reply.note = (char *)(uintptr_t)sentence;
    reply.more = 1;
    control_say(client->fd, &reply);
}

static void control_on_client(uv_poll_t *handle, int status, int events);

static void control_client_watch(struct client *client, int events)
{
    if (uv_poll_start(&client->poll, events, control_on_client) != 0) {
        control_client_drop(client);
    }
}

static void control_client_send(struct client *client)
{
    int code = 0;

    while (code == 0 && client->sent < client->size) {
        code = control_send_piece(client);
    }
    if (code == EAGAIN || code == EINTR || code == ENOBUFS) {
        control_client_watch(client, UV_WRITABLE | UV_DISCONNECT);
        return;
    }
    free(client->document);
    client->document = NULL;
    if (code == ENOMEM) {
        control_turn_away(client->fd, ADTOPK_ERR_MEMORY, "the daemon has no memory for an answer");
    }
    if (code != 0 || client->last) {
        control_client_drop(client);
    } else {
        control_client_watch(client, UV_READABLE);
    }
}

void client_reply(struct client *client, uint32_t status, char *document)
{
    if (document == NULL) {
        control_note(client->control, CONTROL_WARNING, "no memory for an answer");
        control_turn_away(client->fd, ADTOPK_ERR_MEMORY, "the daemon has no memory for an answer");
        control_client_drop(client);
        return;
    }
    client->ticket = 0;
    client->document = document;
    client->size = strlen(document);
    client->sent = 0;
    client->status = status;
    client->last = status != ADTOPK_OK;
    control_client_send(client);
}

const char *client_name(const struct client *client, char name[CLIENT_NAME_SIZE])
{
    if (client->who.pid > 0) {
        (void)snprintf(name, CLIENT_NAME_SIZE, "uid %u, pid %d", client->who.uid, client->who.pid);
    } else {
        (void)snprintf(name, CLIENT_NAME_SIZE, "uid %u", client->who.uid);
    }
    return name;
}

void control_refuse(struct client *client, enum adtopk_status status, const char *why)
{
    char name[CLIENT_NAME_SIZE];

    client_log(client, status == ADTOPK_ERR_DENIED ? CONTROL_REFUSED : CONTROL_DEBUG,
        "refused a request of %s: %s", client_name(client, name), why);
    client_reply(client, status, strdup(why));
}

void client_await(struct client *client)
{
    control_client_watch(client, UV_DISCONNECT);
}

/* ------------------------------------------------------------------ requests */

/* Descriptors are never taken: without room for them the kernel closes them and says so. */
static void control_client_read(struct client *client)
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
        control_client_drop(client);
    } else if ((message.msg_flags & MSG_CTRUNC) != 0) {
        control_refuse(client, ADTOPK_ERR_PROTOCOL, "a request with descriptors");
    } else if ((message.msg_flags & MSG_TRUNC) != 0) {
        control_refuse(client, ADTOPK_ERR_PROTOCOL, "a request of more than 60000 bytes");
    } else {
        request_take(client, bytes, (size_t)size);
    }
}

/* Whether the clients of this iteration had their time. The requests of the others stay in their
 * sockets until the next one. */
static bool control_is_late(struct control *control)
{
    const uint64_t now_ns = uv_hrtime();

    if (control->served_ms != uv_now(control->loop)) {
        control->served_ms = uv_now(control->loop);
        control->served_ns = now_ns;
    }
    return now_ns - control->served_ns > CONTROL_ITERATION_NS;
}

static void control_on_client(uv_poll_t *handle, int status, int events)
{
    struct client *client = handle->data;

    if (status < 0 || (events & UV_DISCONNECT) != 0) {
        control_client_drop(client);
    } else if (client->document != NULL) {
        control_client_send(client);
    } else if (!control_is_late(client->control)) {
        control_client_read(client);
    }
}

/* ------------------------------------------------------------------ accepting */

static bool control_has_room(const struct control *control, int fd, const struct ucred *who)
{
    const bool administrates = rights_allow(&control->rights, RIGHT_ADMIN, fd, who, 0);
    unsigned all = 0;
    unsigned same = 0;

    for (const struct client *client = control->clients; client != NULL; client = client->next) {
        all++;
        same += client->who.uid == who->uid ? 1 : 0;
    }
    return administrates
               ? all < CONTROL_CLIENTS
               : all < CONTROL_CLIENTS - CONTROL_CLIENTS_FREE && same < CONTROL_CLIENTS_A_USER;
}

/* Takes the descriptor over if it returns true. */
static bool control_client_open(struct control *control, int fd, const struct ucred *who)
{
    struct client *client = calloc(1, sizeof(*client));

    if (client == NULL) {
        return false;
    }
    client->fd = fd;
    client->who = *who;
    client->control = control;
    client->poll.data = client;
    client->progress_ms = uv_now(control->loop);
    if (uv_poll_init(control->loop, &client->poll, fd) != 0) {
        free(client);
        return false;
    }
    control->handles++;
    client->next = control->clients;
    control->clients = client;
    control_client_watch(client, UV_READABLE);
    return true;
}

static void control_on_connection(void *context, int fd, const struct ucred *who)
{
    struct control *control = context;

    if (!control_has_room(control, fd, who)) {
        control_note_of(control, who->uid, CONTROL_WARNING,
            "too many clients: dropped a connection of uid %u", (unsigned)who->uid);
        control_turn_away(
            fd, ADTOPK_ERR_STATE, "the daemon has no room for another client: try again soon");
        (void)close(fd);
    } else if (!control_client_open(control, fd, who)) {
        control_turn_away(fd, ADTOPK_ERR_MEMORY, "the daemon has no memory for another client");
        (void)close(fd);
    }
}

static void control_on_exhausted(void *context, int fd, const char *why)
{
    control_note(context, CONTROL_WARNING, "dropped a connection: %s", why);
    control_turn_away(fd, ADTOPK_ERR_SYSTEM, why);
}

/* The sentence does not say that nothing will happen: the core may be at it. A reason that the
 * client was told before is not repeated. */
static void control_check_wait(struct client *client, uint64_t now)
{
    char waits[ERROR_TEXT_SIZE];
    char why[ERROR_TEXT_SIZE + 160];

    if (now >= client->deadline_ms) {
        request_waits(client, waits);
        if (strcmp(waits, client->noted) == 0) {
            waits[0] = '\0';
        }
        (void)snprintf(why, sizeof(why),
            "no outcome within %" PRIu64 " ms; the daemon goes on with it all the same%s%s",
            client->limit_ms, waits[0] != '\0' ? "; " : "", waits);
        control_refuse(client, ADTOPK_ERR_TIMEOUT, why);
    } else if (client->noted[0] == '\0' &&
               now + client->limit_ms >= client->deadline_ms + CONTROL_NOTE_MS) {
        request_waits(client, client->noted);
        if (client->noted[0] != '\0') {
            control_client_note(client, client->noted);
        }
    }
}

static void control_on_timer(uv_timer_t *handle)
{
    struct control *control = handle->data;
    uint64_t now = uv_now(control->loop);
    struct client *next;

    for (struct client *client = control->clients; client != NULL; client = next) {
        next = client->next;
        if (client->ticket != 0) {
            control_check_wait(client, now);
        } else if (now - client->progress_ms >= control->config.idle_ms) {
            control_client_drop(client);
        }
    }
}

/* ------------------------------------------------------------------ opening and closing */

static enum adtopk_status control_start(
    struct control *control, const char *path, struct error *err)
{
    const struct listener_config config = {.path = path,
        .mode = 0666,
        .accepted = control_on_connection,
        .exhausted = control_on_exhausted,
        .context = control};
    const uint64_t quarter = control->config.idle_ms / 4 + 1;
    const uint64_t tick = quarter < TICK_MS ? quarter : TICK_MS;

    const enum adtopk_status status =
        listener_open(&control->listener, control->loop, &config, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    control->handles = 2;
    (void)uv_timer_init(control->loop, &control->timer); /* cannot fail */
    control->timer.data = control;
    (void)uv_timer_start(&control->timer, control_on_timer, tick, tick);
    return ADTOPK_OK;
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
    control->limits.requests = CONTROL_PENDING_A_USER;
    control->rights = rights_of(geteuid(), control->config.group);
    control->config.idle_ms = config->idle_ms > 0 ? config->idle_ms : CONTROL_IDLE_MS;
    uv_update_time(loop);
    control->started_ms = uv_now(loop);
    if (control_start(control, config->path, err) != ADTOPK_OK) {
        free(control);
        return NULL;
    }
    if (!control->rights.has_group) { /* the default one may well be missing */
        control_note(control,
            strcmp(control->config.group, CONTROL_GROUP) == 0 ? CONTROL_DEBUG : CONTROL_WARNING,
            "there is no group \"%s\": only root, uid %u and jobs' owners may change things",
            control->config.group, control->rights.self);
    }
    return control;
}

/* Forgets the request with this ticket, and returns it. */
static struct control_request control_take_request(struct control *control, uint64_t ticket)
{
    for (unsigned i = 0; i < control->pending; i++) {
        const struct control_request request = control->request[i];
        if (request.ticket == ticket) {
            control->request[i] = control->request[--control->pending];
            return request;
        }
    }
    return (struct control_request){.ticket = ticket};
}

void control_limit(struct control *control, const struct control_limits *limits)
{
    control->limits = *limits;
}

/* Nobody waits for this outcome any more. */
static void control_note_outcome(
    struct control *control, const struct control_request *request, const struct action *action)
{
    char name[JOBNAME_SIZE] = "that has ended";
    struct job_info job;

    if (core_find_job(control->config.core, request->job, &job)) {
        jobname_print(&job.key, name);
    }
    if (action->type == ACTION_POLICY && action->status == ADTOPK_OK) {
        control_note_of(control, request->uid, CONTROL_CHANGE,
            "policy version %" PRIu64 " of job %s holds from step %" PRIu64
            ", set by uid %u, whose client has gone",
            action->operation, name, action->number, request->uid);
    } else {
        control_note_of(control, request->uid, CONTROL_INFO,
            "the outcome of a request about job %s whose client has gone: %s", name,
            action->status == ADTOPK_OK ? "done" : action->error->text);
    }
}

void control_apply(struct control *control, const struct action *action)
{
    const struct control_request request = control_take_request(control, action->ticket);
    struct client *client = control->clients;

    while (client != NULL && client->ticket != action->ticket) {
        client = client->next;
    }
    if (client != NULL) {
        client->progress_ms = uv_now(control->loop);
        request_finish(client, action);
    } else {
        control_note_outcome(control, &request, action);
    }
}

bool control_is_draining(const struct control *control)
{
    return control->draining;
}

static void control_on_listener_closed(void *context)
{
    control_handle_closed(context);
}

static void control_on_timer_closed(uv_handle_t *handle)
{
    control_handle_closed(handle->data);
}

void control_close(struct control *control)
{
    control->closing = true;
    while (control->clients != NULL) {
        control_client_drop(control->clients);
    }
    listener_close(&control->listener, control_on_listener_closed);
    uv_close((uv_handle_t *)&control->timer, control_on_timer_closed);
}
