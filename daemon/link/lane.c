#include "daemon/link/lane.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/payload.h"

#define METER_US 10000u /* a measurement of the rate takes at least so long */

static uint64_t lane_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ------------------------------------------------------------------ parts in flight */

/* The i-th, counted from the oldest. */
static struct lane_part *lane_part(const struct lane_out *out, size_t i)
{
    return &out->part[(out->head + i) & (out->capacity - 1)];
}

/* An empty part is the end of an empty or of a cancelled message. */
static uint64_t lane_part_end(const struct lane_part *part)
{
    bool last = part->size == 0 || part->offset + part->size == part->message->buffer->size;

    return part->start + part->size + (last ? 1 : 0);
}

static void lane_message_free(struct lane_out *out, struct lane_message *message)
{
    out->queued_bytes -= message->buffer->size;
    buffer_unref(message->buffer);
    free(message);
}

static void lane_part_pop(struct lane_out *out)
{
    const struct lane_part *part = lane_part(out, 0);
    struct lane_message *message = part->message;

    assert(message->pending >= lane_part_end(part) - part->start);
    message->pending -= lane_part_end(part) - part->start;
    out->head = (out->head + 1) & (out->capacity - 1);
    out->count--;
    out->next -= out->next > 0 ? 1 : 0;
    if (message->pending == 0) {
        lane_message_free(out, message);
    }
}

bool lane_out_reserve(struct lane_out *out)
{
    size_t capacity = out->capacity > 0 ? 2 * out->capacity : 16;
    struct lane_part *grown;

    if (out->count < out->capacity) {
        return true;
    }
    grown = malloc(capacity * sizeof(*grown));
    if (grown == NULL) {
        return false;
    }
    for (size_t i = 0; i < out->count; i++) {
        grown[i] = *lane_part(out, i);
    }
    free(out->part);
    out->part = grown;
    out->capacity = capacity;
    out->head = 0;
    return true;
}

/* ------------------------------------------------------------------ sending */

/* Bytes that have no position yet and will get one. */
static uint64_t lane_uncut(const struct lane_message *message)
{
    return message->cancelled ? 0 : message->buffer->size - message->cut;
}

void lane_out_reset(struct lane_out *out, const struct lane_limits *limits)
{
    struct share_item *item;

    /* Messages that are wholly cut are in flight; others are queued, and perhaps partly in flight.
     */
    while ((item = share_next(&out->share, NULL, NULL)) != NULL) {
        struct lane_message *message = (struct lane_message *)item;

        share_remove(&out->share, item);
        message->pending -= lane_uncut(message) + 1;
        if (message->pending == 0) {
            lane_message_free(out, message);
        }
    }
    while (out->count > 0) {
        lane_part_pop(out);
    }
    share_reset(&out->share);
    free(out->part);
    *out = (struct lane_out){
        .limits = *limits,
        .resend_at = LANE_NEVER,
        .timer = {.floor_us = limits->floor_us,
            .ceiling_us = limits->ceiling_us,
            .timeout_us = limits->floor_us},
    };
}

bool lane_out_push(struct lane_out *out, struct buffer *message, const struct share_class *class)
{
    struct lane_message *entry = calloc(1, sizeof(*entry));

    if (entry == NULL || !share_put(&out->share, &entry->item, class)) {
        free(entry);
        return false;
    }
    entry->buffer = buffer_ref(message);
    entry->job = class->job;
    entry->pending = message->size + 1;
    out->queued_bytes += message->size;
    return true;
}

void lane_out_drop(struct lane_out *out, uint64_t job)
{
    struct share_item *item = share_oldest(&out->share, job);

    while (item != NULL) {
        struct lane_message *message = (struct lane_message *)item;

        item = item->newer;
        message->pending -= lane_uncut(message);
        message->cancelled = true;
        if (!message->item.begun) {
            share_remove(&out->share, &message->item);
            lane_message_free(out, message);
        }
    }
}

