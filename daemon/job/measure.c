/*
 * Measures a job while it trains: when gradients arrive, and the time of computes, exchanges and
 * steps. The planner's estimates (estimate.h) are made from these figures.
 *
 * The happy path: a push notes its time. A round adds up the times of its computes and its
 * exchange, and hands them over when its update is there. When the step is accepted, the arrivals
 * and the step's own time follow. Measuring allocates no memory, and no result depends on it.
 *
 * Some things do not count: computes whose time the driver does not tell, and steps in which a view
 * changed, that were withdrawn, or that waited for a switch of the policy. Without memory, or if
 * nothing is "auto", there are no measurements.
 */
#include "daemon/job/measure.h"

#include <stdlib.h>

#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/plan_query.h"

#define PACE_STEPS 64u /* over which a rank's pace is averaged */

/* Whether the policy leaves anything to the planner. */
static bool is_automatic(const struct plan *plan)
{
    bool automatic = plan->policy.bucket_bytes == 0;

    for (uint32_t t = 0; !automatic && t < plan->tensors; t++) {
        uint32_t allowed = plan->tensor[t].allowed;
        automatic = (allowed & (allowed - 1)) != 0;
    }
    return automatic;
}

/* ------------------------------------------------------------------ life */

void measure_end(struct job *job)
{
    struct measure *measure = job->figures.measure;

    if (measure == NULL) {
        return;
    }
    estimate_free(&measure->own);
    free(measure->pushed_us);
    free(measure);
    job->figures.measure = NULL;
}

/* Whether the estimates fit into a message: otherwise they could not be sent to the coordinator. */
static bool fits(const struct job *job)
{
    return estimate_packed_size(job->tensors) + 256 <= job->core->config.links.max_control_message;
}

static void create(struct job *job)
{
    struct measure *measure = fits(job) ? calloc(1, sizeof(*measure)) : NULL;
    bool all;

    job->figures.measure = measure;
    if (measure == NULL) {
        return;
    }
    measure->pushed_us = calloc(job->tensors, sizeof(*measure->pushed_us));
    measure->closed_step = step_number(job);
    all = estimate_init(&measure->own, job->tensors, job->in_force.nodes);
    if (!all || measure->pushed_us == NULL) {
        measure_end(job);
    }
}

void measure_begin(struct job *job)
{
    if (!is_automatic(job->plan)) {
        measure_end(job);
        return;
    }
    if (job->figures.measure == NULL) {
        create(job);
    }
    if (job->figures.measure != NULL) {
        estimate_plan(&job->figures.measure->own, job->plan->change.version);
    }
}

/* ------------------------------------------------------------------ rounds */

void measure_push(struct rank *rank, uint32_t tensor)
{
    struct job *job = rank->job;

    rank->pace.pushed_us = job->core->now_us;
    if (job->figures.measure != NULL) {
        job->figures.measure->pushed_us[tensor] = job->core->now_us;
        if (job->step.machine.state != STEP_OPEN) {
            job->figures.measure->held_step = step_number(job) + 1;
        }
    }
}

/* How much of a bucket's frames is of this tensor. */
static double measure_weight(const struct job *job, uint32_t t)
{
    const struct plan_tensor *planned = &job->plan->tensor[t];
    const bool all = planned->dense || planned->count == 0;

    return (double)(all ? job->tensor[t].numel : planned->count);
}

/* Frames do not tell how many of their bytes are a tensor's. So the tensors of a bucket share them
 * by the entries that they send; together they get every byte. */
static void measure_share(struct round *round)
{
    const struct job *job = round->job;
    const double sent = (double)round->times.sent, received = (double)round->times.received;
    double all = 0, before = 0;

    if (round->op || sent + received == 0) {
        return;
    }
    for (unsigned i = 0; i < round->tensors; i++) {
        all += measure_weight(job, round->tensor[i]);
    }
    for (unsigned i = 0; all > 0 && i < round->tensors; i++) {
        struct tensor *tensor = &job->tensor[round->tensor[i]];
        const double after = before + measure_weight(job, round->tensor[i]);

        tensor->bytes.sent += (uint64_t)(sent * after / all) - (uint64_t)(sent * before / all);
        tensor->bytes.received +=
            (uint64_t)(received * after / all) - (uint64_t)(received * before / all);
        before = after;
    }
    round->times.sent = round->times.received = 0;
}

