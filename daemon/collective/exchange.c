/* Functions that every collective needs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/collective/carried.h"
#include "daemon/collective/collective.h"
#include "kernels/base/quantise.h"
#include "proto/loss_scale.h"

static size_t exchange_bits(const struct exchange *exchange)
{
    return (exchange->tensors + 7) / 8;
}

static bool exchange_bit(const uint8_t *bits, unsigned t)
{
    return (bits[t / 8] >> t % 8 & 1) != 0;
}

/* Whether a tensor has the mark that a frame's flag tells. */
static bool exchange_has(const struct exchange_tensor *tensor, unsigned flag)
{
    return flag == PAYLOAD_FLAG_UNPUSHED ? tensor->unpushed : tensor->nonfinite;
}

/* The flag, if some tensor has its mark; otherwise 0. */
static unsigned exchange_flag(const struct exchange *exchange, unsigned flag)
{
    for (unsigned t = 0; t < exchange->tensors; t++) {
        if (exchange_has(&exchange->tensor[t], flag)) {
            return flag;
        }
    }
    return 0;
}

/* A section at the frame's beginning: which tensors have the mark as far as this node knows. */
static enum adtopk_status exchange_put_marks(
    const struct exchange *exchange, unsigned flag, struct payload_writer *frame)
{
    uint8_t *bits = calloc(exchange_bits(exchange), 1);
    enum adtopk_status status = ADTOPK_ERR_MEMORY;

    for (unsigned t = 0; bits != NULL && t < exchange->tensors; t++) {
        bits[t / 8] |= (uint8_t)(exchange_has(&exchange->tensor[t], flag) ? 1u << t % 8 : 0);
    }
    if (bits != NULL) {
        status = payload_put_bytes(frame, bits, exchange_bits(exchange));
    }
    free(bits);
    return status;
}

enum adtopk_status exchange_begin_frame(
    const struct exchange *exchange, unsigned phase, struct payload_writer *frame)
{
    const unsigned unpushed = exchange_flag(exchange, PAYLOAD_FLAG_UNPUSHED);
    const unsigned nonfinite = exchange_flag(exchange, PAYLOAD_FLAG_NONFINITE);
    struct payload_header header = exchange->header;
    enum adtopk_status status;

    header.phase = (uint8_t)phase;
    header.flags = (uint8_t)(unpushed | nonfinite);
    status = payload_begin(frame, &header);
    if (status == ADTOPK_OK && unpushed != 0) {
        status = exchange_put_marks(exchange, unpushed, frame);
    }
    if (status == ADTOPK_OK && nonfinite != 0) {
        status = exchange_put_marks(exchange, nonfinite, frame);
    }
    return status;
}

struct payload_writer *exchange_add_frame(struct exchange *exchange, unsigned phase, uint32_t to)
{
    struct exchange_frame *grown =
        realloc(exchange->outgoing, (exchange->outgoing_count + 1) * sizeof(*exchange->outgoing));
    struct exchange_frame *added;

    if (grown == NULL) {
        return NULL;
    }
    exchange->outgoing = grown;
    added = &grown[exchange->outgoing_count];
    *added = (struct exchange_frame){.to = to};
    if (exchange_begin_frame(exchange, phase, &added->frame) != ADTOPK_OK) {
        payload_free(&added->frame);
        return NULL;
    }
    exchange->outgoing_count++;
    return &added->frame;
}

bool exchange_expects_all(const struct exchange *exchange, unsigned phase, unsigned from)
{
    (void)phase;
    return from != exchange->self;
}

enum adtopk_status exchange_blame(const struct exchange *exchange, unsigned from, struct error *err)
{
    char text[ERROR_TEXT_SIZE];

    (void)memcpy(text, err->text, sizeof(text));
    return error_set(err, err->code, "node %u sent a bad frame for bucket %u of %s %llu: %s",
        exchange->node[from], exchange->header.bucket, exchange->op != NULL ? "operation" : "step",
        (unsigned long long)exchange->header.number, text);
}

enum adtopk_status exchange_no_memory(
    const struct exchange *exchange, const char *verb, struct error *err)
{
    return error_set(
        err, ADTOPK_ERR_MEMORY, "no memory to %s bucket %u", verb, exchange->header.bucket);
}

/* Reads a section of marks, if the frame has the flag. Bits that are not needed must be 0, as any
 * frame has one form. */
static enum adtopk_status exchange_get_marks(const struct exchange *exchange, unsigned flag,
    struct payload_reader *reader, const uint8_t **bits, struct error *err)
{
    const char *what = flag == PAYLOAD_FLAG_UNPUSHED ? "unpushed" : "non-finite";
    const size_t most = exchange_bits(exchange);
    unsigned set = 0;
    size_t size;

    *bits = NULL;
    if ((reader->header.flags & flag) == 0) {
        return ADTOPK_OK;
    }
    if (payload_get_bytes(reader, most, bits, &size, err) != ADTOPK_OK) {
        return err->code;
    }
    for (unsigned t = 0; size == most && t < 8 * most; t++) {
        set += exchange_bit(*bits, t) ? 1 : 0;
        if (t >= exchange->tensors && exchange_bit(*bits, t)) {
            return error_set(
                err, ADTOPK_ERR_PROTOCOL, "its mark of %s tensors names tensor %u", what, t);
        }
    }
    return set > 0 ? ADTOPK_OK
                   : error_set(err, ADTOPK_ERR_PROTOCOL,
                         "its mark of %s tensors is empty, or does not fit %u tensors", what,
                         exchange->tensors);
}

