#include "daemon/core/lane.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint64_t lane_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t lane_message_end(const struct lane_message *message)
{
    return message->start + message->buffer->size + 1;
}

static void lane_out_pop(struct lane_out *out)
{
    struct lane_message *message = out->head;

    out->head = message->next;
    if (out->head == NULL) {
        out->tail = NULL;
    }
    out->queued_bytes -= message->buffer->size;
    buffer_unref(message->buffer);
    free(message);
}

void lane_out_reset(struct lane_out *out, uint64_t floor_us, uint64_t ceiling_us)
{
    while (out->head != NULL) {
        lane_out_pop(out);
    }
    *out = (struct lane_out){
        .resend_at = LANE_NEVER,
        .timer = {.floor_us = floor_us, .ceiling_us = ceiling_us, .timeout_us = floor_us},
    };
}

void lane_in_reset(struct lane_in *in)
{
    buffer_unref(in->message);
    *in = (struct lane_in){0};
}

bool lane_out_push(struct lane_out *out, struct buffer *message)
{
    struct lane_message *entry = malloc(sizeof(*entry));

    if (entry == NULL) {
        return false;
    }
    *entry = (struct lane_message){.buffer = buffer_ref(message), .start = out->end};
    if (out->tail != NULL) {
        out->tail->next = entry;
    } else {
        out->head = entry;
    }
    out->tail = entry;
    if (out->current == NULL) {
        out->current = entry;
    }
    out->end = lane_message_end(entry);
    out->queued_bytes += message->size;
    return true;
}

bool lane_out_cut(
    const struct lane_out *out, size_t body_max, uint64_t limit, struct packet *packet)
{
    const struct lane_message *message = out->current;
    uint64_t offset, remaining, room, size;

    if (message == NULL || out->position >= limit) {
        return false;
    }
    offset = out->position - message->start;
    remaining = message->buffer->size - offset;
    room = limit - out->position;
    size = lane_min(remaining, body_max);
    if (size + (size == remaining) > room) {
        /* A smaller part only if no acknowledgement can come that makes more room. The message's
         * end goes with its last byte. */
        if (out->position > out->acknowledged) {
            return false;
        }
        size = lane_min(room, remaining - 1);
        if (size == 0) {
            return false;
        }
    }
    packet->position = out->position;
    packet->message_size = message->buffer->size;
    packet->offset = offset;
    packet->body = size > 0 ? message->buffer->bytes + offset : NULL;
    packet->body_size = (uint32_t)size;
    return true;
}

bool lane_out_advance(struct lane_out *out, const struct packet *packet, uint64_t now_us)
{
    bool again = packet->position < out->sent;

    assert(packet->position == out->position && out->current != NULL);
    out->position += packet_span(packet);
    if (out->position == lane_message_end(out->current)) {
        out->current = out->current->next;
    }
    if (out->position > out->sent) {
        out->sent = out->position;
    }
    if (!again && !out->timer.sampling) {
        out->timer.sampling = true;
        out->timer.sample_end = out->position;
        out->timer.sample_start_us = now_us;
    }
    if (out->resend_at == LANE_NEVER) {
        out->resend_at = now_us + out->timer.timeout_us;
    }
    return again;
}

/* The timeout that the samples so far suggest, without backoff. */
static void lane_timer_settle(struct lane_timer *timer)
{
    uint64_t timeout_us = timer->smoothed_us + 4 * timer->variance_us;

    timer->timeout_us =
        lane_min(timeout_us > timer->floor_us ? timeout_us : timer->floor_us, timer->ceiling_us);
}

static void lane_timer_sample(struct lane_timer *timer, uint64_t sample_us)
{
    if (timer->smoothed_us == 0) {
        timer->smoothed_us = sample_us;
        timer->variance_us = sample_us / 2;
    } else {
        uint64_t error = sample_us > timer->smoothed_us ? sample_us - timer->smoothed_us
                                                        : timer->smoothed_us - sample_us;

        timer->variance_us = (3 * timer->variance_us + error) / 4;
        timer->smoothed_us = (7 * timer->smoothed_us + sample_us) / 8;
    }
    if (timer->smoothed_us == 0) {
        timer->smoothed_us = 1;
    }
}

bool lane_out_acknowledge(struct lane_out *out, uint64_t position, uint64_t now_us)
{
    if (position > out->sent) {
        return false;
    }
    if (position <= out->acknowledged) {
        return true; /* an old packet */
    }
    out->acknowledged = position;
    if (out->position < position) {
        out->position = position; /* it arrived although we had gone back behind it */
        while (out->current != NULL && lane_message_end(out->current) <= position) {
            out->current = out->current->next;
        }
    }
    while (out->head != NULL && lane_message_end(out->head) <= position) {
        lane_out_pop(out);
    }
    if (out->timer.sampling && position >= out->timer.sample_end) {
        lane_timer_sample(&out->timer, now_us - out->timer.sample_start_us);
        out->timer.sampling = false;
    }
    if (out->timer.smoothed_us > 0) {
        lane_timer_settle(&out->timer); /* something got through: the backoff is over */
    }
    out->resend_at =
        out->position > out->acknowledged ? now_us + out->timer.timeout_us : LANE_NEVER;
    return true;
}

void lane_out_rewind(struct lane_out *out)
{
    out->position = out->acknowledged;
    out->current = out->head;
    out->timer.sampling = false;
    out->resend_at = LANE_NEVER;
}

void lane_out_expire(struct lane_out *out, uint64_t now_us)
{
    if (out->resend_at > now_us) {
        return;
    }
    lane_out_rewind(out);
    out->timer.timeout_us = lane_min(2 * out->timer.timeout_us, out->timer.ceiling_us);
}

/* Whether `packet` continues the message that is being put together, from `offset` on. */
static bool lane_in_continues(
    const struct lane_in *in, const struct packet *packet, uint64_t offset)
{
    return in->message == NULL ? offset == 0
                               : offset == in->filled && packet->message_size == in->message->size;
}

enum lane_result lane_in_take(
    struct lane_in *in, const struct packet *packet, uint64_t message_max, struct buffer **message)
{
    uint64_t end = packet->position + packet_span(packet);
    uint64_t skip, fresh;

    *message = NULL;
    if (end <= in->position) {
        return LANE_DUPLICATE;
    }
    if (packet->position > in->position) {
        return LANE_GAP;
    }
    skip = in->position - packet->position; /* <= body_size, since the end is beyond */
    if (packet->message_size > message_max ||
        !lane_in_continues(in, packet, packet->offset + skip)) {
        return LANE_MALFORMED;
    }
    if (in->message == NULL) {
        in->message = buffer_new((size_t)packet->message_size);
        if (in->message == NULL) {
            return LANE_NO_MEMORY;
        }
    }
    fresh = packet->body_size - skip;
    if (fresh > 0) {
        memcpy(in->message->bytes + in->filled, packet->body + skip, (size_t)fresh);
    }
    in->filled += fresh;
    in->position = end;
    if (packet->offset + packet->body_size == packet->message_size) {
        *message = in->message;
        in->message = NULL;
        in->filled = 0;
    }
    return LANE_TAKEN;
}
