#include "client/exporter/ask.h"

#include <stdlib.h>
#include <unistd.h>

struct ask {
    uv_poll_t poll;
    uv_timer_t timer;
    int open_handles;
    int fd;
    const char *path;
    struct control_answer answer;
    ask_done *done;
    void *owner;
};

static void ask_closed(uv_handle_t *handle)
{
    struct ask *ask = handle->data;

    if (--ask->open_handles == 0) {
        (void)close(ask->fd);
        free(ask);
    }
}

/* Ends the request; the memory goes when the loop has let go of the handles. */
static void ask_end(struct ask *ask, enum adtopk_status status, const struct error *err)
{
    char *document = ask->answer.text;

    uv_close((uv_handle_t *)&ask->poll, ask_closed);
    uv_close((uv_handle_t *)&ask->timer, ask_closed);
    if (status != ADTOPK_OK) {
        free(document);
        document = NULL;
    }
    ask->done(ask->owner, status, ask->answer.refused, document, err);
}

static void ask_readable(uv_poll_t *poll, int failed, int events)
{
    struct ask *ask = poll->data;
    struct error err = {.code = ADTOPK_OK};
    enum adtopk_status status = failed != 0
                                    ? error_set(&err, ADTOPK_ERR_SYSTEM, "cannot wait for %s: %s",
                                          ask->path, uv_strerror(failed))
                                    : control_receive(ask->fd, ask->path, &ask->answer, NULL, &err);

    (void)events;
    if (status == ADTOPK_PENDING || (status == ADTOPK_OK && ask->answer.more)) {
        return;
    }
    ask_end(ask, status, &err);
}

static void ask_late(uv_timer_t *timer)
{
    struct ask *ask = timer->data;
    struct error err = {.code = ADTOPK_OK};

    ask_end(ask,
        error_set(&err, ADTOPK_ERR_TIMEOUT, "the daemon at %s did not answer within %d s",
            ask->path, ASK_PATIENCE_MS / 1000),
        &err);
}

/* The handles are the loop's from here on. */
static void ask_watch(uv_loop_t *loop, struct ask *ask, uint64_t end_ms)
{
    const uint64_t now_ms = uv_now(loop);

    (void)uv_timer_init(loop, &ask->timer); /* cannot fail */
    ask->timer.data = ask;
    ask->poll.data = ask;
    ask->open_handles = 2;
    (void)uv_timer_start(&ask->timer, ask_late, end_ms > now_ms ? end_ms - now_ms : 0, 0);
    if (uv_poll_start(&ask->poll, UV_READABLE, ask_readable) != 0) {
        (void)uv_timer_start(&ask->timer, ask_late, 0, 0); /* as if no answer came */
    }
}

enum adtopk_status ask_start(uv_loop_t *loop, const char *path,
    const Adtopk__ControlRequest *request, uint64_t end_ms, ask_done *done, void *owner,
    struct error *err)
{
    struct ask *ask = calloc(1, sizeof(*ask));
    enum adtopk_status status;

    if (ask == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a request");
    }
    *ask = (struct ask){.path = path, .done = done, .owner = owner};
    status = control_open(path, &ask->fd, err);
    if (status == ADTOPK_PENDING) {
        status = error_set(
            err, ADTOPK_ERR_TIMEOUT, "the daemon at %s has a full queue of connections", path);
    }
    if (status == ADTOPK_OK) {
        status = control_send(ask->fd, path, request, err);
    }
    if (status == ADTOPK_OK && uv_poll_init(loop, &ask->poll, ask->fd) != 0) {
        status = error_set(err, ADTOPK_ERR_SYSTEM, "cannot wait for %s", path);
    }
    if (status != ADTOPK_OK) {
        if (ask->fd >= 0) {
            (void)close(ask->fd);
        }
        free(ask);
        return status;
    }
    ask_watch(loop, ask, end_ms);
    return ADTOPK_OK;
}