static enum adtopk_status exchange_open_frame(
    const struct exchange_input *input, struct payload_reader *reader, struct error *err)
{
    return input->known ? payload_open_known(reader, input->bytes, input->size, input->crc, err)
                        : payload_open(reader, input->bytes, input->size, err);
}

enum adtopk_status exchange_open(const struct exchange *exchange, unsigned phase, unsigned from,
    struct payload_reader *reader, struct error *err)
{
    const struct exchange_input *input = &exchange->input[phase * exchange->members + from];

    if (exchange_open_frame(input, reader, err) != ADTOPK_OK ||
        exchange_get_marks(exchange, PAYLOAD_FLAG_UNPUSHED, reader, &reader->unpushed, err) !=
            ADTOPK_OK ||
        exchange_get_marks(exchange, PAYLOAD_FLAG_NONFINITE, reader, &reader->nonfinite, err) !=
            ADTOPK_OK) {
        return exchange_blame(exchange, from, err);
    }
    return ADTOPK_OK;
}

void exchange_note(struct exchange *exchange, const struct payload_reader *reader)
{
    for (unsigned t = 0; t < exchange->tensors; t++) {
        struct exchange_tensor *tensor = &exchange->tensor[t];
        tensor->unpushed =
            tensor->unpushed && reader->unpushed != NULL && exchange_bit(reader->unpushed, t);
        tensor->nonfinite |= reader->nonfinite != NULL && exchange_bit(reader->nonfinite, t);
    }
    if (exchange->header.loss_scale == 0) {
        exchange->header.loss_scale = reader->header.loss_scale;
        exchange->header.loss_rank = reader->header.loss_rank;
    } else if (reader->header.loss_scale != 0 && exchange->other.scale == 0 &&
               reader->header.loss_scale != exchange->header.loss_scale) {
        exchange->other =
            (struct exchange_loss){reader->header.loss_scale, reader->header.loss_rank};
    }
}

enum adtopk_status exchange_check_scales(const struct exchange *exchange, struct error *err)
{
    const struct payload_header *header = &exchange->header;

    return exchange->other.scale == 0
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_MISMATCH,
                     "loss scales differ in step %llu: rank %u pushed with %.9g, rank %u with %.9g",
                     (unsigned long long)header->number, header->loss_rank,
                     (double)header->loss_scale, exchange->other.rank,
                     (double)exchange->other.scale);
}

float exchange_factor(const struct exchange *exchange)
{
    return exchange->scale * loss_scale_factor(exchange->header.loss_scale);
}

/* The rounding error of a sum; none if the sum is no number, or becomes none. */
static float cut_off(float sum, float *rounded)
{
    float rest;

    *rounded = sum;
    quantise_values(rounded, 1, QUANTISE_BF16, 0);
    rest = sum - *rounded;
    return rest - rest == 0 ? rest : 0;
}

/* Rounds `sum` and merges the rounding errors into the list, from its end. room: at least as many
 * more entries as there are errors. Returns how many places stay free between the old and the
 * merged entries, because positions in both take one place. */
static size_t merge_rests(struct sparse *rests, size_t end, struct sparse *sum)
{
    size_t old = rests->count;

    for (size_t i = sum->count; i-- > 0;) {
        float rest = cut_off(sum->value[i], &sum->value[i]);
        if (rest == 0) {
            continue;
        }
        while (old > 0 && rests->position[old - 1] > sum->position[i]) {
            old--;
            end--;
            rests->position[end] = rests->position[old];
            rests->value[end] = rests->value[old];
        }
        if (old > 0 && rests->position[old - 1] == sum->position[i]) {
            rest += rests->value[--old];
        }
        end--;
        rests->position[end] = sum->position[i];
        rests->value[end] = rest;
    }
    rests->count = old;
    return end;
}

enum payload_value exchange_reround(
    const struct exchange *exchange, struct exchange_tensor *tensor, struct sparse *sum)
{
    struct sparse *rests = &tensor->rests;
    size_t count = 0, end, first;
    float rounded;

    if (exchange->value == PAYLOAD_VALUE_F32) {
        return PAYLOAD_VALUE_F32;
    }
    for (size_t i = 0; i < sum->count; i++) {
        count += cut_off(sum->value[i], &rounded) != 0;
    }
    if (count == 0) {
        return PAYLOAD_VALUE_BF16; /* and they are rounded already */
    }
    if (count > rests->capacity - rests->count) {
        return PAYLOAD_VALUE_F32;
    }
    end = rests->count + count;
    first = merge_rests(rests, end, sum);
    count = end - first;
    (void)memmove(
        rests->position + rests->count, rests->position + first, count * sizeof(*rests->position));
    (void)memmove(rests->value + rests->count, rests->value + first, count * sizeof(float));
    rests->count += count;
    return PAYLOAD_VALUE_BF16;
}

void exchange_drop_frames(struct exchange *exchange)
{
    for (unsigned i = 0; i < exchange->outgoing_count; i++) {
        payload_free(&exchange->outgoing[i].frame);
    }
    free(exchange->outgoing);
    exchange->outgoing = NULL;
    exchange->outgoing_count = 0;
}

void exchange_drop(struct exchange *exchange)
{
    exchange_drop_frames(exchange);
    carried_drop(exchange);
    for (unsigned t = 0; t < exchange->tensors; t++) {
        struct exchange_tensor *tensor = &exchange->tensor[t];
        free(tensor->own_acc);
        tensor->own_acc = NULL;
        if (tensor->own_update) {
            free(tensor->update.position);
            free(tensor->update.value);
            tensor->update = (struct sparse){0};
            tensor->own_update = false;
        }
    }
    if (exchange->state != NULL) {
        exchange->ops->drop(exchange);
        exchange->state = NULL;
    }
}
