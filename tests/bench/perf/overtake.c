/*
 * overtake: how long a small message takes while a large one is under way on the same link.
 *
 * Two processes, a link each. In turns: the small message alone, which is the floor, and right
 * behind a large one, which must be there as well before the next turn. The receiver answers every
 * message on the control lane: one byte for a small one, two for a large one.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/bench/perf/clock.h"
#include "tests/bench/perf/data.h"
#include "tests/bench/perf/link_end.h"
#include "tests/bench/perf/perf.h"
#include "tests/bench/perf/process.h"
#include "tests/bench/perf/stop.h"
#include "tests/bench/perf/tcp.h"

/* What the two messages are to each other. */
static const struct relation {
    const char *name;
    struct share_class small, large;
} relations[] = {
    {.name = "in order", .small = {.job = 1}, .large = {.job = 1}},
    {.name = "priority", .small = {.job = 1, .place = 1}, .large = {.job = 1, .place = 2}},
    {.name = "other job", .small = {.job = 1}, .large = {.job = 2}},
};

#define RELATIONS (sizeof(relations) / sizeof(relations[0]))

/* A row, shared by the two processes. */
struct overtaking {
    const struct relation *relation;
    size_t size; /* bytes of the large message */
    uint64_t turns;
    int fd[2];
    struct overtake_note {
        char problem[ERROR_TEXT_SIZE];
        double time[]; /* turn i: behind the large message at 2 * i, alone at 2 * i + 1 */
    } * note;          /* shared memory */
};

static size_t note_size(const struct overtaking *one)
{
    return sizeof(struct overtake_note) + 2 * one->turns * sizeof(double);
}

/* Small and large messages that were answered: with one and two bytes. */
static uint64_t answered_small(const struct link_end *end)
{
    return 2 * end->messages[LINK_CONTROL] - end->bytes[LINK_CONTROL];
}

static uint64_t answered_large(const struct link_end *end)
{
    return end->bytes[LINK_CONTROL] - end->messages[LINK_CONTROL];
}

/* Sends the small message, and returns how many microseconds its answer took; negative: no memory.
 */
static double send_small(
    const struct overtaking *one, struct link_end *end, struct buffer *small, uint64_t wanted)
{
    const uint64_t begin = clock_ns();

    if (!link_end_send_as(end, &one->relation->small, small)) {
        return -1;
    }
    while (answered_small(end) < wanted) {
        link_end_turn(end);
    }
    return clock_us_between(begin, clock_ns());
}

static bool sender(
    const struct overtaking *one, struct link_end *end, struct buffer *small, struct buffer *large)
{
    double *time = one->note->time;

    for (uint64_t i = 0; i < one->turns; i++) {
        if (!link_end_send_as(end, &one->relation->large, large)) {
            return false;
        }
        time[2 * i] = send_small(one, end, small, 2 * i + 1);
        while (answered_large(end) <= i) {
            link_end_turn(end);
        }
        time[2 * i + 1] = send_small(one, end, small, 2 * i + 2);
        if (time[2 * i] < 0 || time[2 * i + 1] < 0) {
            return false;
        }
    }
    return true;
}

static bool receiver(
    const struct overtaking *one, struct link_end *end, struct buffer *one_byte, struct buffer *two)
{
    uint64_t small = 0, large = 0;
    bool ok = true;

    while (ok && (small < 2 * one->turns || large < one->turns)) {
        for (; ok && small < end->short_messages; small++) {
            ok = link_end_send(end, LINK_CONTROL, one_byte);
        }
        for (; ok && large < end->messages[LINK_BULK] - end->short_messages; large++) {
            ok = link_end_send(end, LINK_CONTROL, two);
        }
        link_end_turn(end);
    }
    return ok && tcp_send(one->fd[1], "", 1); /* the last answer has gone */
}

