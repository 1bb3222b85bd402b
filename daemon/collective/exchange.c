/* What every collective needs of an exchange. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/collective/collective.h"

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

void exchange_drop_frames(struct exchange *exchange)
{
    for (unsigned i = 0; i < exchange->outgoing_count; i++) {
        payload_free(&exchange->outgoing[i].frame);
    }
    free(exchange->outgoing);
    exchange->outgoing = NULL;
    exchange->outgoing_count = 0;
}