uint64_t lane_out_queued(const struct lane_out *out, uint64_t job)
{
    uint64_t queued = 0;

    for (const struct share_item *item = share_oldest(&out->share, job); item != NULL;
         item = item->newer) {
        queued += lane_uncut((const struct lane_message *)item);
    }
    for (size_t i = 0; i < out->count; i++) {
        const struct lane_part *part = lane_part(out, i);
        queued += part->message->job == job ? part->size : 0;
    }
    return queued;
}

/* Whether a message may get a slot. */
static bool lane_may_begin(const void *context, const struct share_item *item)
{
    const struct lane_out *out = context;
    const struct lane_message *message = (const struct lane_message *)item;
    uint64_t all = UINT64_MAX >> (64 - out->limits.slots);

    return out->slots_taken != all &&
           (out->slots_taken == 0 ||
               out->begun_bytes + message->buffer->size <= 2 * out->limits.message_max);
}

/* The slot that a message would get. */
static unsigned lane_free_slot(const struct lane_out *out)
{
    return (unsigned)__builtin_ctzll(~out->slots_taken);
}

static void lane_fill(const struct lane_message *message, unsigned slot, struct packet *packet)
{
    packet->slot = slot;
    packet->message_size = packet->body_size > 0 ? message->buffer->size : packet->offset;
    packet->body = packet->body_size > 0 ? message->buffer->bytes + packet->offset : NULL;
    packet->owner = packet->body_size > 0 ? message->buffer : NULL;
}

/* A part once more, from `position` on, at most `size` bytes of it. */
static void lane_cut_again(
    const struct lane_part *part, uint64_t position, uint64_t size, struct packet *packet)
{
    uint64_t skip = position - part->start;

    packet->position = position;
    packet->offset = part->offset + skip;
    packet->body_size = (uint32_t)lane_min(part->size - skip, size);
    lane_fill(part->message, part->message->slot, packet);
}

/* The bytes of the next part of a message, of which `remaining` have no position yet, if there are
 * so many positions. Its last byte takes two of them, because the message's end goes with it. */
static uint64_t lane_fit(uint64_t remaining, uint64_t positions)
{
    return remaining < positions ? remaining : lane_min(remaining - 1, positions);
}

bool lane_out_cut(
    const struct lane_out *out, size_t body_max, uint64_t limit, struct packet *packet)
{
    const struct lane_message *message;
    uint64_t remaining, size;

    if (out->probe == LANE_NEVER) {
        lane_cut_again(lane_part(out, 0), out->acknowledged, 1, packet);
        return true;
    }
    if (out->position < out->sent) {
        lane_cut_again(lane_part(out, out->next), out->position, UINT32_MAX, packet);
        return true;
    }
    message = (const struct lane_message *)share_next(&out->share, lane_may_begin, out);
    if (message == NULL || out->position >= limit) {
        return false;
    }
    remaining = lane_uncut(message);
    size = lane_min(lane_fit(remaining, limit - out->position), body_max);
    /* A smaller part only if no acknowledgement can come that makes more room. */
    if (size < lane_min(remaining, body_max) && (size == 0 || out->position > out->acknowledged)) {
        return false;
    }
    packet->position = out->position;
    packet->offset = message->cut;
    packet->body_size = (uint32_t)size;
    lane_fill(message, message->item.begun ? message->slot : lane_free_slot(out), packet);
    return true;
}

