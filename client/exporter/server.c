#include "client/exporter/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "client/exporter/answers.h"
#include "client/exporter/history.h"
#include "client/exporter/metrics.h"
#include "client/exporter/page.h"
#include "client/exporter/source.h"

#define TEXT "text/plain; charset=utf-8"
#define JSON "application/json"
#define PROMETHEUS "text/plain; version=0.0.4; charset=utf-8"
#define OPENMETRICS "application/openmetrics-text; version=1.0.0; charset=utf-8"
#define HTML "text/html; charset=utf-8"

/* The paths; one has two forms. fresh: a snapshot is needed. */
enum path {
    PATH_METRICS,
    PATH_OPENMETRICS,
    PATH_HEALTH,
    PATH_STATUS,
    PATH_STATS,
    PATH_RANKS,
    PATH_HISTORY,
    PATH_PAGE,
    PATH_COUNT
};

static const struct {
    const char *url;
    bool fresh;
} paths[PATH_COUNT] = {
    [PATH_METRICS] = {"/metrics", true},
    [PATH_OPENMETRICS] = {"/metrics", true},
    [PATH_HEALTH] = {"/healthz", true},
    [PATH_STATUS] = {"/api/status", true},
    [PATH_STATS] = {"/api/stats", true},
    [PATH_RANKS] = {"/api/ranks", true},
    [PATH_HISTORY] = {"/api/history", false},
    [PATH_PAGE] = {"/", false},
};

struct server {
    uv_loop_t *loop;
    uv_poll_t poll;   /* of libmicrohttpd's descriptor */
    uv_timer_t timer; /* for what libmicrohttpd has to do without one */
    uv_timer_t sampler;
    struct MHD_Daemon *http;
    struct clients clients;
    struct source *source;
    struct history history;
    struct answers answers;
    struct kept_answer kept[PATH_COUNT];            /* of the last snapshot and the last sample */
    bool sampling;                                  /* the next snapshot goes into the history */
    struct MHD_Connection *waiting[SERVER_WAITERS]; /* suspended */
    unsigned waiters;
};

static struct client *server_client(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info != NULL ? info->socket_context : NULL;
}

/* What a connection's request has come to. */
static char request_begun, request_waited;

/* A line of text. */
static struct answer answer_text(unsigned code, const char *sentence)
{
    char *text = NULL;
    const int size = asprintf(&text, "%s\n", sentence);

    return (struct answer){code, TEXT, size >= 0 ? text : NULL, size >= 0 ? (size_t)size : 0};
}

/* why: there is no document. */
static struct answer answer_document(const cJSON *document, const char *why)
{
    cJSON *fault = NULL;
    char *text;

    if (document == NULL) {
        fault = cJSON_CreateObject();
        (void)cJSON_AddStringToObject(fault, "error", why);
        document = fault;
    }
    text = cJSON_PrintUnformatted(document);
    cJSON_Delete(fault);
    return (struct answer){fault != NULL ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK, JSON, text,
        text != NULL ? strlen(text) : 0};
}

static struct answer answer_metrics(const struct snapshot *snapshot, bool open_metrics)
{
    struct answer answer = {.code = MHD_HTTP_OK, .type = open_metrics ? OPENMETRICS : PROMETHEUS};
    FILE *out = open_memstream(&answer.text, &answer.size);
    bool whole;

    if (out == NULL) {
        return answer;
    }
    metrics_write(out, snapshot, open_metrics);
    whole = ferror(out) == 0;
    if (fclose(out) != 0 || !whole) {
        free(answer.text);
        answer.text = NULL;
    }
    return answer;
}

static struct answer answer_health(const struct snapshot *snapshot)
{
    return snapshot->status != NULL ? answer_text(MHD_HTTP_OK, "ok")
                                    : answer_text(MHD_HTTP_SERVICE_UNAVAILABLE, snapshot->why.text);
}

/* In the form that the path's readers expect. */
static struct answer answer_refused(enum path path, const char *why)
{
    return strncmp(paths[path].url, "/api/", 5) == 0
               ? answer_document(NULL, why)
               : answer_text(MHD_HTTP_SERVICE_UNAVAILABLE, why);
}

static bool accepts_open_metrics(struct MHD_Connection *connection)
{
    const char *accepted =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT);

    return accepted != NULL && strstr(accepted, "application/openmetrics-text") != NULL;
}

