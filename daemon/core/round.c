/*
 * Rounds: one bucket, or the plain operations, at one step.
 *
 * The happy path: open, collect (until all local ranks have pushed, or ended the step), select (a
 * compute), exchange (frames, phase by phase, with computes between), reduce (a compute). Then the
 * round is delivered, and it is closed with its step.
 *
 * What can come between:
 * - The view changes: a round that is not delivered goes back to collect and starts again in the
 *   new view. The residual still holds all selected entries, so it selects the same ones again.
 * - Another node delivered the round in the old view: this node fetches the update and takes it as
 *   it is.
 * - A rank waits for one tensor of the bucket: the bucket is split, and its tensors are sent alone.
 * - A frame comes before its round can take it: it is parked with the round.
 */
#include "daemon/core/round.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/compute/copy.h"
#include "daemon/compute/grow.h"
#include "daemon/compute/launch.h"
#include "daemon/compute/results.h"
#include "daemon/compute/round_exchange.h"
#include "daemon/compute/round_memory.h"
#include "daemon/compute/work_round.h"
#include "daemon/core/frame.h"
#include "daemon/job/actions.h"
#include "daemon/job/flight.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/measure.h"
#include "daemon/job/members.h"
#include "daemon/job/peer.h"
#include "daemon/job/store.h"

static void move(struct round *round, enum round_event event, enum round_state next)
{
    static const int phase_of[ROUND_STATES] = {
        [ROUND_IDLE] = -1,
        [ROUND_COLLECT] = PHASE_COLLECT,
        [ROUND_SELECT] = PHASE_SELECT,
        [ROUND_EXCHANGE] = PHASE_EXCHANGE,
        [ROUND_COMBINE] = PHASE_REDUCE,
        [ROUND_REDUCE] = PHASE_REDUCE,
        [ROUND_FETCH] = PHASE_EXCHANGE,
        [ROUND_DELIVERED] = -1,
    };
    struct job *job = round->job;
    int phase = phase_of[round->machine.state];

    if (phase >= 0 && !round->op) {
        measure_phase_time(job, (enum phase)phase, job->core->now_us - round->since_us);
    }
    round->since_us = job->core->now_us;
    flight_round(round, next);
    machine_fire(&round->machine, event, next);
}

/* Tells the local ranks that the round is delivered. */
static void announce(const struct round *round)
{
    struct job *job = round->job;

    for (unsigned r = 0; r < job->ranks; r++) {
        if (job->rank[r]->machine.state != RANK_READY) {
            continue; /* it has left, only watches, or its place is vacant */
        }
        if (round->op) {
            core_act(job->core, &(struct action){.type = ACTION_OP_DONE,
                                    .session = job->rank[r]->session,
                                    .number = job->store->ops_done - 1});
        }
        for (unsigned i = 0; i < round->tensors; i++) {
            results_tell(job->rank[r], round->tensor[i], job->store->steps_done);
        }
    }
}

/* The round has its update. A plain operation opens for the next one at once. */
static void delivered(struct round *round, enum round_event event)
{
    struct job *job = round->job;

    move(round, event, ROUND_DELIVERED);
    job->figures.counters.rounds++;
    round_drop_exchange(round);
    announce(round);
    if (round->op) {
        job->op.since_us = 0;
        round_close(round);
        round_open(round);
        round_try(round);
    } else {
        job->step.undelivered--;
    }
}

void round_open(struct round *round)
{
    move(round, ROUND_ON_OPEN, ROUND_COLLECT);
    if (!round->op) {
        round->job->step.undelivered++;
        (void)memset(round->pushes, 0, round->job->ranks * sizeof(*round->pushes));
    }
}

void round_recover(struct round *round)
{
    if (round_delivered(round)) {
        move(round, ROUND_ON_OPEN, ROUND_DELIVERED);
        announce(round);
    } else {
        round_open(round);
    }
}

void round_close(struct round *round)
{
    round_drop_parked(round, 0, round_number(round));
    move(round, ROUND_ON_CLOSE, ROUND_IDLE);
}

