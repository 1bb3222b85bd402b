/*
 * link: how fast messages go from one node to another, without the daemon around.
 *
 * Two processes. The sender queues a batch of messages; when the receiver has the last it answers
 * with a control message, which ends the sample. In turns with that, the same bytes go through a
 * plain TCP connection, with a byte as the answer.
 * Failures: an end that does not come up or dies ends the benchmark with an error.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/payload.h"
#include "tests/bench/perf/clock.h"
#include "tests/bench/perf/data.h"
#include "tests/bench/perf/link_end.h"
#include "tests/bench/perf/perf.h"
#include "tests/bench/perf/process.h"
#include "tests/bench/perf/sealed.h"
#include "tests/bench/perf/stop.h"
#include "tests/bench/perf/tcp.h"

#define BATCH_BYTES (UINT64_C(16) << 20) /* of a sample, but at least one message */
#define BATCH_MESSAGES 512               /* of a sample, at most */

/* A row, shared by the two processes. */
struct pair {
    const struct link_security *security;
    struct keyfile_pair keys[2];
    size_t size;       /* bytes of a message */
    uint64_t messages; /* of a batch */
    uint64_t warmup;
    uint64_t batches; /* with the warm-up */
    bool sealed;      /* The floor's bytes are encrypted. */
    int fd[2];        /* endpoints first, then the floor's bytes */
    struct note {
        char problem[ERROR_TEXT_SIZE];
        double time[]; /* batch i: link at 2 * i, floor at 2 * i + 1 */
    } * note;          /* shared memory */
};

static size_t note_size(const struct pair *pair)
{
    return sizeof(struct note) + 2 * pair->batches * sizeof(double);
}

static bool send_batch(
    const struct pair *pair, struct link_end *end, struct buffer *message, uint64_t batch)
{
    for (uint64_t i = 0; i < pair->messages; i++) {
        if (!link_end_send(end, LINK_BULK, message)) {
            return false;
        }
    }
    while (end->messages[LINK_CONTROL] <= batch) {
        link_end_turn(end);
    }
    return true;
}

static bool send_floor(const struct pair *pair, struct sealed *floor, const struct buffer *message)
{
    const int fd = pair->fd[0];
    char answer;
    bool ok = true;

    for (uint64_t i = 0; i < pair->messages && ok; i++) {
        ok = pair->sealed ? sealed_send(floor, fd, message->bytes, message->size)
                          : tcp_send(fd, message->bytes, message->size);
    }
    return ok && tcp_receive(fd, &answer, 1);
}

static bool receive_floor(const struct pair *pair, struct sealed *floor, struct buffer *message)
{
    const int fd = pair->fd[1];
    const char answer = 1;
    bool ok = true;

    for (uint64_t i = 0; i < pair->messages && ok; i++) {
        ok = pair->sealed ? sealed_receive(floor, fd, message->bytes, message->size)
                          : tcp_receive(fd, message->bytes, message->size);
    }
    return ok && tcp_send(fd, &answer, 1);
}

static bool sender(
    const struct pair *pair, struct link_end *end, struct sealed *floor, struct buffer *message)
{
    for (uint64_t batch = 0; batch < pair->batches; batch++) {
        uint64_t begin = clock_ns();

        if (!send_batch(pair, end, message, batch)) {
            return false;
        }
        pair->note->time[2 * batch] = clock_us_between(begin, clock_ns());
        begin = clock_ns();
        if (!send_floor(pair, floor, message)) {
            return false;
        }
        pair->note->time[2 * batch + 1] = clock_us_between(begin, clock_ns());
    }
    return true;
}

static bool receiver(
    const struct pair *pair, struct link_end *end, struct sealed *floor, struct buffer *message)
{
    struct buffer *answer = buffer_new(1);
    bool ok = answer != NULL;

    for (uint64_t batch = 0; batch < pair->batches && ok; batch++) {
        const uint64_t wanted = (batch + 1) * pair->messages;

        while (end->messages[LINK_BULK] < wanted) {
            link_end_turn(end);
        }
        ok = link_end_send(end, LINK_CONTROL, answer);
        link_end_turn(end);
        ok = ok && receive_floor(pair, floor, message);
    }
    buffer_unref(answer);
    return ok;
}