/* Frames of an exchange that did not come to its end were sent as well. */
void measure_round_begins(struct round *round)
{
    measure_share(round);
    round->times = (struct round_times){.compute_us = 0};
}

void measure_sent(struct round *round, uint64_t bytes)
{
    round->times.sent += bytes;
}

void measure_received(struct round *round, uint64_t bytes)
{
    round->times.received += bytes;
    if (round->machine.state == ROUND_EXCHANGE && round->job->core->now_us > round->since_us) {
        round->times.awaited += bytes;
    }
}

static uint64_t round_trip_us(const struct job *job)
{
    struct link_stats stats;
    uint64_t longest = 0;

    for (unsigned i = 0; i < job->in_force.nodes; i++) {
        if (links_stats(job->core->links, job->in_force.node[i], &stats)) {
            longest = stats.round_trip_us > longest ? stats.round_trip_us : longest;
        }
    }
    return longest;
}

/* The link worked for this round since the phase began, or since it finished another round's. */
void measure_phase(struct round *round)
{
    struct measure *measure = round->job->figures.measure;
    uint64_t now = round->job->core->now_us, from = round->since_us;

    if (measure != NULL && !round->op) {
        from = measure->link_us > from ? measure->link_us : from;
        round->times.link_us += now - from;
        measure->link_us = now;
    }
}

/* The load of a bucket: its tensors are alike, so it has one choice. */
struct load {
    enum choice choice;
    uint64_t elements, entries, summed;
    double saved;   /* as in struct cost_load */
    bool whole_sum; /* `summed` is the sum of everything that was sent */
};

static struct load load_of(const struct round *round)
{
    const struct plan *plan = round->job->plan;
    const struct plan_tensor *first = &plan->tensor[round->tensor[0]];
    struct load load = {.choice = first->choice,
        .whole_sum = !first->dense && !first->known &&
                     first->policy.sparse_collective->traits.picks != PICKS_ENTRIES &&
                     !plan_is_whole(first)};

    for (unsigned i = 0; i < round->tensors; i++) {
        const struct plan_tensor *planned = &plan->tensor[round->tensor[i]];
        load.elements += round->job->tensor[round->tensor[i]].numel;
        load.entries += planned->dense ? 0 : planned->sent.count;
        load.summed += planned->summed;
    }
    load.saved = (double)load.entries * cost_saved(first->policy.values);
    return load;
}

/* A far engine carries out one batch at a time. */
unsigned measure_threads(const struct job *job)
{
    if (!engine_is_near(plan_engine(job))) {
        return 1;
    }
    unsigned threads = parallel_threads(&job->core->config.parallel);

    return threads > 1 ? threads - 1 : 1; /* the loop's own thread runs only small computes */
}

static void tell_exchange(struct round *round, const struct load *load)
{
    struct measure *measure = round->job->figures.measure;
    const struct round_times *times = &round->times;
    uint64_t bytes = times->sent > times->received ? times->sent : times->received;

    if (times->awaited > 0) {
        estimate_link(&measure->own, times->awaited, (double)times->link_us,
            (double)round_trip_us(round->job));
    }
    if (bytes > 0) {
        estimate_exchange(&measure->own, load->choice,
            (struct cost_load){load->elements, load->entries, load->saved}, bytes,
            (double)times->link_us);
    }
}

static void tell_reduced(struct round *round)
{
    struct measure *measure = round->job->figures.measure;
    struct load load = load_of(round);

    if (!round->times.unknown) {
        estimate_reduce(&measure->own, load.choice, load.elements, load.entries,
            measure_threads(round->job), (double)round->times.compute_us);
    }
    if (load.whole_sum) {
        estimate_gamma(&measure->own, load.summed, load.entries);
    }
    tell_exchange(round, &load);
}

static void measure_took(struct round *round)
{
    struct measure *measure = round->job->figures.measure;
    uint64_t took_us = round->work.compute.took_us;

    if (round->machine.state == ROUND_SELECT && took_us > 0) {
        struct load load = load_of(round);
        estimate_select(&measure->own, load.choice, load.elements, load.entries,
            measure_threads(round->job), (double)took_us);
    } else if (round->machine.state != ROUND_SELECT) {
        round->times.compute_us += took_us;
        round->times.unknown |= took_us == 0;
    }
    if (round->machine.state == ROUND_REDUCE) {
        tell_reduced(round);
    }
}

