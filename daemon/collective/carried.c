#include "daemon/collective/carried.h"

#include <stdlib.h>
#include <string.h>

#include "proto/bits.h"

#define WORD 8u
#define NUMBER_MAX (UINT64_C(1) << 62) /* counting from 1, no node gets there */
#define READY_SIZE (4 * WORD)          /* size, seen, broken, since */
#define NUMBER_SIZE (2 * WORD + CARGO_DEVICES * CARGO_NAME_SIZE) /* at most */

unsigned carried_phases(const struct exchange *exchange)
{
    return exchange->members > 1 ? CARRIED_PHASES : 1;
}

struct carried_state *carried_begin(struct exchange *exchange, struct error *err)
{
    struct carried_state *state =
        calloc(1, sizeof(*state) + exchange->members * sizeof(*state->size));

    exchange->carried.state = state;
    if (state == NULL) {
        (void)exchange_no_memory(exchange, "carry", err);
    }
    return state;
}

void carried_drop_frames(struct carried_state *state)
{
    for (unsigned i = 0; i < state->frames; i++) {
        payload_free(&state->frame[i].frame);
    }
    free(state->frame);
    state->frame = NULL;
    state->frames = 0;
}

void carried_drop(struct exchange *exchange)
{
    struct exchange_carried *carried = &exchange->carried;

    cargo_free(carried->cargo);
    carried->cargo = NULL;
    if (carried->state != NULL) {
        carried_drop_frames(carried->state);
    }
    free(carried->state);
    carried->state = NULL;
}

/* A frame of these bytes for all members. */
static enum adtopk_status carried_tell(
    struct exchange *exchange, unsigned phase, const uint8_t *bytes, size_t size, struct error *err)
{
    struct payload_writer *frame = exchange_add_frame(exchange, phase, EXCHANGE_ALL);

    if (frame == NULL || payload_put_bytes(frame, bytes, size) != ADTOPK_OK) {
        return exchange_no_memory(exchange, "encode", err);
    }
    payload_end(frame);
    return ADTOPK_OK;
}

/* The bytes of member m's frame; exactly `size`. */
static enum adtopk_status carried_read(const struct exchange *exchange, unsigned phase, unsigned m,
    size_t size, struct payload_reader *reader, const uint8_t **bytes, struct error *err)
{
    size_t got;

    if (exchange_open(exchange, phase, m, reader, err) != ADTOPK_OK) {
        return err->code;
    }
    if (payload_get_bytes(reader, size, bytes, &got, err) != ADTOPK_OK ||
        payload_close(reader, err) != ADTOPK_OK) {
        return exchange_blame(exchange, m, err);
    }
    if (got != size) {
        (void)error_set(err, ADTOPK_ERR_PROTOCOL, "%zu bytes where %zu belong", got, size);
        return exchange_blame(exchange, m, err);
    }
    return ADTOPK_OK;
}

/* Blames a member whose number is none that nodes count to. */
static enum adtopk_status carried_check(
    const struct exchange *exchange, unsigned m, const uint8_t *word, struct error *err)
{
    if (load_u64(word) <= NUMBER_MAX) {
        return ADTOPK_OK;
    }
    (void)error_set(err, ADTOPK_ERR_PROTOCOL, "number %llu", (unsigned long long)load_u64(word));
    return exchange_blame(exchange, m, err);
}

enum adtopk_status carried_ready(
    struct exchange *exchange, unsigned phase, uint64_t size, struct error *err)
{
    struct carried_state *state = exchange->carried.state;
    uint8_t bytes[READY_SIZE];

    state->size[exchange->self] = size;
    store_u64(bytes, size);
    store_u64(bytes + WORD, exchange->carried.said.seen);
    store_u64(bytes + 2 * WORD, exchange->carried.said.broken);
    store_u64(bytes + 3 * WORD, exchange->carried.said.since);
    return carried_tell(exchange, phase, bytes, sizeof(bytes), err);
}

enum adtopk_status carried_hear(struct exchange *exchange, unsigned phase, struct error *err)
{
    struct carried_state *state = exchange->carried.state;
    struct payload_reader reader;
    const uint8_t *bytes;

    for (unsigned m = 0; m < exchange->members; m++) {
        if (m == exchange->self) {
            continue;
        }
        if (carried_read(exchange, phase, m, READY_SIZE, &reader, &bytes, err) != ADTOPK_OK) {
            return err->code;
        }
        for (unsigned word = 0; word < READY_SIZE; word += WORD) {
            if (carried_check(exchange, m, bytes + word, err) != ADTOPK_OK) {
                return err->code;
            }
        }
        exchange_note(exchange, &reader);
        state->size[m] = load_u64(bytes);
    }
    return ADTOPK_OK;
}

/* Bytes of the names of a group. */
static size_t carried_names(const struct exchange *exchange)
{
    const unsigned devices = exchange->carried.devices;

    return (devices > 0 ? devices : 1) * (size_t)CARGO_NAME_SIZE;
}

enum adtopk_status carried_number(struct exchange *exchange, unsigned phase, struct error *err)
{
    uint8_t bytes[NUMBER_SIZE];

    store_u64(bytes, exchange->carried.proposed);
    store_u64(bytes + WORD, exchange->carried.group.number);
    (void)memcpy(bytes + 2 * WORD, exchange->carried.group.name, carried_names(exchange));
    return carried_tell(exchange, phase, bytes, 2 * WORD + carried_names(exchange), err);
}

static uint64_t max_word(uint64_t a, uint64_t b)
{
    return a > b || b > NUMBER_MAX ? a : b;
}

void carried_groups(const struct exchange *exchange, unsigned phase, struct carried_groups *said)
{
    struct payload_reader reader;
    const uint8_t *bytes;
    struct error ignored;

    *said = exchange->carried.said;
    for (unsigned m = 0; m < exchange->members; m++) {
        if (m != exchange->self &&
            carried_read(exchange, phase, m, READY_SIZE, &reader, &bytes, &ignored) == ADTOPK_OK) {
            said->seen = max_word(said->seen, load_u64(bytes + WORD));
            said->broken = max_word(said->broken, load_u64(bytes + 2 * WORD));
            said->since = max_word(said->since, load_u64(bytes + 3 * WORD));
        }
    }
}

enum adtopk_status carried_agree(const struct exchange *exchange, unsigned phase, uint64_t *number,
    struct cargo_group *group, struct error *err)
{
    struct payload_reader reader;
    const uint8_t *bytes;

    *number = exchange->carried.proposed;
    *group = exchange->carried.group;
    for (unsigned m = 0; m < exchange->members; m++) {
        if (m == exchange->self) {
            continue;
        }
        if (carried_read(exchange, phase, m, 2 * WORD + carried_names(exchange), &reader, &bytes,
                err) != ADTOPK_OK) {
            return err->code;
        }
        if (carried_check(exchange, m, bytes, err) != ADTOPK_OK ||
            carried_check(exchange, m, bytes + WORD, err) != ADTOPK_OK) {
            return err->code;
        }
        *number = max_word(*number, load_u64(bytes));
        if (m == 0) {
            group->number = load_u64(bytes + WORD);
            (void)memcpy(group->name, bytes + 2 * WORD, carried_names(exchange));
        }
    }
    group->members = exchange->members;
    group->devices = (unsigned)(carried_names(exchange) / CARGO_NAME_SIZE);
    group->self = exchange->self;
    return ADTOPK_OK;
}
