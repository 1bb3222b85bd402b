/* What every collective needs of an exchange. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/collective/collective.h"
#include "kernels/cpu/quantise.h"

struct payload_writer *exchange_add_frame(struct exchange *exchange, unsigned phase, uint32_t to)
{
    struct exchange_frame *grown =
        realloc(exchange->outgoing, (exchange->outgoing_count + 1) * sizeof(*exchange->outgoing));
    struct payload_header header = exchange->header;
    struct exchange_frame *added;

    if (grown == NULL) {
        return NULL;
    }
    exchange->outgoing = grown;
    added = &grown[exchange->outgoing_count];
    *added = (struct exchange_frame){.to = to};
    header.phase = (uint8_t)phase;
    header.flags = exchange->nonfinite ? PAYLOAD_FLAG_NONFINITE : 0;
    if (payload_begin(&added->frame, &header) != ADTOPK_OK) {
        return NULL;
    }
    exchange->outgoing_count++;
    return &added->frame;
}

enum adtopk_status exchange_blame(const struct exchange *exchange, unsigned from, struct error *err)
{
    char text[ERROR_TEXT_SIZE];

    (void)memcpy(text, err->text, sizeof(text));
    return error_set(err, err->code, "node %u sent a bad frame for bucket %u of %s %llu: %s",
        exchange->node[from], exchange->header.bucket, exchange->op != NULL ? "operation" : "step",
        (unsigned long long)exchange->header.number, text);
}

enum adtopk_status exchange_open(const struct exchange *exchange, unsigned phase, unsigned from,
    struct payload_reader *reader, struct error *err)
{
    const struct exchange_input *input = &exchange->input[phase * exchange->members + from];

    if (payload_open(reader, input->bytes, input->size, err) != ADTOPK_OK) {
        return exchange_blame(exchange, from, err);
    }
    return ADTOPK_OK;
}

void exchange_note(struct exchange *exchange, const struct payload_reader *reader)
{
    if ((reader->header.flags & PAYLOAD_FLAG_NONFINITE) != 0) {
        exchange->nonfinite = true;
    }
}

/* What rounding a sum cuts off: nothing of one that is, or becomes, no number. */
static float cut_off(float sum, float *rounded)
{
    float rest;

    *rounded = sum;
    quantise_values(rounded, 1, QUANTISE_BF16, 0);
    rest = sum - *rounded;
    return rest - rest == 0 ? rest : 0;
}

/* Merges what rounding cuts off `sum` into the list, from the end, and rounds. room: at least as
 * many entries more as it cuts something off. Returns how many places are left free between what
 * was there and what was merged, as positions that are in both take one. */
static size_t merge_back(struct sparse *returned, size_t end, struct sparse *sum)
{
    size_t old = returned->count;

    for (size_t i = sum->count; i-- > 0;) {
        float rest = cut_off(sum->value[i], &sum->value[i]);
        if (rest == 0) {
            continue;
        }
        while (old > 0 && returned->position[old - 1] > sum->position[i]) {
            old--;
            end--;
            returned->position[end] = returned->position[old];
            returned->value[end] = returned->value[old];
        }
        if (old > 0 && returned->position[old - 1] == sum->position[i]) {
            rest += returned->value[--old];
        }
        end--;
        returned->position[end] = sum->position[i];
        returned->value[end] = rest;
    }
    returned->count = old;
    return end;
}

enum payload_value exchange_round(
    const struct exchange *exchange, struct exchange_tensor *tensor, struct sparse *sum)
{
    struct sparse *returned = &tensor->returned;
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
    if (count > returned->capacity - returned->count) {
        return PAYLOAD_VALUE_F32;
    }
    end = returned->count + count;
    first = merge_back(returned, end, sum);
    count = end - first;
    (void)memmove(returned->position + returned->count, returned->position + first,
        count * sizeof(*returned->position));
    (void)memmove(
        returned->value + returned->count, returned->value + first, count * sizeof(float));
    returned->count += count;
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
    for (unsigned t = 0; t < exchange->tensors; t++) {
        struct exchange_tensor *tensor = &exchange->tensor[t];
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