/* A bucket counts its pushes, so that it need not look at all its tensors at each push. */
static bool pushed_all(const struct round *round, unsigned rank)
{
    const struct job *job = round->job;

    return round->tensors > 1
               ? round->pushes[rank] == round->tensors
               : job->rank[rank]->pushed[round->tensor[0]] == round_number(round) + 1;
}

void round_push(struct round *round, unsigned rank)
{
    round->pushes[rank]++;
    if (round->pushes[rank] == round->tensors) {
        flight_rank(round->job->rank[rank], RECORD_PUSHED, round->bucket);
    }
    round_try(round);
}

static bool collected(const struct round *round)
{
    const struct job *job = round->job;
    uint64_t number = round_number(round);

    for (unsigned r = 0; r < job->ranks; r++) {
        const struct rank *rank = job->rank[r];
        bool ready = round->op ? rank->submitted == number + 1
                               : rank->ended == number + 1 || pushed_all(round, r);
        if (!ready) {
            return false;
        }
    }
    return true;
}

static uint64_t round_bytes(const struct round *round)
{
    const struct job *job = round->job;
    uint64_t bytes = round->op ? round->exchange_op.size * (uint64_t)job->ranks : 0;

    for (unsigned i = 0; i < round->tensors; i++) {
        bytes += job->tensor[round->tensor[i]].numel * (job->ranks + 2) * sizeof(float);
    }
    return bytes;
}

static void fail_memory(struct round *round)
{
    job_fail_with(
        round->job, ADTOPK_ERR_MEMORY, "no memory for a round of job '%s'", round->job->key.name);
}

static void round_computed(struct work *work);

/* Goes on to the next phase, or to the sum, if all frames of the phase are there. */
void round_advance(struct round *round)
{
    if (round->machine.state != ROUND_EXCHANGE || round_late_node(round) >= 0 ||
        !launch_advance(round)) {
        return;
    }
    measure_phase(round);
    round->phase++;
    if (round->phase < round->phases) {
        move(round, ROUND_ON_PHASE, ROUND_COMBINE);
        core_work(&round->work, &work_combine, round_computed, round_bytes(round));
    } else {
        move(round, ROUND_ON_PHASE, ROUND_REDUCE);
        core_work(&round->work, &work_reduce, round_computed, round_bytes(round));
    }
}

static void exchange_frames(struct round *round)
{
    if (round_send_frames(round) != ADTOPK_OK) {
        fail_memory(round);
        return;
    }
    frame_take_parked(round);
    round_advance(round);
}

/* After a split: tries each of the bucket's tensors alone. */
static void try_alone(const struct round *round)
{
    for (unsigned i = 0; i < round->tensors && !job_ended(round->job); i++) {
        round_try(&round->job->plan->round[round->job->plan->buckets + round->tensor[i]]);
    }
}

/* Whether the frames were computed for a view that is over, or for a bucket that is split now. */
static bool outdated(struct round *round)
{
    struct job *job = round->job;

    if (!round->op && !step_round_active(job, round)) {
        round_drop_exchange(round);
        move(round, ROUND_ON_COMPUTED, ROUND_IDLE);
        try_alone(round);
        return true;
    }
    if (job->machine.state != JOB_ACTIVE || job->view != round->view) {
        round_drop_exchange(round);
        job->figures.counters.rounds_retried++;
        move(round, ROUND_ON_COMPUTED, ROUND_COLLECT);
        round_try(round);
        return true;
    }
    return false;
}

static void round_computed(struct work *work)
{
    struct round *round = work->round;

    measure_computed(round);
    if (round->machine.state == ROUND_REDUCE) {
        if (round->op) {
            store_count_op(round->job->store, round->exchange_op.size);
        }
        delivered(round, ROUND_ON_COMPUTED);
        return;
    }
    if (outdated(round)) {
        return;
    }
    if (round->machine.state != ROUND_SELECT) {
        round_drop_inputs(round, round->phase - 1); /* the phase that the compute has used up */
    }
    move(round, ROUND_ON_COMPUTED, ROUND_EXCHANGE);
    exchange_frames(round);
}

