/*
 * Payload frames from other nodes: checked, and given to the round they belong to.
 *
 * A frame that its round cannot take yet is parked with the job: the sender may be a step ahead,
 * its view's commit may still be on the way to us, or our own gradients are not there yet. Parked
 * frames are taken when their round begins its exchange, and dropped when their view is over.
 * Forged, foreign and stale frames are counted and dropped.
 */
#include <stdlib.h>

#include "daemon/core/model.h"

/* Takes a frame that belongs to this exchange. */
static void take(
    struct round *round, unsigned from, const struct payload_header *header, struct buffer *frame)
{
    unsigned at = header->phase * round->exchange.members + from;

    if (header->phase >= round->phases || header->phase < round->phase ||
        !round->exchange.ops->expects(&round->exchange, header->phase, from) ||
        round->received[at] != NULL) {
        round->job->core->bad_messages++; /* a phase that does not exist, or a second copy */
        return;
    }
    round->received[at] = buffer_ref(frame);
    round->exchange.input[at] = (struct exchange_input){.bytes = frame->bytes, .size = frame->size};
}

static bool belongs(const struct round *round, const struct payload_header *header)
{
    return round->machine.state != ROUND_IDLE && header->view == round->view &&
           header->number == round_number(round) && header->bucket == round->bucket &&
           header->kind == (round->op ? FRAME_OP : FRAME_STEP);
}

void frame_take_parked(struct round *round)
{
    struct parked **link = &round->job->parked;

    while (*link != NULL) {
        struct parked *parked = *link;
        int from = view_index(round->job, parked->node);
        if (from < 0 || !belongs(round, &parked->header)) {
            link = &parked->next;
            continue;
        }
        take(round, (unsigned)from, &parked->header, parked->frame);
        *link = parked->next;
        round->job->parked_count--;
        buffer_unref(parked->frame);
        free(parked);
    }
}

/* Frames of the next step, of a view whose commit is still on its way, or of a round whose local
 * gradients are not there yet. A peer can have one frame a phase, round and step in flight. */
static void park(
    struct job *job, uint16_t node, const struct payload_header *header, struct buffer *frame)
{
    unsigned limit = (job->members + 1) * (job->buckets + job->tensors + 1) * 8;
    struct parked *parked = job->parked_count < limit ? malloc(sizeof(*parked)) : NULL;

    if (parked == NULL) {
        struct error error;
        (void)error_set(&error, ADTOPK_ERR_PROTOCOL, "node %u sent more frames than fit", node);
        job_fail(job, &error, true);
        return;
    }
    *parked = (struct parked){
        .next = job->parked, .node = node, .header = *header, .frame = buffer_ref(frame)};
    job->parked = parked;
    job->parked_count++;
}

void frame_drop_parked(struct job *job, uint32_t view)
{
    struct parked **link = &job->parked;

    while (*link != NULL) {
        struct parked *parked = *link;
        if (parked->header.view >= view) {
            link = &parked->next;
            continue;
        }
        *link = parked->next;
        job->parked_count--;
        buffer_unref(parked->frame);
        free(parked);
    }
}

/* The round that a frame names, or NULL. */
static struct round *round_of(struct job *job, const struct payload_header *header)
{
    if (header->kind == FRAME_OP || header->kind == FRAME_OP_COPY) {
        return &job->op_round;
    }
    return header->bucket < job->rounds ? &job->round[header->bucket] : NULL;
}

void frame_receive(struct job *job, uint16_t node, struct buffer *frame)
{
    struct payload_header header;
    struct round *round = NULL;
    int from = view_index(job, node);

    if (payload_peek(&header, frame->bytes, frame->size, NULL) != ADTOPK_OK ||
        header.source != node || header.kind > FRAME_OP_COPY || header.view < job->view ||
        (job->view > 0 && from < 0)) {
        job->core->bad_messages++; /* forged, foreign, or of a view that is over */
        return;
    }
    if (job->round != NULL && job->view == header.view) {
        round = round_of(job, &header);
        if (round == NULL || header.number < round_number(round) ||
            header.number > round_number(round) + 1) {
            job->core->bad_messages++;
            return;
        }
    }
    if (round != NULL && header.kind >= FRAME_STEP_COPY) {
        if (header.number == round_number(round)) {
            round_copy(round, frame);
        }
    } else if (round != NULL && round->machine.state == ROUND_EXCHANGE && belongs(round, &header)) {
        take(round, (unsigned)from, &header, frame);
        round_advance(round);
    } else {
        park(job, node, &header, frame);
    }
}
