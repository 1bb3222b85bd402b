#include "daemon/job/actions.h"

#include <stdio.h>
#include <stdlib.h>

#include "daemon/job/due.h"
#include "daemon/job/roster.h"

/* How many actions can wait at the same time. A rank gets a message per tensor and step, and cannot
 * be more than a step ahead of the last one. Every round has at most one compute, the planner one,
 * and few plans are made or freed at the same time. Clients that ask for ranks are answered
 * together, and so are those that ask for a checkpoint. */
static uint64_t actions_needed(const struct core *core)
{
    uint64_t needed = ACTIONS_MIN;

    for (const struct job *job = core->jobs; job != NULL; job = job->places.next) {
        const uint64_t tensors = job->tensors + job->registering.nexts;
        needed += job->ranks * actions_of_rank(job) + 2 * tensors + 16 + ROSTER_ASKING_MAX +
                  DUE_ASKING_MAX;
    }
    return needed;
}

uint64_t actions_of_rank(const struct job *job)
{
    return 2 * ((uint64_t)job->tensors + job->registering.nexts) + 8;
}

enum adtopk_status core_reserve_actions(struct core *core, uint64_t more, struct error *err)
{
    uint64_t needed = actions_needed(core) + more;
    struct action *grown;

    if (needed <= core->queue_size) {
        return ADTOPK_OK;
    }
    grown = malloc(needed * sizeof(*grown));
    if (grown == NULL) {
        return error_set(
            err, ADTOPK_ERR_MEMORY, "no memory for %llu actions", (unsigned long long)needed);
    }
    for (unsigned i = 0; i < core->queue_count; i++) {
        grown[i] = core->queue[(core->queue_head + i) % core->queue_size];
    }
    free(core->queue);
    core->queue = grown;
    core->queue_size = (unsigned)needed;
    core->queue_head = 0;
    return ADTOPK_OK;
}

void core_act(struct core *core, const struct action *action)
{
    if (core->queue_count == core->queue_size) {
        (void)fprintf(stderr, "adtopk: more actions than actions_needed() allows for\n");
        abort();
    }
    core->queue[(core->queue_head + core->queue_count) % core->queue_size] = *action;
    core->queue_count++;
}

/* The urgency of a round's computes and frames; NULL: of those of the whole job. */
struct share_class core_class_of(const struct job *job, const struct round *round)
{
    return (struct share_class){.job = job->number,
        .weight = (uint32_t)job->plan->policy.weight,
        .place = round != NULL ? round->place : 0};
}

void core_compute(
    struct work *work, void (*run)(struct compute *), void (*done)(struct work *), uint64_t bytes)
{
    work->compute = (struct compute){
        .run = run, .bytes = bytes, .class = core_class_of(work->job, work->round)};
    work->done = done;
    work->status = ADTOPK_OK;
    work->spent_us = 0;
    work->spent_unknown = false;
    work->job->advance.computing++;
    core_act(work->job->core, &(struct action){.type = ACTION_COMPUTE, .compute = &work->compute});
}
