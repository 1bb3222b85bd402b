/*
 * What a record of the flight recorder costs: prints nanoseconds, the least of many runs of 50
 * steps. The records are in the cache, as they are where steps are short.
 */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/job/flight.h"
#include "tests/bench/perf/clock.h"

#define RUNS 20000
#define STEPS 50
#define RECORDS 12 /* of a step of one rank */

static uint64_t run(struct job *job)
{
    const uint64_t began = clock_ns();

    for (int step = 0; step < STEPS; step++) {
        for (int i = 1; i < RECORDS; i++) {
            flight_step(job, RECORD_OPENED);
        }
        flight_step(job, RECORD_CLOSED);
    }
    return clock_ns() - began;
}

int main(void)
{
    struct job *job = calloc(1, sizeof(*job));
    struct core *core = calloc(1, sizeof(*core));
    uint64_t least = UINT64_MAX;

    if (job == NULL || core == NULL) {
        (void)fputs("recorder-cost: no memory\n", stderr);
        return 1;
    }
    job->core = core;
    for (int i = 0; i < RUNS; i++) {
        const uint64_t took = run(job);
        least = took < least ? took : least;
    }
    (void)printf("%.2f\n", (double)least / (STEPS * RECORDS));
    recorder_free(&job->figures.recorder);
    free(core);
    free(job);
    return 0;
}