/* True while a compute of the split bucket still works on this round's tensor. */
static bool busy(const struct round *round)
{
    const struct plan *plan = round->job->plan;
    unsigned state;

    if (round->tensors != 1) {
        return false;
    }
    state = plan->round[plan->tensor[round->tensor[0]].bucket].machine.state;
    return state == ROUND_SELECT || state == ROUND_COMBINE;
}

void round_try(struct round *round)
{
    struct job *job = round->job;

    if (round->op) {
        grow_try_op(job);
    }
    if (job->machine.state != JOB_ACTIVE || round->machine.state != ROUND_COLLECT || busy(round) ||
        (job->lending.running && !round->op) || !collected(round)) {
        return;
    }
    if (round->op && job->rank[0]->op_kind == OP_BROADCAST &&
        members_lost_rank(job, job->rank[0]->op_root)) {
        job_fail_with(job, ADTOPK_ERR_PEER,
            "rank %u, the root of a broadcast, was on a node that is lost", job->rank[0]->op_root);
        return;
    }
    if (round_begin_exchange(round) != ADTOPK_OK) {
        fail_memory(round);
        return;
    }
    move(round, ROUND_ON_COLLECTED, ROUND_SELECT);
    core_work(
        &round->work, round->op ? &work_combine : &work_select, round_computed, round_bytes(round));
}

void round_freeze(struct round *round)
{
    if (round->machine.state == ROUND_EXCHANGE || round->machine.state == ROUND_FETCH) {
        round_drop_exchange(round);
        round->job->figures.counters.rounds_retried++;
        move(round, ROUND_ON_FREEZE, ROUND_COLLECT);
    }
}

void round_fetch(struct round *round, uint16_t holder)
{
    if (round->machine.state == ROUND_COLLECT) {
        move(round, ROUND_ON_HELD, ROUND_FETCH);
        peer_send_fetch(round->job, holder, round_number(round), round->bucket, round->op);
    }
}

void round_copy(struct round *round, const struct buffer *frame)
{
    struct error error;

    if (round->machine.state != ROUND_FETCH) {
        round->job->core->bad_messages++;
        return;
    }
    if (copy_decode(round, frame, &error) != ADTOPK_OK) {
        job_fail(round->job, &error, true);
        return;
    }
    delivered(round, ROUND_ON_COPY);
}

void round_send_copy(const struct round *round, uint16_t node, uint64_t number)
{
    struct buffer *copy = copy_encode(round, number);

    if (copy == NULL) {
        job_fail_with(
            round->job, ADTOPK_ERR_MEMORY, "no memory for a copy of bucket %u", round->bucket);
        return;
    }
    core_send_frame(round, node, copy);
    buffer_unref(copy);
}

void round_split(struct round *round, uint64_t step)
{
    struct job *job = round->job;
    enum round_state state = (enum round_state)round->machine.state;

    if (round->bucket >= job->plan->buckets || round->tensors < 2 || round->split_step <= step ||
        step < step_number(job)) {
        return;
    }
    if (step == step_number(job) && state > ROUND_COMBINE) {
        return; /* complete on this node, so no rank waits for it */
    }
    round->split_step = step;
    job->plan->split = true;
    store_split(job->tensor[round->tensor[0]].store, job->store->policies, step);
    if (step != step_number(job) || state == ROUND_IDLE) {
        return;
    }
    if (state != ROUND_SELECT && state != ROUND_COMBINE) { /* otherwise the compute notices it */
        round_drop_exchange(round);
        move(round, ROUND_ON_SPLIT, ROUND_IDLE);
    }
    job->step.undelivered--;
    for (unsigned i = 0; i < round->tensors; i++) {
        round_open(&job->plan->round[job->plan->buckets + round->tensor[i]]);
    }
    try_alone(round);
}