static int overtake_main(void *context, unsigned side)
{
    const struct overtaking *one = context;
    struct link_end end;
    struct error err = {.text = "a link took no message"};
    struct buffer *first = buffer_new(side == 0 ? LINK_END_SHORT : 1);
    struct buffer *second = buffer_new(side == 0 ? one->size : 2);
    bool ok = first != NULL && second != NULL;
    char done;

    if (ok) {
        memset(first->bytes, 1, first->size);
        memset(second->bytes, 1, second->size);
        ok = link_end_meet(&end, side, &link_security_table[0], NULL, one->fd[side], &err) ==
                 ADTOPK_OK &&
             (side == 0 ? sender : receiver)(one, &end, first, second) &&
             (side == 1 || tcp_receive(one->fd[0], &done, 1));
        link_end_stop(&end);
    }
    if (!ok && one->note->problem[0] == '\0') {
        (void)snprintf(one->note->problem, sizeof(one->note->problem), "%s", err.text);
    }
    buffer_unref(first);
    buffer_unref(second);
    return ok ? 0 : 1;
}

static enum adtopk_status overtake_pair(struct overtaking *one, struct error *err)
{
    struct crew crew = {.count = 0};
    enum adtopk_status status = tcp_pair(one->fd, err);

    for (unsigned side = 0; side < 2 && status == ADTOPK_OK; side++) {
        status = crew_start(&crew, overtake_main, one, side, err);
    }
    if (status == ADTOPK_OK) {
        status = crew_wait(&crew, err);
    }
    crew_kill(&crew);
    tcp_close(one->fd);
    if (status == ADTOPK_ERR_STATE && one->note->problem[0] != '\0') {
        return error_set(err, status, "%s", one->note->problem);
    }
    return status;
}

static enum adtopk_status report_one(
    struct perf *perf, const struct overtaking *one, struct error *err)
{
    struct series times = {0};
    struct series floors = {0};
    const struct row row = {.benchmark = perf->benchmark,
        .variant = one->relation->name,
        .input = "",
        .size = one->size,
        .count = 1,
        .type = "msg",
        .density = NAN,
        .alg_bytes = LINK_END_SHORT,
        .bus_bytes = LINK_END_SHORT,
        .wire_bytes = LINK_END_SHORT,
        .nonzeros = NAN,
        .target_us = NAN,
        .time = &times,
        .floor_name = "alone",
        .floor = &floors,
        .paired = true};
    enum adtopk_status status;
    bool ok = true;

    for (uint64_t i = perf->options.warmup; i < one->turns && one->note->time[2 * i + 1] > 0; i++) {
        ok = ok && series_add(&times, one->note->time[2 * i]) &&
             series_add(&floors, one->note->time[2 * i + 1]);
    }
    status = ok ? perf_row(perf, &row, err) : perf_no_memory(err, note_size(one));
    series_free(&times);
    series_free(&floors);
    return status;
}

static enum adtopk_status one_relation(
    struct perf *perf, const struct relation *relation, uint64_t size, struct error *err)
{
    struct overtaking one = {.relation = relation,
        .size = size > LINK_END_SHORT ? size : LINK_END_SHORT + 1,
        .turns = perf->options.warmup + perf->options.iterations,
        .fd = {-1, -1}};
    enum adtopk_status status;

    one.note = data_map(note_size(&one));
    if (one.note == NULL) {
        return perf_no_memory(err, note_size(&one));
    }
    status = overtake_pair(&one, err);
    if (status == ADTOPK_OK) {
        status = report_one(perf, &one, err);
    }
    data_unmap(one.note, note_size(&one));
    return status;
}

enum adtopk_status overtake_run(struct perf *perf, struct error *err)
{
    const struct options *options = &perf->options;

    for (uint64_t size = options->min; size > 0; size = perf_next_size(options, size)) {
        for (unsigned i = 0; i < RELATIONS; i++) {
            enum adtopk_status status;

            perf_progress(perf, relations[i].name, size, 0);
            status = one_relation(perf, &relations[i], size, err);
            if (status != ADTOPK_OK || stop_requested()) {
                return status;
            }
        }
    }
    return ADTOPK_OK;
}