/* Accounts for a part of the next message that has gone out. */
static void lane_sent(struct lane_out *out, const struct packet *packet)
{
    struct lane_message *message =
        (struct lane_message *)share_next(&out->share, lane_may_begin, out);

    assert(message != NULL && packet->offset == message->cut && out->count < out->capacity);
    if (!message->item.begun) {
        share_begin(&message->item);
        message->slot = packet->slot;
        out->slots_taken |= UINT64_C(1) << packet->slot;
        out->begun_bytes += message->buffer->size;
    }
    *lane_part(out, out->count++) = (struct lane_part){.message = message,
        .start = packet->position,
        .offset = packet->offset,
        .size = packet->body_size};
    message->cut += packet->body_size;
    share_charge(&out->share, &message->item, packet_span(packet));
    if (packet->offset + packet->body_size == packet->message_size) {
        share_remove(&out->share, &message->item);
        out->slots_taken &= ~(UINT64_C(1) << message->slot);
        out->begun_bytes -= message->buffer->size;
    }
}

bool lane_out_advance(struct lane_out *out, const struct packet *packet, uint64_t now_us)
{
    bool again = packet->position < out->sent;

    if (out->probe == LANE_NEVER) {
        assert(packet->position == out->acknowledged);
        out->probe = out->acknowledged + packet_span(packet);
        out->resend_at = now_us + out->timer.timeout_us;
        return true;
    }
    assert(packet->position == out->position);
    if (!again) {
        lane_sent(out, packet);
    }
    out->next++;
    out->position += packet_span(packet);
    if (!again) {
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

/* ------------------------------------------------------------------ acknowledgements */

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

/* Everything below out->acknowledged has arrived. */
static void lane_measure(struct lane_out *out, uint64_t now_us)
{
    struct lane_meter *meter = &out->meter;
    uint64_t rate;

    if (out->share.items == 0 || out->count == 0) {
        meter->running = false;
        return;
    }
    if (meter->running && now_us - meter->start_us < METER_US) {
        return;
    }
    if (meter->running) {
        rate = (out->acknowledged - meter->start) * 1000000 / (now_us - meter->start_us);
        meter->rate = meter->rate == 0 ? rate : (3 * meter->rate + rate) / 4;
    }
    *meter = (struct lane_meter){
        .rate = meter->rate, .start = out->acknowledged, .start_us = now_us, .running = true};
}

void lane_out_acknowledge(struct lane_out *out, uint64_t position, uint64_t now_us)
{
    assert(position <= out->sent);
    if (position <= out->acknowledged) {
        return; /* an old packet */
    }
    out->acknowledged = position;
    while (out->count > 0 && lane_part_end(lane_part(out, 0)) <= position) {
        lane_part_pop(out);
    }
    if (out->position < position) {
        out->position = position; /* it arrived although we had gone back behind it */
        out->next = 0;
    }
    if (position == out->probe) {
        lane_out_rewind(out); /* nothing but the probe has arrived: the rest was lost */
    } else {
        out->probe = 0;
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
    lane_measure(out, now_us);
}

void lane_out_rewind(struct lane_out *out)
{
    out->position = out->acknowledged;
    out->next = 0;
    out->probe = 0;
    out->timer.sampling = false;
    out->meter.running = false;
    out->resend_at = LANE_NEVER;
}

void lane_out_expire(struct lane_out *out, uint64_t now_us)
{
    if (out->resend_at > now_us) {
        return;
    }
    if (out->sent - out->acknowledged <= LANE_FEW) {
        lane_out_rewind(out);
    } else {
        out->probe = LANE_NEVER;
        out->resend_at = LANE_NEVER;
    }
    out->timer.timeout_us = lane_min(2 * out->timer.timeout_us, out->timer.ceiling_us);
}

/* ------------------------------------------------------------------ receiving */

void lane_in_reset(struct lane_in *in)
{
    for (unsigned i = 0; i < LANE_SLOTS; i++) {
        buffer_unref(in->slot[i].message);
    }
    *in = (struct lane_in){.copied = in->copied, .checked = in->checked};
}

/* Whether `packet` is the end of the message in its slot, before that is complete. */
static bool lane_in_cancels(const struct lane_slot *slot, const struct packet *packet)
{
    return slot->message != NULL && packet->body_size == 0 && packet->offset == slot->filled &&
           packet->message_size == packet->offset && packet->offset < slot->message->size;
}

/* Drops the message in the slot. */
static void lane_in_cancel(struct lane_in *in, struct lane_slot *slot)
{
    in->bytes -= slot->message->size;
    buffer_unref(slot->message);
    *slot = (struct lane_slot){.message = NULL};
}

/* Whether `packet` continues the message in its slot, from `offset` on. */
static bool lane_in_continues(
    const struct lane_slot *slot, const struct packet *packet, uint64_t offset)
{
    return slot->message == NULL
               ? offset == 0
               : offset == slot->filled && packet->message_size == slot->message->size;
}

/* Puts a message into a slot: an empty one, or the body of its only part as it is. */
static enum lane_result lane_in_begin(
    struct lane_in *in, struct lane_slot *slot, const struct packet *packet, uint64_t message_max)
{
    const uint64_t size = packet->message_size;

    if (in->bytes > 0 && in->bytes + size > 2 * message_max) {
        return LANE_MALFORMED;
    }
    slot->message = packet->owner != NULL && packet->body_size == size ? buffer_ref(packet->owner)
                                                                       : buffer_new((size_t)size);
    if (slot->message == NULL) {
        return LANE_NO_MEMORY;
    }
    in->bytes += size;
    return LANE_TAKEN;
}

/* Adds the bytes of a part from `skip` on to the message in its slot. */
static void lane_in_fill(
    struct lane_in *in, struct lane_slot *slot, const struct packet *packet, size_t skip)
{
    const uint8_t *bytes = packet->body_size > skip ? packet->body + skip : NULL;
    const size_t size = packet->body_size - skip;
    const bool known = skip == 0 && size >= BUFFER_KNOWN_MIN;

    if (slot->message != packet->owner) {
        buffer_put(slot->message, slot->filled, bytes, size);
        in->copied += size;
    }
    if (slot->message->size >= BUFFER_KNOWN_MIN) {
        const uint32_t crc = known ? packet->body_crc : crc32c(0, bytes, size);
        slot->crc = slot->filled > 0 ? crc32c_join(slot->crc, crc, size) : crc;
        in->checked += known ? 0 : size;
    }
    slot->filled += size;
}

/* Takes the message, which is complete, out of its slot. */
static struct buffer *lane_in_complete(struct lane_in *in, struct lane_slot *slot)
{
    struct buffer *message = slot->message;

    message->known = message->size >= BUFFER_KNOWN_MIN;
    message->crc = slot->crc;
    in->bytes -= message->size;
    *slot = (struct lane_slot){.message = NULL};
    return message;
}

enum lane_result lane_in_take(
    struct lane_in *in, const struct packet *packet, uint64_t message_max, struct buffer **message)
{
    struct lane_slot *slot = &in->slot[packet->slot];
    uint64_t end = packet->position + packet_span(packet);
    uint64_t skip;
    enum lane_result result;

    *message = NULL;
    if (end <= in->position) {
        return LANE_DUPLICATE;
    }
    if (packet->position > in->position) {
        return LANE_GAP;
    }
    if (lane_in_cancels(slot, packet)) {
        lane_in_cancel(in, slot);
        in->position = end;
        return LANE_TAKEN;
    }
    skip = in->position - packet->position; /* <= body_size, since the end is beyond */
    if (packet->message_size > message_max ||
        !lane_in_continues(slot, packet, packet->offset + skip)) {
        return LANE_MALFORMED;
    }
    if (slot->message == NULL) {
        result = lane_in_begin(in, slot, packet, message_max);
        if (result != LANE_TAKEN) {
            return result;
        }
    }
    lane_in_fill(in, slot, packet, (size_t)skip);
    in->position = end;
    if (packet->offset + packet->body_size == packet->message_size) {
        *message = lane_in_complete(in, slot);
    }
    return LANE_TAKEN;
}