static enum path path_of(struct MHD_Connection *connection, const char *url)
{
    int path = 0;

    while (path < PATH_COUNT && strcmp(paths[path].url, url) != 0) {
        path++;
    }
    return path == PATH_METRICS && accepts_open_metrics(connection) ? PATH_OPENMETRICS
                                                                    : (enum path)path;
}

/* Drops the answers that tell of the snapshot before. */
static void server_drop_fresh(struct server *server)
{
    for (int i = 0; i < PATH_COUNT; i++) {
        if (paths[i].fresh) {
            answers_drop(&server->answers, &server->kept[i]);
        }
    }
}

static struct answer server_answer(const struct server *server, enum path path)
{
    const struct snapshot *snapshot = source_snapshot(server->source);
    struct answer answer = {.code = MHD_HTTP_OK, .type = JSON};

    switch (path) {
    case PATH_METRICS: return answer_metrics(snapshot, false);
    case PATH_OPENMETRICS: return answer_metrics(snapshot, true);
    case PATH_STATUS: return answer_document(snapshot->status, snapshot->why.text);
    case PATH_STATS: return answer_document(snapshot->stats, snapshot->why.text);
    case PATH_RANKS: return answer_document(snapshot->ranks, snapshot->why.text);
    case PATH_HISTORY:
        answer.text = history_document(&server->history, &answer.size);
        return answer;
    case PATH_PAGE:
        answer.type = HTML;
        answer.size = (size_t)(page_end - page_begin);
        answer.text = strndup(page_begin, answer.size);
        return answer;
    case PATH_HEALTH: return answer_health(snapshot);
    case PATH_COUNT: break;
    }
    return answer_text(MHD_HTTP_NOT_FOUND,
        "there are /metrics, /healthz, /api/status, /api/stats, /api/ranks, /api/history and /");
}

/* MHD_NO closes the connection, as where there is no memory. */
static enum MHD_Result server_queue(struct server *server, struct MHD_Connection *connection,
    unsigned code, struct MHD_Response *response)
{
    enum MHD_Result queued =
        response != NULL ? MHD_queue_response(connection, code, response) : MHD_NO;

    clients_expect(&server->clients, server_client(connection), uv_now(server->loop));
    return queued;
}

/* Sends an answer that no other request gets. */
static enum MHD_Result server_send(
    struct server *server, struct MHD_Connection *connection, struct answer answer)
{
    struct MHD_Response *response = answers_make(&server->answers, answer);
    enum MHD_Result queued = server_queue(server, connection, answer.code, response);

    if (response != NULL) {
        MHD_destroy_response(response);
    }
    return queued;
}

/* Sends the answer that is kept for this path; the first request has it made. */
static enum MHD_Result server_share(
    struct server *server, struct MHD_Connection *connection, enum path path)
{
    struct kept_answer *kept = &server->kept[path];

    if (kept->response == NULL && answers_full(&server->answers)) {
        return server_send(server, connection,
            answer_refused(
                path, "clients that read too slowly hold too much memory; ask again in 5 s"));
    }
    if (kept->response == NULL &&
        !answers_keep(&server->answers, kept, server_answer(server, path))) {
        return MHD_NO;
    }
    return server_queue(server, connection, kept->code, kept->response);
}

static enum MHD_Result server_tell(
    struct server *server, struct MHD_Connection *connection, enum path path)
{
    return path == PATH_HEALTH || path == PATH_COUNT
               ? server_send(server, connection, server_answer(server, path))
               : server_share(server, connection, path);
}

/* Called for the head of a request, then for its end, and again after a suspension. */
static enum MHD_Result server_handle(void *owner, struct MHD_Connection *connection,
    const char *url, const char *method, const char *version, const char *body, size_t *body_size,
    void **state)
{
    struct server *server = owner;
    enum path path = path_of(connection, url);

    (void)version;
    (void)body;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
        return server_send(server, connection,
            answer_text(MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD are answered"));
    }
    if (*state == NULL) {
        *state = &request_begun;
        return MHD_YES;
    }
    if (*body_size != 0) { /* a body means nothing here */
        *body_size = 0;
        return MHD_YES;
    }
    if (path != PATH_COUNT && paths[path].fresh && *state != &request_waited &&
        !source_want(server->source)) {
        if (server->waiters == SERVER_WAITERS) {
            return server_send(server, connection,
                answer_refused(
                    path, "the daemon does not answer, and too many requests wait for it"));
        }
        *state = &request_waited;
        server->waiting[server->waiters++] = connection;
        clients_hold(&server->clients, server_client(connection));
        MHD_suspend_connection(connection);
        return MHD_YES;
    }
    return server_tell(server, connection, path);
}

/* Called when a connection is there, and before it is closed. */
static void server_connected(void *owner, struct MHD_Connection *connection, void **client,
    enum MHD_ConnectionNotificationCode what)
{
    struct server *server = owner;
    const int fd =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;

    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        *client = clients_add(&server->clients, fd, uv_now(server->loop));
        if (*client == NULL) {
            (void)shutdown(fd, SHUT_RDWR);
        }
    } else if (*client != NULL) {
        clients_remove(&server->clients, *client);
    }
}

