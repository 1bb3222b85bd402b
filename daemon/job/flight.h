/*
 * What the core and the computes tell a job's flight recorder (recorder.h), stamped with the time
 * of the event that is being handled.
 */
#ifndef ADTOPK_JOB_FLIGHT_H
#define ADTOPK_JOB_FLIGHT_H

#include "daemon/job/model.h"
#include "proto/payload.h"

/** The rank has begun or ended its step, or has pushed all of a bucket (otherwise 0). */
void flight_rank(const struct rank *rank, enum record_kind kind, uint32_t bucket);

/** The open step has moved. */
void flight_step(struct job *job, enum record_kind kind);

/** The round is about to move to this state. */
void flight_round(const struct round *round, enum round_state next);

/** A frame was given to the links, or has come. */
void flight_frame(struct job *job, enum record_kind kind, uint16_t node,
    const struct payload_header *header, uint64_t bytes);

#endif
