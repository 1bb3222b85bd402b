/* A daemon without a flight recorder: in the place of daemon/job/flight.c, for `watched`. */
#include "daemon/job/flight.h"

void flight_rank(const struct rank *rank, enum record_kind kind, uint32_t bucket)
{
    (void)rank, (void)kind, (void)bucket;
}

void flight_step(struct job *job, enum record_kind kind)
{
    (void)job, (void)kind;
}

void flight_round(const struct round *round, enum round_state next)
{
    (void)round, (void)next;
}

void flight_frame(struct job *job, enum record_kind kind, uint16_t node,
    const struct payload_header *header, uint64_t bytes)
{
    (void)job, (void)kind, (void)node, (void)header, (void)bytes;
}
