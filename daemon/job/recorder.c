#include "daemon/job/recorder.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/job/states.h"
#include "proto/bits.h"

_Static_assert(sizeof(struct flight_record) == 32, "a record is half a cache line");
_Static_assert(RECORD_KINDS == RECORD_ROUND + ROUND_STATES, "every state has a kind");

static const char *const recorder_names[RECORD_KINDS] = {
    [RECORD_BEGAN] = "began",
    [RECORD_PUSHED] = "pushed",
    [RECORD_ENDED] = "ended",
    [RECORD_SENT] = "sent",
    [RECORD_RECEIVED] = "received",
    [RECORD_OPENED] = "opened",
    [RECORD_SETTLE] = "settle",
    [RECORD_WITHDRAW] = "withdraw",
    [RECORD_CLOSED] = "closed",
    [RECORD_ROUND + ROUND_IDLE] = "idle",
    [RECORD_ROUND + ROUND_COLLECT] = "collect",
    [RECORD_ROUND + ROUND_SELECT] = "select",
    [RECORD_ROUND + ROUND_EXCHANGE] = "exchange",
    [RECORD_ROUND + ROUND_COMBINE] = "combine",
    [RECORD_ROUND + ROUND_REDUCE] = "reduce",
    [RECORD_ROUND + ROUND_FETCH] = "fetch",
    [RECORD_ROUND + ROUND_DELIVERED] = "delivered",
};

const char *recorder_kind_name(unsigned kind)
{
    return kind < RECORD_KINDS ? recorder_names[kind] : NULL;
}

static struct flight_record *recorder_at(const struct recorder *recorder, uint32_t index)
{
    const uint32_t oldest = recorder->next - recorder->count;

    return &recorder->ring[(oldest + index) & (recorder->size - 1)];
}

/* Without memory it stays as it is. It is seldom called, and inlined it would make each call of
 * recorder_add() save registers. */
static __attribute__((noinline)) void recorder_grow(struct recorder *recorder)
{
    const uint32_t size = recorder->size > 0 ? 2 * recorder->size : RECORDER_MIN;
    struct flight_record *grown = malloc(size * sizeof(*grown));

    if (grown == NULL) {
        return;
    }
    for (uint32_t i = 0; i < recorder->count; i++) {
        grown[i] = *recorder_at(recorder, i);
    }
    free(recorder->ring);
    recorder->ring = grown;
    recorder->size = size;
    recorder->next = recorder->count;
}

struct flight_record *recorder_add(struct recorder *recorder, enum record_kind kind)
{
    struct flight_record *slot;

    if (recorder->count == recorder->size && recorder->closed <= RECORDER_STEPS &&
        recorder->size < RECORDER_MAX) {
        recorder_grow(recorder);
    }
    if (recorder->size == 0) {
        return &recorder->nowhere;
    }
    slot = &recorder->ring[recorder->next];
    if (recorder->count < recorder->size) {
        recorder->count++;
    } else if (slot->kind == RECORD_CLOSED) { /* the oldest record, which goes */
        recorder->closed--;
    }
    recorder->next = (recorder->next + 1) & (recorder->size - 1);
    recorder->added++;
    recorder->closed += kind == RECORD_CLOSED ? 1 : 0;
    return slot;
}

/* The first record of the last steps. */
static uint32_t recorder_first(const struct recorder *recorder)
{
    uint32_t closed = 0;

    for (uint32_t i = recorder->count; i > 0; i--) {
        closed += recorder_at(recorder, i - 1)->kind == RECORD_CLOSED ? 1 : 0;
        if (closed > RECORDER_STEPS) {
            return i;
        }
    }
    return 0;
}

struct recorder_piece recorder_read(
    const struct recorder *recorder, uint64_t before, uint32_t most, struct flight_record *out)
{
    const uint64_t kept = recorder->added - recorder->count; /* number of the oldest record */
    const uint64_t oldest = kept + recorder_first(recorder);
    const uint64_t end = before > 0 && before < recorder->added ? before : recorder->added;
    const uint64_t there = end > oldest ? end - oldest : 0;
    const uint32_t count = there < most ? (uint32_t)there : most;

    for (uint32_t i = 0; i < count; i++) {
        out[i] = *recorder_at(recorder, (uint32_t)(end - count - kept) + i);
    }
    return (struct recorder_piece){
        .first = end - count, .count = count, .older = (uint32_t)there - count};
}

void recorder_free(struct recorder *recorder)
{
    free(recorder->ring);
    *recorder = (struct recorder){.ring = NULL};
}

struct recorded *recorded_of(const struct recorder *recorder, uint16_t node, uint64_t now_us)
{
    struct recorded *records = calloc(1, sizeof(*records) + sizeof(records->part[0]));
    struct flight_record *record = malloc((recorder->count + 1) * sizeof(*record));

    if (records == NULL || record == NULL) {
        free(record);
        free(records);
        return NULL;
    }
    records->parts = 1;
    records->part[0] = (struct recorded_part){.node = node,
        .answered = true,
        .asked_us = now_us,
        .heard_us = now_us,
        .answered_us = now_us,
        .record = record,
        .records = recorder_read(recorder, 0, recorder->count, record).count};
    return records;
}

void recorded_trim(struct recorded_part *part)
{
    for (uint32_t i = 0; part->missing > 0 && i < part->records; i++) {
        if (part->record[i].kind == RECORD_CLOSED) {
            part->records -= i + 1;
            part->missing += i + 1;
            (void)memmove(
                part->record, part->record + i + 1, part->records * sizeof(*part->record));
            return;
        }
    }
}

void recorded_free(struct recorded *records)
{
    for (unsigned i = 0; records != NULL && i < records->parts; i++) {
        free(records->part[i].record);
    }
    free(records);
}

void recorder_pack(const struct flight_record *record, uint32_t count, uint8_t *out)
{
    for (uint32_t i = 0; i < count; i++, record++, out += RECORD_PACKED) {
        store_u64(out, record->at_us);
        store_u64(out + 8, record->step);
        store_u32(out + 16, record->bucket);
        store_u32(out + 20, record->value);
        store_u16(out + 24, record->node);
        store_u16(out + 26, record->view);
        out[28] = record->kind;
        out[29] = record->phase;
        store_u16(out + 30, 0);
    }
}

void recorder_unpack(const uint8_t *bytes, uint32_t count, struct flight_record *out)
{
    for (uint32_t i = 0; i < count; i++, out++, bytes += RECORD_PACKED) {
        *out = (struct flight_record){.at_us = load_u64(bytes),
            .step = load_u64(bytes + 8),
            .bucket = load_u32(bytes + 16),
            .value = load_u32(bytes + 20),
            .node = load_u16(bytes + 24),
            .view = load_u16(bytes + 26),
            .kind = bytes[28],
            .phase = bytes[29]};
    }
}