static int pair_main(void *context, unsigned side)
{
    const struct pair *pair = context;
    struct link_end end;
    struct error err = {.text = "a link took no message"};
    struct sealed floor = {0};
    struct buffer *message = buffer_new(pair->size);
    bool ok = message != NULL && (!pair->sealed || sealed_begin(&floor));

    if (ok) {
        memset(message->bytes, 1, pair->size);
        if (pair->size >= BUFFER_KNOWN_MIN) { /* as of a frame */
            message->known = true;
            message->crc = crc32c(0, message->bytes, message->size);
        }
        ok = link_end_meet(&end, side, pair->security, pair->keys, pair->fd[side], &err) ==
                 ADTOPK_OK &&
             (side == 0 ? sender : receiver)(pair, &end, &floor, message);
        link_end_stop(&end);
    }
    if (!ok && pair->note->problem[0] == '\0') {
        (void)snprintf(pair->note->problem, sizeof(pair->note->problem), "%s", err.text);
    }
    sealed_end(&floor);
    buffer_unref(message);
    return ok ? 0 : 1;
}

static enum adtopk_status pair_run(struct pair *pair, struct error *err)
{
    struct crew crew = {.count = 0};
    enum adtopk_status status = tcp_pair(pair->fd, err);

    for (unsigned side = 0; side < 2 && status == ADTOPK_OK; side++) {
        status = crew_start(&crew, pair_main, pair, side, err);
    }
    if (status == ADTOPK_OK) {
        status = crew_wait(&crew, err);
    }
    crew_kill(&crew);
    tcp_close(pair->fd);
    if (status == ADTOPK_ERR_STATE && pair->note->problem[0] != '\0') {
        return error_set(err, status, "%s", pair->note->problem);
    }
    return status;
}

static enum adtopk_status report_pair(struct perf *perf, const struct pair *pair, struct error *err)
{
    struct series times = {0};
    struct series floors = {0};
    const uint64_t bytes = pair->messages * pair->size;
    const struct row row = {.benchmark = perf->benchmark,
        .variant = pair->security->name,
        .input = "",
        .size = pair->size,
        .count = pair->messages,
        .type = "msg",
        .density = NAN,
        .alg_bytes = (double)bytes,
        .bus_bytes = (double)bytes,
        .wire_bytes = NAN,
        .nonzeros = NAN,
        .target_us = NAN,
        .time = &times,
        .floor_name = pair->sealed ? "tcp with cipher" : "tcp",
        .floor = &floors,
        .paired = true};
    enum adtopk_status status = ADTOPK_OK;
    bool ok = true;

    for (uint64_t i = pair->warmup; i < pair->batches && pair->note->time[2 * i + 1] > 0; i++) {
        ok = ok && series_add(&times, pair->note->time[2 * i]) &&
             series_add(&floors, pair->note->time[2 * i + 1]);
    }
    status = ok ? perf_row(perf, &row, err) : perf_no_memory(err, note_size(pair));
    series_free(&times);
    series_free(&floors);
    return status;
}

static enum adtopk_status one_pair(
    struct perf *perf, const struct link_security *security, uint64_t size, struct error *err)
{
    const uint64_t fitting = BATCH_BYTES / size;
    struct pair pair = {.security = security,
        .size = size,
        .messages = fitting < 1                ? 1
                    : fitting < BATCH_MESSAGES ? fitting
                                               : BATCH_MESSAGES,
        .warmup = perf->options.warmup,
        .batches = perf->options.warmup + perf->options.iterations,
        .sealed = security->keys && !security->clear_bulk,
        .fd = {-1, -1}};
    enum adtopk_status status;

    if (security->keys && !link_end_keys(pair.keys)) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "this libzmq was built without CURVE");
    }
    pair.note = data_map(note_size(&pair));
    if (pair.note == NULL) {
        return perf_no_memory(err, note_size(&pair));
    }
    status = pair_run(&pair, err);
    if (status == ADTOPK_OK) {
        status = report_pair(perf, &pair, err);
    }
    data_unmap(pair.note, note_size(&pair));
    return status;
}

enum adtopk_status link_run(struct perf *perf, struct error *err)
{
    const struct options *options = &perf->options;
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned i = 0; link_security_table[i].name != NULL; i++) {
        const struct link_security *security = &link_security_table[i];

        for (uint64_t size = options->min; size > 0 && perf_has(options->security, i);
             size = perf_next_size(options, size)) {
            perf_progress(perf, security->name, size, 0);
            status = one_pair(perf, security, size, err);
            if (status != ADTOPK_OK || stop_requested()) {
                return status;
            }
        }
    }
    return status;
}
