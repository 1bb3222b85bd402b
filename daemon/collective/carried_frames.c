#include "daemon/collective/carried_frames.h"

#include <assert.h>
#include <string.h>

#include "daemon/collective/carried.h"

#define LENGTH sizeof(uint64_t)
#define PIECE_ALIGNMENT 16u
#define FRAME_MOST 4096u /* bytes of a frame beside its entries */
#define TENSOR_MOST 64u  /* the same per tensor */
#define ELEMENT_MOST 16u /* bytes of an entry, at most */

static const struct collective_ops *carried_frames_of(const struct exchange *exchange)
{
    return exchange->ops->traits.framed;
}

unsigned carried_frames_phases(const struct exchange *exchange)
{
    return carried_frames_of(exchange)->phases(exchange) *
           (exchange->members > 1 ? CARRIED_PHASES : 1);
}

/* ------------------------------------------------------------------ into pieces */

/* No frame of these tensors is larger. */
static uint64_t carried_frames_largest(const struct exchange *exchange)
{
    uint64_t most = FRAME_MOST;

    for (unsigned t = 0; t < exchange->tensors; t++) {
        most += TENSOR_MOST + ELEMENT_MOST * exchange->tensor[t].numel;
    }
    return most;
}

/* Finds the size of the pieces. */
static enum adtopk_status carried_frames_measure(
    const struct exchange *exchange, uint64_t *piece, struct error *err)
{
    const struct carried_state *state = exchange->carried.state;
    uint64_t longest = 0;

    for (unsigned m = 0; m < exchange->members; m++) {
        if (state->size[m] > carried_frames_largest(exchange)) {
            (void)error_set(err, ADTOPK_ERR_PROTOCOL, "a frame of %llu bytes",
                (unsigned long long)state->size[m]);
            return exchange_blame(exchange, m, err);
        }
        longest = state->size[m] > longest ? state->size[m] : longest;
    }
    *piece = (LENGTH + longest + PIECE_ALIGNMENT - 1) / PIECE_ALIGNMENT * PIECE_ALIGNMENT;
    return ADTOPK_OK;
}

static void carried_frames_put(uint8_t *piece, const struct payload_writer *frame)
{
    const uint64_t length = frame->size;

    (void)memcpy(piece, &length, LENGTH);
    (void)memcpy(piece + LENGTH, frame->bytes, frame->size);
}

/* Makes the operation, and frees the frames that are in it. */
static enum adtopk_status carried_frames_load(
    struct exchange *exchange, uint64_t piece, struct error *err)
{
    struct carried_state *state = exchange->carried.state;
    const enum cargo_kind kind = state->frame[0].to == EXCHANGE_ALL ? CARGO_GATHER : CARGO_DEAL;
    struct cargo *cargo = cargo_create(kind, piece, exchange->members);

    exchange->carried.cargo = cargo;
    if (cargo == NULL) {
        return exchange_no_memory(exchange, "carry", err);
    }
    for (unsigned f = 0; f < state->frames; f++) {
        const uint32_t to = kind == CARGO_DEAL ? state->frame[f].to : 0;

        carried_frames_put(cargo->input + to * piece, &state->frame[f].frame);
    }
    carried_drop_frames(state);
    return ADTOPK_OK;
}

static enum adtopk_status carried_frames_number(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    uint64_t piece = 0;

    if (carried_hear(exchange, phase - 1, err) != ADTOPK_OK ||
        carried_frames_measure(exchange, &piece, err) != ADTOPK_OK ||
        carried_frames_load(exchange, piece, err) != ADTOPK_OK) {
        return err->code;
    }
    return carried_number(exchange, phase, err);
}

/* The carrier is to move the frames of the phase. */
static enum adtopk_status carried_frames_hold(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    struct carried_state *state = exchange->carried.state;
    uint64_t longest = 0;

    assert(state->frame == NULL && exchange->outgoing_count > 0);
    state->frame = exchange->outgoing;
    state->frames = exchange->outgoing_count;
    exchange->outgoing = NULL;
    exchange->outgoing_count = 0;
    for (unsigned f = 0; f < state->frames; f++) {
        const uint64_t size = state->frame[f].frame.size;

        longest = size > longest ? size : longest;
    }
    return carried_ready(exchange, phase, longest, err);
}

/* ------------------------------------------------------------------ out of pieces */

static struct exchange_input *carried_frames_input(
    const struct exchange *exchange, unsigned phase, unsigned m)
{
    return &exchange->input[phase * exchange->members + m];
}

/* The pieces become frames of the framed collective's phase. Its inputs are those of phases whose
 * small frames were used long ago. */
static enum adtopk_status carried_frames_unload(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    const struct cargo *cargo = exchange->carried.cargo;

    for (unsigned m = 0; m < exchange->members; m++) {
        const uint8_t *piece = cargo->output + m * cargo->bytes;
        uint64_t length;

        (void)memcpy(&length, piece, LENGTH);
        if (m != exchange->self && length > cargo->bytes - LENGTH) {
            (void)error_set(err, ADTOPK_ERR_PROTOCOL, "%llu bytes in a piece of %llu",
                (unsigned long long)length, (unsigned long long)cargo->bytes);
            return exchange_blame(exchange, m, err);
        }
        *carried_frames_input(exchange, phase, m) =
            m != exchange->self ? (struct exchange_input){.bytes = piece + LENGTH, .size = length}
                                : (struct exchange_input){.bytes = NULL};
    }
    return ADTOPK_OK;
}

/* The framed collective has read them. */
static void carried_frames_forget(struct exchange *exchange, unsigned phase)
{
    for (unsigned m = 0; m < exchange->members; m++) {
        *carried_frames_input(exchange, phase, m) = (struct exchange_input){.bytes = NULL};
    }
    cargo_free(exchange->carried.cargo);
    exchange->carried.cargo = NULL;
}

/* ------------------------------------------------------------------ the phases */

/* A phase of the framed collective, from what the carrier has brought. */
static enum adtopk_status carried_frames_next(
    struct exchange *exchange, unsigned framed, struct error *err)
{
    enum adtopk_status status;

    if (framed == 0) {
        return carried_begin(exchange, err) != NULL
                   ? carried_frames_of(exchange)->produce(exchange, 0, err)
                   : err->code;
    }
    status = carried_frames_unload(exchange, framed - 1, err);
    if (status == ADTOPK_OK) {
        status = carried_frames_of(exchange)->produce(exchange, framed, err);
    }
    carried_frames_forget(exchange, framed - 1);
    return status;
}

enum adtopk_status carried_frames_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    if (exchange->members == 1) {
        return carried_frames_of(exchange)->produce(exchange, phase, err);
    }
    if (phase % CARRIED_PHASES != 0) {
        return carried_frames_number(exchange, phase, err);
    }
    return carried_frames_next(exchange, phase / CARRIED_PHASES, err) == ADTOPK_OK
               ? carried_frames_hold(exchange, phase, err)
               : err->code;
}

enum adtopk_status carried_frames_finish(struct exchange *exchange, struct error *err)
{
    const struct collective_ops *framed = carried_frames_of(exchange);
    const unsigned last = framed->phases(exchange) - 1;
    enum adtopk_status status;

    if (exchange->members == 1) {
        return framed->finish(exchange, err);
    }
    status = carried_frames_unload(exchange, last, err);
    if (status == ADTOPK_OK) {
        status = framed->finish(exchange, err);
    }
    carried_frames_forget(exchange, last);
    return status;
}

void carried_frames_drop(struct exchange *exchange)
{
    carried_frames_of(exchange)->drop(exchange);
}
