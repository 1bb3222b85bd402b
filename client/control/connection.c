#include "client/control/connection.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/control/exchange.h"

#define RETRY_MS 10 /* poll() does not tell when the daemon's queue has room */

static int64_t now_ms(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static enum adtopk_status connection_open(
    const char *path, int64_t deadline_ms, int wake, int *fd, struct error *err)
{
    struct pollfd pause = {.fd = wake, .events = POLLIN};
    enum adtopk_status status = control_open(path, fd, err);

    while (status == ADTOPK_PENDING) {
        (void)close(*fd);
        if (now_ms() >= deadline_ms) {
            *fd = -1;
            return error_set(err, ADTOPK_ERR_TIMEOUT,
                "cannot connect to %s in time: other clients wait as well", path);
        }
        if (poll(&pause, 1, RETRY_MS) > 0) {
            *fd = -1;
            return ADTOPK_PENDING;
        }
        status = control_open(path, fd, err);
    }
    return status;
}

/* Waits until there is something to read. PENDING: there is on `wake`. */
static enum adtopk_status connection_await(
    int fd, const char *path, int64_t deadline_ms, int wake, struct error *err)
{
    for (;;) {
        struct pollfd entries[] = {{.fd = fd, .events = POLLIN}, {.fd = wake, .events = POLLIN}};
        int64_t left = deadline_ms - now_ms();
        int ready = left > 0 ? poll(entries, 2, (int)left) : 0;

        if (ready > 0) {
            return entries[0].revents != 0 ? ADTOPK_OK : ADTOPK_PENDING;
        }
        if (ready == 0) {
            return error_set(err, ADTOPK_ERR_TIMEOUT, "no answer on %s in time", path);
        }
        if (errno != EINTR) {
            return error_set(
                err, ADTOPK_ERR_SYSTEM, "cannot wait for %s: %s", path, strerror(errno));
        }
    }
}

enum adtopk_status connection_ask(const char *path, int timeout_ms,
    const Adtopk__ControlRequest *request, void (*note)(const char *sentence), char **document,
    int wake, enum connection_end *end, struct error *err)
{
    struct control_answer answer = {.more = true};
    int64_t deadline_ms = now_ms() + timeout_ms;
    int fd;
    enum adtopk_status status = connection_open(path, deadline_ms, wake, &fd, err);

    *end = CONNECTION_UNSENT;
    if (status == ADTOPK_OK) {
        status = control_send(fd, path, request, err);
        *end = status == ADTOPK_OK ? CONNECTION_UNANSWERED : CONNECTION_UNSENT;
    }
    while (status == ADTOPK_OK && answer.more) {
        status = connection_await(fd, path, deadline_ms, wake, err);
        if (status == ADTOPK_OK) {
            status = control_receive(fd, path, &answer, note, err);
            status = status == ADTOPK_PENDING ? ADTOPK_OK : status; /* a part of a piece */
        }
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    if (status == ADTOPK_OK || answer.refused) {
        *end = CONNECTION_ANSWERED;
    }
    if (status == ADTOPK_OK) {
        *document = answer.text;
    } else {
        free(answer.text);
    }
    return status;
}
