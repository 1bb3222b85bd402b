/*
 * Payload frames from other nodes: checks them and gives them to their rounds.
 *
 * A frame that its round cannot take yet is parked with the round: the sender may be a step ahead,
 * or this node's gradients are not there yet. The round takes parked frames when it begins its
 * exchange, and drops them when their view is over. A frame may be of a view whose commit has not
 * come yet, or whose plan is being switched to. It waits with the job, because its round may not
 * exist yet. Forged, foreign and stale frames are counted and dropped.
 */
#include "daemon/core/frame.h"

#include <stdlib.h>

#include "daemon/core/round.h"
#include "daemon/job/flight.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/measure.h"
#include "daemon/job/members.h"

/* Gives a frame to the exchange to which it belongs. */
static void take(
    struct round *round, unsigned from, const struct payload_header *header, struct buffer *frame)
{
    unsigned at = header->phase * round->exchange.members + from;

    if (header->phase >= round->phases || header->phase < round->phase ||
        (header->phase == round->phase &&
            !round->exchange.ops->expects(&round->exchange, header->phase, from)) ||
        round->received[at] != NULL) {
        round->job->core->bad_messages++; /* a second copy, or not expected */
        return;
    }
    round->received[at] = buffer_ref(frame);
    measure_received(round, frame->size);
    round->exchange.input[at] = (struct exchange_input){
        .bytes = frame->bytes, .size = frame->size, .known = frame->known, .crc = frame->crc};
}

static bool belongs(const struct round *round, const struct payload_header *header)
{
    return round->machine.state != ROUND_IDLE && header->view == round->view &&
           header->number == round_number(round) && header->bucket == round->bucket &&
           header->kind == (round->op ? FRAME_OP : FRAME_STEP);
}

void frame_take_parked(struct round *round)
{
    struct parked **link = &round->parked;

    while (*link != NULL) {
        struct parked *parked = *link;
        int from = membership_index(&round->job->in_force, parked->node);
        if (from < 0 || !belongs(round, &parked->header)) {
            link = &parked->next;
            continue;
        }
        take(round, (unsigned)from, &parked->header, parked->frame);
        *link = parked->next;
        buffer_unref(parked->frame);
        free(parked);
    }
}

/* How many frames of a round may be parked. A peer has at most one in flight, for this step and the
 * next, or the frames of all segments of a list. There are more while views change. In a ring the
 * node before is as many phases ahead as there are nodes. */
static unsigned parked_max(const struct job *job)
{
    return 8 + 2 * EXCHANGE_SEGMENTS_MAX +
           (job->in_force.nodes > 0 ? job->in_force.nodes : job->agreement.members.nodes);
}

static void park(
    struct round *round, uint16_t node, const struct payload_header *header, struct buffer *frame)
{
    struct job *job = round->job;
    struct parked *parked;
    unsigned before = 0;

    for (parked = round->parked; parked != NULL; parked = parked->next) {
        before += parked->node == node ? 1 : 0;
    }
    if (before >= parked_max(job)) {
        job_fail_with(job, ADTOPK_ERR_PROTOCOL, "node %u sent more frames for bucket %u than fit",
            node, header->bucket);
        return;
    }
    parked = malloc(sizeof(*parked));
    if (parked == NULL) {
        job_fail_with(job, ADTOPK_ERR_MEMORY, "no memory to keep a frame of node %u", node);
        return;
    }
    *parked = (struct parked){
        .next = round->parked, .node = node, .header = *header, .frame = buffer_ref(frame)};
    round->parked = parked;
}

/* Whether the plan of the frame's round is not in force here yet. A node that joins does not know
 * the number of the next operation either. */
static bool is_early(const struct job *job, const struct payload_header *header)
{
    if (header->kind == FRAME_OP) {
        return job->view == 0;
    }
    return header->kind == FRAME_STEP &&
           (header->view > job->view || job->switching.machine.state == SWITCH_MOVING);
}