void measure_computed(struct round *round)
{
    if (round->job->figures.measure != NULL && !round->op) {
        measure_took(round);
    }
    if (round->machine.state == ROUND_REDUCE) {
        measure_share(round);
        for (unsigned i = 0; !round->op && i < round->job->ranks; i++) {
            round->job->rank[i]->pace.ready_us = round->job->core->now_us;
        }
    }
}

/* ------------------------------------------------------------------ steps */

static void count_pace(struct pace *pace)
{
    pace->steps++;
    pace->last_us = pace->pushed_us - pace->from_us;
    pace->mean_us += ((double)pace->last_us - pace->mean_us) /
                     (double)(pace->steps < PACE_STEPS ? pace->steps : PACE_STEPS);
}

/* Nodes have clocks of their own, and get a step's last update at about the same moment. So paces
 * of ranks on different nodes can be compared. A node closes a step only when its own ranks have
 * ended it, which may be much later. */
static void tell_paces(struct job *job)
{
    const bool counts = job->step.machine.state != STEP_WITHDRAW;

    for (unsigned i = 0; i < job->ranks; i++) {
        struct pace *pace = &job->rank[i]->pace;
        if (counts && pace->pushed_us != 0 && pace->from_us != 0) {
            count_pace(pace);
        }
        pace->from_us = pace->ready_us != 0 ? pace->ready_us : job->core->now_us;
        pace->pushed_us = pace->ready_us = 0;
    }
}

static void tell_arrivals(const struct job *job)
{
    struct measure *measure = job->figures.measure;

    for (uint32_t t = 0; t < job->tensors; t++) {
        if (measure->pushed_us[t] >= job->step.since_us) { /* perhaps no rank pushed it */
            estimate_arrival(
                &measure->own, t, (double)(measure->pushed_us[t] - job->step.since_us));
        }
    }
}

static void tell_settled(const struct job *job)
{
    uint64_t dense = 0, entries = 0;

    for (uint32_t t = 0; t < job->tensors; t++) {
        const struct plan_tensor *planned = &job->plan->tensor[t];
        dense += planned->dense ? job->tensor[t].numel : 0;
        entries += planned->dense ? 0 : planned->sent.count;
    }
    estimate_settle(
        &job->figures.measure->own, dense, entries, (double)job->step.settle.compute.took_us);
}

void measure_step(struct job *job)
{
    struct measure *measure = job->figures.measure;
    bool disturbed;

    tell_paces(job);
    if (measure == NULL) {
        return;
    }
    disturbed = job->step.machine.state == STEP_WITHDRAW || measure->retried_view != job->view ||
                measure->held_step == step_number(job) + 1;
    measure->retried_view = job->view;
    if (disturbed) {
        return;
    }
    tell_arrivals(job);
    if (job->step.settle.compute.took_us > 0) {
        tell_settled(job);
    }
    estimate_step(&measure->own, (double)(job->core->now_us - job->step.since_us));
}

void measure_phase_time(struct job *job, enum phase phase, uint64_t us)
{
    unsigned bucket = 0;

    while (bucket + 1 < PHASE_BUCKETS && us > UINT64_C(1) << bucket) {
        bucket++;
    }
    job->figures.counters.phases.us[phase] += us;
    job->figures.counters.phases.counts[phase][bucket]++;
}

/* ------------------------------------------------------------------ looking */

void measure_tell(const struct job *job, struct plan_info *info)
{
    const struct measure *measure = job->figures.measure;

    if (measure == NULL) {
        return;
    }
    info->automatic = true;
    info->why = measure->why;
    info->decisions = measure->decisions;
    info->proposals = measure->proposals;
    info->steps = measure->own.steps.count;
    info->step_us = measure->own.steps.median_us;
    info->gamma = measure->own.gamma;
    info->link_us_byte = measure->own.link_us_byte;
    info->round_trip_us = measure->own.round_trip_us;
    info->predicted_us =
        measure->predicted_for == job->plan->change.version ? measure->predicted_us : 0;
}
