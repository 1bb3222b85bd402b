#include "client/src/pending.h"

#include <sys/mman.h>

#include "client/src/question.h"

void client_pending_drop(struct client_pending *pending)
{
    for (unsigned part = 0; part < LOCAL_PARTS; part++) {
        client_unmap(&pending->part[part]);
        pending->part[part] = (struct client_mapping){.bytes = NULL};
        pending->asked[part] = false;
    }
    pending->since = 0;
}

/* Asks for a part, and again if the daemon is started again meanwhile. It waits for the answer to
 * its own question only. */
static enum adtopk_status pending_ask(
    adtopk_context *context, uint32_t part, struct client_reply *reply)
{
    const struct client_patience patience = client_patience(context, -1);
    Adtopk__LocalShow show = ADTOPK__LOCAL_SHOW__INIT;
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    enum adtopk_status status;

    context->unfinished.answers = false;
    show.part = part;
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_SHOW;
    request.show = &show;
    do {
        show.number = context->unfinished.asked + 1;
        status = client_question(context, &request, &patience, reply);
    } while (status == ADTOPK_OK && reply->message == NULL);
    context->unfinished.answers = false;
    return status;
}

/* Maps a part. If the daemon does not show it the mapping stays empty. */
static enum adtopk_status pending_map(adtopk_context *context, uint32_t part)
{
    struct client_reply reply;
    enum adtopk_status status = pending_ask(context, part, &reply);

    if (status != ADTOPK_OK) {
        return status;
    }
    context->pending.asked[part] = true;
    if (reply.message->kind_case != ADTOPK__LOCAL_REPLY__KIND_SHOWN) {
        status = client_fail(context, ADTOPK_ERR_PROTOCOL,
            "the daemon at %s sent something else than a residual", context->place.address);
    } else if (reply.message->shown->size > 0) {
        status = client_map(context, &reply, 0, PROT_READ, reply.message->shown->size,
            &context->pending.part[part]);
    }
    client_reply_drop(&reply);
    return status;
}

/* Returns the part that contains this rank's residual, and the offset in it. */
static uint32_t pending_place(
    const adtopk_context *context, const struct local_pending *record, uint64_t *offset)
{
    const uint32_t index = context->pending.index;

    if (record->rank_size == 0 || index == 0) {
        *offset = record->offset;
        return record->part;
    }
    *offset = record->rank_offset + (index - 1) * record->rank_size;
    return record->rank_part;
}

static const void *pending_at(const struct client_mapping *mapping, uint64_t offset, uint64_t bytes)
{
    return mapping->bytes == NULL || offset > mapping->size || bytes > mapping->size - offset ||
                   offset % sizeof(float) != 0
               ? NULL
               : (const uint8_t *)mapping->bytes + offset;
}

enum adtopk_status client_pending_find(
    adtopk_context *context, uint32_t tensor, struct adtopk_update *update)
{
    const struct local_pending record = context->tensor[tensor].update->pending;
    const bool rounded = record.dtype == ADTOPK_BF16 && record.rank_size == 0;
    const uint64_t bytes = update->numel * (rounded ? sizeof(uint16_t) : sizeof(float));
    enum adtopk_status status = ADTOPK_OK;
    uint64_t offset;
    uint32_t part;

    if (context->tensor[tensor].pending != NULL) {
        update->lookahead = record.lookahead; /* a stream does the rest */
    }
    if (record.since == 0) {
        return ADTOPK_OK;
    }
    if (record.since != context->pending.since) {
        if (context->pending.read == context->step + 1) {
            return ADTOPK_OK; /* the trainer may still read the old mapping */
        }
        client_pending_drop(&context->pending);
        context->pending.since = record.since;
    }
    part = pending_place(context, &record, &offset);
    if (part < LOCAL_PARTS && !context->pending.asked[part]) {
        status = pending_map(context, part);
    }
    if (status == ADTOPK_OK && part < LOCAL_PARTS) {
        update->pending = pending_at(&context->pending.part[part], offset, bytes);
    }
    if (update->pending != NULL) {
        update->pending_dtype = rounded ? ADTOPK_BF16 : ADTOPK_F32;
        update->pending_scale = record.scale;
        update->lookahead = record.lookahead * context->tensor[tensor].guard;
    }
    return status;
}