static void keep_early(
    struct job *job, uint16_t node, const struct payload_header *header, struct buffer *frame)
{
    struct member *member = members_find(job, node);
    struct parked *parked = malloc(sizeof(*parked));

    if (parked == NULL || member->early >= parked_max(job) * (uint64_t)job->tensors) {
        job_fail_with(job, parked == NULL ? ADTOPK_ERR_MEMORY : ADTOPK_ERR_PROTOCOL,
            "no %s to keep another frame of node %u", parked == NULL ? "memory" : "room", node);
        free(parked);
        return;
    }
    *parked = (struct parked){
        .next = job->early.frames, .node = node, .header = *header, .frame = buffer_ref(frame)};
    job->early.frames = parked;
    member->early++;
    job->waits.moved_us = job->core->now_us;
}

/* Gives the early frames to their rounds, or drops them. */
static void end_early(struct job *job, bool give)
{
    struct parked *parked = job->early.frames, *next;

    job->early.frames = NULL;
    for (unsigned i = 0; i < job->members; i++) {
        job->member[i]->early = 0;
    }
    for (; parked != NULL; parked = next) {
        next = parked->next;
        if (give && !job_ended(job) && parked->header.view >= job->view) {
            frame_receive(job, parked->node, parked->frame);
        }
        buffer_unref(parked->frame);
        free(parked);
    }
}

void frame_release_early(struct job *job)
{
    end_early(job, true);
}

void frame_drop_early(struct job *job)
{
    end_early(job, false);
}

/* The round that a frame names, or NULL. A node without rounds is in no view yet. A frame of its
 * first view cannot come before it has answered the prepare. */
static struct round *round_of(struct job *job, const struct payload_header *header)
{
    if (job->plan->round == NULL || header->kind > FRAME_OP_COPY) {
        return NULL;
    }
    if (header->kind == FRAME_OP || header->kind == FRAME_OP_COPY) {
        return &job->op.round;
    }
    return header->bucket < job->plan->rounds ? &job->plan->round[header->bucket] : NULL;
}

/* Others have begun a round: from now on this node waits for its ranks, and can name them. */
static void start_clock(const struct round *round, int from, const struct payload_header *header)
{
    struct job *job = round->job;

    if (!round->op && from >= 0 && job->in_force.since[from] > header->number) {
        return; /* its ranks only watch: nobody has begun the step */
    }
    if (!job_ended(job) && header->number == round_number(round)) {
        job_note_since(job, round->op ? &job->op.since_us : &job->step.since_us);
    }
}

void frame_receive(struct job *job, uint16_t node, struct buffer *frame)
{
    struct payload_header header;
    struct round *round = NULL;
    struct member *member = members_find(job, node);
    int from = membership_index(&job->in_force, node);
    uint64_t number;

    if (member != NULL) {
        member->bytes.frames += frame->size;
    }
    if (payload_peek(&header, frame->bytes, frame->size, NULL) == ADTOPK_OK &&
        header.source == node && header.view >= job->view &&
        header.view <= job->agreement.promised && member != NULL) {
        if (job->store != NULL && is_early(job, &header)) {
            keep_early(job, node, &header, frame);
            return;
        }
        round = round_of(job, &header);
    }
    number = round != NULL ? round_number(round) : 0;
    if (round == NULL || header.number < number || header.number > number + 1 ||
        (header.view == job->view && from < 0)) {
        job->core->bad_messages++; /* forged, foreign, or of a view or step that is over */
        return;
    }
    job->waits.moved_us = job->core->now_us;
    flight_frame(job, RECORD_RECEIVED, node, &header, frame->size);
    if (header.kind >= FRAME_STEP_COPY) {
        if (header.view == job->view && header.number == number) {
            round_copy(round, frame);
        }
    } else if (round->machine.state == ROUND_EXCHANGE && belongs(round, &header)) {
        take(round, (unsigned)from, &header, frame);
        round_advance(round);
    } else {
        park(round, node, &header, frame);
        start_clock(round, from, &header);
        if (round->op && !job_ended(job)) {
            round_try(round); /* a node that watches joins in */
        }
    }
}
