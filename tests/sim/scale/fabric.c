/*
 * See fabric.h. A message is an event at the time when its first byte reaches a link; when that
 * link is free it goes on to the next one. Its last byte arrives when the slowest of the links has
 * let it through. Events of the same time are taken in the order in which they were made, so that a
 * run can be repeated.
 */
#include "tests/sim/scale/fabric.h"

#include <math.h>
#include <stdlib.h>

enum link { LINK_UP, LINK_DOWN, LINK_NODE, LINK_ARRIVED };

struct event {
    double time; /* of the first byte */
    double last; /* of the last byte, as far as the links behind it go */
    uint64_t order;
    enum link link;
    struct fabric_message message;
};

struct fabric {
    struct fabric_links links;
    unsigned racks;
    double *out, *in, *up, *down; /* when each link is free */
    struct event *heap;
    size_t count, capacity;
    uint64_t order;
};

struct fabric *fabric_open(const struct fabric_links *links, unsigned nodes)
{
    struct fabric *fabric = calloc(1, sizeof(*fabric));

    if (fabric == NULL) {
        return NULL;
    }
    fabric->links = *links;
    if (links->rack == 0 || links->rack > nodes) {
        fabric->links.rack = nodes;
    }
    fabric->racks = (nodes + fabric->links.rack - 1) / fabric->links.rack;
    fabric->out = calloc(nodes, sizeof(double));
    fabric->in = calloc(nodes, sizeof(double));
    fabric->up = calloc(fabric->racks, sizeof(double));
    fabric->down = calloc(fabric->racks, sizeof(double));
    if (fabric->out == NULL || fabric->in == NULL || fabric->up == NULL || fabric->down == NULL) {
        fabric_close(fabric);
        return NULL;
    }
    return fabric;
}

void fabric_close(struct fabric *fabric)
{
    if (fabric != NULL) {
        free(fabric->out);
        free(fabric->in);
        free(fabric->up);
        free(fabric->down);
        free(fabric->heap);
        free(fabric);
    }
}

void fabric_set_bandwidth(struct fabric *fabric, double bandwidth)
{
    fabric->links.bandwidth = bandwidth;
}

/* ------------------------------------------------------------------ events */

static bool before(const struct event *a, const struct event *b)
{
    return a->time < b->time || (!(b->time < a->time) && a->order < b->order);
}

static bool push(struct fabric *fabric, struct event event)
{
    size_t at = fabric->count;

    if (fabric->count == fabric->capacity) {
        size_t capacity = fabric->capacity > 0 ? 2 * fabric->capacity : 1024;
        struct event *grown = realloc(fabric->heap, capacity * sizeof(*grown));
        if (grown == NULL) {
            return false;
        }
        fabric->heap = grown;
        fabric->capacity = capacity;
    }
    event.order = fabric->order++;
    for (; at > 0 && before(&event, &fabric->heap[(at - 1) / 2]); at = (at - 1) / 2) {
        fabric->heap[at] = fabric->heap[(at - 1) / 2];
    }
    fabric->heap[at] = event;
    fabric->count++;
    return true;
}

static struct event pop(struct fabric *fabric)
{
    struct event first = fabric->heap[0], last = fabric->heap[--fabric->count];
    size_t at = 0;

    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < fabric->count && before(&fabric->heap[child + 1], &fabric->heap[child])) {
            child++;
        }
        if (child >= fabric->count || !before(&fabric->heap[child], &last)) {
            break;
        }
        fabric->heap[at] = fabric->heap[child];
        at = child;
    }
    fabric->heap[at] = last;
    return first;
}

/* ------------------------------------------------------------------ links */

/* The event's message takes a link for so many seconds, as soon as that is free. */
static void take(double *free_from, struct event *event, double seconds)
{
    event->time = event->time > *free_from ? event->time : *free_from;
    *free_from = event->time + seconds;
    event->last = event->last > *free_from ? event->last : *free_from;
}

bool fabric_send(struct fabric *fabric, double now, const struct fabric_message *message)
{
    const struct fabric_links *links = &fabric->links;
    struct event event = {.time = now, .message = *message};
    bool near = message->from / links->rack == message->to / links->rack;

    event.message.bytes += links->overhead;
    event.link = near ? LINK_NODE : LINK_UP;
    take(&fabric->out[message->from], &event, (double)event.message.bytes / links->bandwidth);
    event.time += links->latency;
    event.last += links->latency;
    return push(fabric, event);
}

/* Passes a message through the link that it has reached. */
static struct event pass(struct fabric *fabric, struct event event)
{
    const struct fabric_links *links = &fabric->links;
    double seconds = (double)event.message.bytes / links->bandwidth;
    double shared = seconds * links->narrowing / links->rack;

    if (event.link == LINK_UP) {
        take(&fabric->up[event.message.from / links->rack], &event, shared);
        event.link = LINK_DOWN;
    } else if (event.link == LINK_DOWN) {
        take(&fabric->down[event.message.to / links->rack], &event, shared);
        event.link = LINK_NODE;
    } else {
        take(&fabric->in[event.message.to], &event, seconds);
        event.time = event.last;
        event.link = LINK_ARRIVED;
    }
    return event;
}

bool fabric_next(struct fabric *fabric, struct fabric_message *message, double *now)
{
    return fabric_next_until(fabric, INFINITY, message, now);
}

bool fabric_next_until(
    struct fabric *fabric, double until, struct fabric_message *message, double *now)
{
    while (fabric->count > 0 && fabric->heap[0].time <= until) {
        struct event event = pop(fabric);
        if (event.link == LINK_ARRIVED) {
            *message = event.message;
            message->bytes -= fabric->links.overhead;
            *now = event.time;
            return true;
        }
        (void)push(fabric, pass(fabric, event)); /* there is room: one was taken */
    }
    return false;
}
