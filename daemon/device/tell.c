/* What feeders tell the loop: what is done, and lines for the log. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/device/state.h"

void queue_init(struct queue *queue)
{
    *queue = (struct queue){.first = NULL};
}

void queue_add(struct queue *queue, struct engine_wait *waiting)
{
    waiting->next = NULL;
    if (queue->first == NULL) {
        queue->first = waiting;
    } else {
        queue->last->next = waiting;
    }
    queue->last = waiting;
}

struct engine_wait *queue_take(struct queue *queue)
{
    struct engine_wait *first = queue->first;

    if (first != NULL) {
        queue->first = first->next;
        first->next = NULL;
    }
    return first;
}

bool device_stops(struct device *device)
{
    bool stops;

    (void)pthread_mutex_lock(&device->mutex);
    stops = device->stopping;
    (void)pthread_mutex_unlock(&device->mutex);
    return stops;
}

/* Whether other workers still have orders of the batch. The slowest one's time is the batch's. */
static bool device_waits_for_others(const struct engine_wait *waiting, uint64_t took_us)
{
    if (waiting->batch != NULL && took_us > waiting->batch->took_us) {
        waiting->batch->took_us = took_us;
    }
    return (waiting->batch != NULL ? --waiting->batch->pending : --waiting->cargo->pending) > 0;
}

void device_tell(struct device *device, struct engine_wait *waiting, uint64_t took_us)
{
    bool waits;

    (void)pthread_mutex_lock(&device->mutex);
    waits = device_waits_for_others(waiting, took_us);
    if (!waits) {
        queue_add(&device->done, waiting);
    }
    (void)pthread_mutex_unlock(&device->mutex);
    if (!waits) {
        device->config.wake(device->config.context);
    }
}

void device_log(const struct worker *worker, bool trouble, const char *format, ...)
{
    const struct driver_device *gpu = &worker->device->gpu[worker->gpu];
    struct device *device = worker->device;
    struct line *line = malloc(sizeof(*line));
    va_list args;
    int size;

    if (line == NULL) {
        return;
    }
    *line = (struct line){.event.type = trouble ? DEVICE_TROUBLE : DEVICE_NOTE};
    size = snprintf(line->event.text, sizeof(line->event.text),
        "the device worker of user %u on %s (%s) ", worker->owner, gpu->uuid, gpu->name);
    va_start(args, format);
    (void)vsnprintf(line->event.text + size, sizeof(line->event.text) - (size_t)size, format, args);
    va_end(args);
    (void)pthread_mutex_lock(&device->mutex);
    *device->lines_end = line;
    device->lines_end = &line->next;
    (void)pthread_mutex_unlock(&device->mutex);
    device->config.wake(device->config.context);
}

bool device_take_line(struct device *device, struct device_event *event)
{
    struct line *line = device->lines;

    if (line == NULL) {
        return false;
    }
    device->lines = line->next;
    if (line->next == NULL) {
        device->lines_end = &device->lines;
    }
    *event = line->event;
    free(line);
    return true;
}
