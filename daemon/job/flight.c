#include "daemon/job/flight.h"

#include "daemon/job/job_state.h"

static struct flight_record *flight_slot(struct job *job, unsigned kind)
{
    return recorder_add(&job->figures.recorder, (enum record_kind)kind);
}

void flight_rank(const struct rank *rank, enum record_kind kind, uint32_t bucket)
{
    *flight_slot(rank->job, kind) = (struct flight_record){.at_us = rank->job->core->now_us,
        .kind = (uint8_t)kind,
        .step = step_number(rank->job),
        .bucket = bucket,
        .value = rank->number};
}

void flight_step(struct job *job, enum record_kind kind)
{
    *flight_slot(job, kind) = (struct flight_record){
        .at_us = job->core->now_us, .kind = (uint8_t)kind, .step = step_number(job)};
}

void flight_round(const struct round *round, enum round_state next)
{
    const unsigned kind = RECORD_ROUND + (unsigned)next;

    *flight_slot(round->job, kind) = (struct flight_record){.at_us = round->job->core->now_us,
        .kind = (uint8_t)kind,
        .step = round_number(round),
        .bucket = round->op ? RECORD_OPERATION : round->bucket};
}

void flight_frame(struct job *job, enum record_kind kind, uint16_t node,
    const struct payload_header *header, uint64_t bytes)
{
    const bool op = header->kind == FRAME_OP || header->kind == FRAME_OP_COPY;

    *flight_slot(job, kind) = (struct flight_record){.at_us = job->core->now_us,
        .kind = (uint8_t)kind,
        .step = header->number,
        .bucket = op ? RECORD_OPERATION : header->bucket,
        .value = bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX,
        .node = node,
        .view = (uint16_t)header->view,
        .phase = header->phase};
}