/* Called when an answer was sent: the next request may follow. */
static void server_completed(void *owner, struct MHD_Connection *connection, void **state,
    enum MHD_RequestTerminationCode how)
{
    struct server *server = owner;

    (void)state;
    (void)how;
    clients_expect(&server->clients, server_client(connection), uv_now(server->loop));
}

static void server_due(uv_timer_t *timer);

/* Lets libmicrohttpd do what it can, and asks when something is due without an event. */
static void server_run(struct server *server)
{
    MHD_UNSIGNED_LONG_LONG http_ms = 0;
    uint64_t wait_ms;

    (void)MHD_run(server->http);
    wait_ms = clients_check(&server->clients, uv_now(server->loop));
    if (MHD_get_timeout(server->http, &http_ms) == MHD_YES && http_ms < wait_ms) {
        wait_ms = http_ms;
    }
    if (wait_ms != CLIENTS_NEVER) {
        (void)uv_timer_start(&server->timer, server_due, wait_ms, 0);
    } else {
        (void)uv_timer_stop(&server->timer);
    }
}

static void server_due(uv_timer_t *timer)
{
    server_run(timer->data);
}

static void server_event(uv_poll_t *poll, int failed, int events)
{
    (void)failed;
    (void)events;
    server_run(poll->data);
}

static void server_resume(struct server *server)
{
    while (server->waiters > 0) {
        MHD_resume_connection(server->waiting[--server->waiters]);
    }
}

/* Adds the last snapshot to the history. */
static void server_add_sample(struct server *server)
{
    history_add(&server->history, source_snapshot(server->source));
    answers_drop(&server->answers, &server->kept[PATH_HISTORY]);
}

static void server_told(void *owner)
{
    struct server *server = owner;

    server_drop_fresh(server);
    if (server->sampling) {
        server->sampling = false;
        server_add_sample(server);
    }
    server_resume(server);
    (void)uv_timer_start(&server->timer, server_due, 0, 0);
}

static void server_sample(uv_timer_t *timer)
{
    struct server *server = timer->data;

    if (source_want(server->source)) {
        server_add_sample(server);
    } else {
        server->sampling = true;
    }
}

/* "[ADDRESS]:PORT" or "ADDRESS:PORT", in numbers. */
static enum adtopk_status server_address(
    const char *text, struct sockaddr_storage *address, struct error *err)
{
    const char *colon = strrchr(text, ':');
    bool six = text[0] == '[' && colon != NULL && colon > text + 1 && colon[-1] == ']';
    char host[64];
    char *end = NULL;
    unsigned long port = colon != NULL ? strtoul(colon + 1, &end, 10) : 0;
    size_t length = colon != NULL ? (size_t)(colon - text) - (six ? 2 : 0) : 0;

    if (length > 0 && length < sizeof(host) && colon[1] >= '0' && colon[1] <= '9' && *end == '\0' &&
        port <= UINT16_MAX) {
        memcpy(host, six ? text + 1 : text, length);
        host[length] = '\0';
        if (six ? uv_ip6_addr(host, (int)port, (struct sockaddr_in6 *)address) == 0
                : uv_ip4_addr(host, (int)port, (struct sockaddr_in *)address) == 0) {
            return ADTOPK_OK;
        }
    }
    return error_set(err, ADTOPK_ERR_ARGUMENT,
        "\"%s\" is no address to listen on: like 127.0.0.1:9477 or [::1]:9477", text);
}

