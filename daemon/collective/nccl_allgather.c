/*
 * Sparse all-gather by a carrier: every node gets the lists of all, as by allgather.c, and forms
 * the sum itself, in the order of the nodes. So the update has the bits that it has there.
 *
 * Pieces of one operation have one size. A list's frame is padded to the largest, which all nodes
 * know from the ready frames. Where all select the same number of entries and encode them raw, none
 * is padded.
 */
#include <string.h>

#include "daemon/collective/carried.h"
#include "daemon/collective/gather.h"
#include "daemon/collective/predict.h"

#define PIECE_ALIGNMENT 16u
#define FRAME_MOST 4096u /* bytes of a frame beside its entries */
#define TENSOR_MOST 64u  /* the same per tensor */
#define ELEMENT_MOST 16u /* bytes of an entry, at most */

static enum adtopk_status nccl_allgather_encode(
    struct exchange *exchange, struct payload_writer *frame)
{
    enum adtopk_status status = exchange_begin_frame(exchange, CARRIED_PHASES - 1, frame);

    for (unsigned t = 0; status == ADTOPK_OK && t < exchange->tensors; t++) {
        struct exchange_tensor *tensor = &exchange->tensor[t];
        status = payload_put_list(
            frame, &tensor->shape, &tensor->sent, exchange->index, exchange->value);
    }
    if (status == ADTOPK_OK) {
        payload_end(frame);
    }
    return status;
}

static enum adtopk_status nccl_allgather_ready(struct exchange *exchange, struct error *err)
{
    struct carried_state *state = carried_begin(exchange, err);

    if (state == NULL) {
        return err->code;
    }
    if (nccl_allgather_encode(exchange, &state->frame) != ADTOPK_OK) {
        return error_set(
            err, ADTOPK_ERR_MEMORY, "no memory to encode bucket %u", exchange->header.bucket);
    }
    return carried_ready(exchange, state->frame.size, err);
}

/* No frame of these tensors is larger. */
static uint64_t nccl_allgather_largest_frame(const struct exchange *exchange)
{
    uint64_t most = FRAME_MOST;

    for (unsigned t = 0; t < exchange->tensors; t++) {
        most += TENSOR_MOST + ELEMENT_MOST * exchange->tensor[t].numel;
    }
    return most;
}

/* Finds the size of the pieces. */
static enum adtopk_status nccl_allgather_measure(
    const struct exchange *exchange, uint64_t *piece, struct error *err)
{
    const struct carried_state *state = exchange->state;

    *piece = 0;
    for (unsigned m = 0; m < exchange->members; m++) {
        if (state->size[m] > nccl_allgather_largest_frame(exchange)) {
            (void)error_set(err, ADTOPK_ERR_PROTOCOL, "a list of %llu bytes",
                (unsigned long long)state->size[m]);
            return exchange_blame(exchange, m, err);
        }
        *piece = state->size[m] > *piece ? state->size[m] : *piece;
    }
    *piece = (*piece + PIECE_ALIGNMENT - 1) / PIECE_ALIGNMENT * PIECE_ALIGNMENT;
    return ADTOPK_OK;
}

static enum adtopk_status nccl_allgather_number(struct exchange *exchange, struct error *err)
{
    struct carried_state *state = exchange->state;
    struct cargo *cargo;
    uint64_t piece;

    if (carried_hear(exchange, err) != ADTOPK_OK ||
        nccl_allgather_measure(exchange, &piece, err) != ADTOPK_OK) {
        return err->code;
    }
    cargo = exchange->carried.cargo = cargo_create(CARGO_GATHER, piece, exchange->members);
    if (cargo == NULL) {
        return error_set(
            err, ADTOPK_ERR_MEMORY, "no memory to carry bucket %u", exchange->header.bucket);
    }
    (void)memcpy(cargo->input, state->frame.bytes, state->frame.size);
    return carried_number(exchange, err);
}

static enum adtopk_status nccl_allgather_produce(
    struct exchange *exchange, unsigned phase, struct error *err)
{
    if (exchange->members == 1) {
        return ADTOPK_OK;
    }
    return phase == 0 ? nccl_allgather_ready(exchange, err) : nccl_allgather_number(exchange, err);
}

static enum adtopk_status nccl_allgather_sum_tensor(
    struct gather *gather, unsigned t, struct error *err)
{
    struct exchange_tensor *tensor = &gather->exchange->tensor[t];
    enum adtopk_status status;

    for (unsigned m = 0; m < gather->exchange->members; m++) {
        gather->shape[m] = tensor->shape;
    }
    status = gather_next(gather, &tensor->sent, err);
    if (status == ADTOPK_OK) {
        status = gather_limit(gather, tensor, view_size(&tensor->shape.view), err);
    }
    return status == ADTOPK_OK ? gather_update(gather, tensor, err) : status;
}

/* The pieces take the place of the last phase's frames. */
static enum adtopk_status nccl_allgather_finish(struct exchange *exchange, struct error *err)
{
    const struct carried_state *state = exchange->state;
    const struct cargo *cargo = exchange->carried.cargo;
    const unsigned phase = carried_phases(exchange) - 1;

    for (unsigned m = 0; exchange->members > 1 && m < exchange->members; m++) {
        exchange->input[phase * exchange->members + m] = (struct exchange_input){
            .bytes = cargo->output + m * cargo->bytes, .size = state->size[m]};
    }
    return gather_each(exchange, phase, nccl_allgather_sum_tensor, err);
}

static double nccl_allgather_messages(const struct collective_load *load)
{
    return (CARRIED_PHASES + 1) * predict_others(load);
}

/* After both frames the pieces go round. */
static double nccl_allgather_hops(const struct collective_load *load)
{
    return CARRIED_PHASES + predict_others(load);
}

static const struct collective_cost nccl_allgather_cost = {
    .bytes = predict_all_lists,
    .messages = nccl_allgather_messages,
    .hops = nccl_allgather_hops,
    .summed = predict_all_entries,
};

const struct collective_ops collective_nccl_allgather = {
    .name = "nccl-allgather",
    .traits = {.values = COLLECTIVE_VALUES_ALL,
        .scatters = true,
        .framed = &collective_allgather,
        .cost = &nccl_allgather_cost},
    .phases = carried_phases,
    .expects = carried_expects,
    .produce = nccl_allgather_produce,
    .finish = nccl_allgather_finish,
    .drop = carried_drop,
};