/* libmicrohttpd opens a socket for the address, or takes the one that is there. */
static enum adtopk_status server_listen(
    struct server *server, const struct server_config *config, struct error *err)
{
    struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
    const bool given = config->socket >= 0;
    struct MHD_OptionItem place[] = {
        given ? (struct MHD_OptionItem){MHD_OPTION_LISTEN_SOCKET, config->socket, NULL}
              : (struct MHD_OptionItem){MHD_OPTION_SOCK_ADDR, 0, &address},
        {MHD_OPTION_END, 0, NULL}};
    const union MHD_DaemonInfo *info;
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME;

    if (!given && server_address(config->address, &address, err) != ADTOPK_OK) {
        return err->code;
    }
    flags |= address.ss_family == AF_INET6 ? MHD_USE_IPv6 : 0;
    errno = 0;
    server->http = MHD_start_daemon(flags, 0, NULL, NULL, server_handle, server, MHD_OPTION_ARRAY,
        place, MHD_OPTION_NOTIFY_CONNECTION, server_connected, server, MHD_OPTION_NOTIFY_COMPLETED,
        server_completed, server, MHD_OPTION_CONNECTION_LIMIT, (unsigned)SERVER_CONNECTIONS,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)SERVER_PER_ADDRESS,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)SERVER_MEMORY, MHD_OPTION_END);
    if (server->http == NULL) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "cannot listen on %s: %s",
            given ? "the socket that was passed" : config->address,
            errno != 0 ? strerror(errno) : "libmicrohttpd does not start");
    }
    info = MHD_get_daemon_info(server->http, MHD_DAEMON_INFO_EPOLL_FD);
    if (info == NULL || uv_poll_init(server->loop, &server->poll, info->epoll_fd) != 0 ||
        uv_poll_start(&server->poll, UV_READABLE, server_event) != 0) {
        MHD_stop_daemon(server->http);
        return error_set(err, ADTOPK_ERR_SYSTEM, "cannot wait for connections");
    }
    server->poll.data = server;
    return ADTOPK_OK;
}

enum adtopk_status server_start(
    uv_loop_t *loop, const struct server_config *config, struct server **out, struct error *err)
{
    struct server *server = calloc(1, sizeof(*server));

    if (server == NULL || (server->source = source_create(
                               loop, config->path, config->tensors, server_told, server)) == NULL) {
        free(server);
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the server");
    }
    server->loop = loop;
    clients_init(&server->clients);
    (void)uv_timer_init(loop, &server->timer);
    (void)uv_timer_init(loop, &server->sampler);
    server->timer.data = server;
    server->sampler.data = server;
    *out = server;
    if (server_listen(server, config, err) != ADTOPK_OK) {
        return err->code;
    }
    (void)uv_timer_start(&server->sampler, server_sample, 0, HISTORY_PERIOD_MS);
    return ADTOPK_OK;
}

const char *server_place(const struct server *server, char place[SERVER_PLACE_SIZE])
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(server->http, MHD_DAEMON_INFO_LISTEN_FD);
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
        struct sockaddr_un local;
    } address = {.any.sa_family = AF_UNSPEC};
    socklen_t size = sizeof(address);

    if (info != NULL) {
        (void)getsockname(info->listen_fd, &address.any, &size);
    }
    if (address.any.sa_family == AF_UNIX) {
        (void)snprintf(place, SERVER_PLACE_SIZE, "%.*s", (int)sizeof(address.local.sun_path),
            address.local.sun_path);
    } else {
        const bool six = address.any.sa_family == AF_INET6;
        const void *host = six ? (void *)&address.six.sin6_addr : &address.four.sin_addr;
        char name[INET6_ADDRSTRLEN] = "";

        (void)inet_ntop(address.any.sa_family, host, name, sizeof name);
        (void)snprintf(place, SERVER_PLACE_SIZE, six ? "[%s]:%u" : "%s:%u", name,
            ntohs(six ? address.six.sin6_port : address.four.sin_port));
    }
    return place;
}

void server_stop(struct server *server)
{
    server_resume(server);
    (void)MHD_run(server->http);
    (void)uv_poll_stop(&server->poll);
    (void)uv_timer_stop(&server->timer);
    (void)uv_timer_stop(&server->sampler);
    MHD_stop_daemon(server->http);
    for (int i = 0; i < PATH_COUNT; i++) {
        answers_drop(&server->answers, &server->kept[i]);
    }
    history_free(&server->history);
}
