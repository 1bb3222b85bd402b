/*
 * Another process takes the place of a rank whose process ended (policy on_rank_loss "wait").
 *
 * The happy path: the process of a rank ends between two operations. The rank's place is *vacant*
 * from then on. What the process pushed in the open step counts, so its gradients stay. The step
 * waits for what it did not push. Other ranks and nodes only see that the rank is late, and the
 * view stays. Another process opens the job as the same rank, and says the number of the first step
 * that it pushes (event_open.first_step). It describes the same tensors and maps an arena: it is
 * the *successor*. When nothing computes, it takes the place, and hears which updates of the open
 * step are there. It pushes the whole step again. What counts already is not added twice.
 *
 * Its parameters may be older by one step than those of the others: its predecessor may have ended
 * before it could save them. While nothing is pushed in the open step, the results still have the
 * updates of the step before. So the successor repeats that step: it pushes, nothing is added, and
 * it gets the updates.
 *
 * What can go wrong:
 * - The successor does not fit: it has another step, other tensors, another policy, is of another
 *   user, or comes twice. It is told why, and the job goes on waiting.
 * - Others wait in an operation that its predecessor did not call, and the successor goes on to the
 *   step: it is refused. If they call it later, they and it wait for each other until push_timeout.
 *   The sentence then names the rank that did not call (core/waiting.c).
 * - No successor comes within `wait_limit` of the policy: the job ends (core/job_wait.c), or under
 *   "shrink" this node's part of it. If all ranks of all nodes ended, nobody waits, and the job
 *   ends as soon as the nodes have told each other so (core/waiting.c).
 * - The process ends within an operation, or while ranks commit more tensors, or on another
 *   machine: nobody else has what it would have to repeat. Then the job ends at once.
 * - Updates on a GPU went to the arena of its predecessor. The successor finds those in host memory
 *   only, as after a change of members.
 * - The daemon is killed while a place is vacant: the ranks that return wait for all of them. If it
 *   is stopped in order, the job ends (compute/leaving.c).
 */
#include "daemon/compute/successor.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/layout.h"
#include "daemon/compute/plan.h"
#include "daemon/compute/plan_life.h"
#include "daemon/compute/results.h"
#include "daemon/job/actions.h"
#include "daemon/job/id_table.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/members.h"
#include "daemon/job/notes.h"
#include "daemon/job/ranks.h"
#include "daemon/job/register.h"
#include "daemon/job/store.h"
#include "proto/utf8.h"

/* ------------------------------------------------------------------ a place becomes vacant */

/* Whether everything that the process would have to repeat is here. */
static bool successor_may_come(const struct rank *rank)
{
    const struct job *job = rank->job;

    return job->plan->policy.on_rank_loss == RANK_LOSS_WAIT &&
           job->core->stopping == CORE_GOES_ON && rank->machine.state == RANK_READY &&
           job->batches == 1 && job->registering.since_us == 0 && job->ending.leaving_us == 0 &&
           job->ending.last_steps == 0 && rank->client.here && rank->repeat.pushed == NULL &&
           rank->submitted <= job->store->ops_done;
}

bool successor_wait(struct rank *rank, const char *reason)
{
    struct job *job = rank->job;

    if (!successor_may_come(rank)) {
        return false;
    }
    id_table_remove(&job->core->ranks, rank->session);
    rank->vacancy.since_us = job->core->now_us;
    rank->repeat.step = 0;
    machine_fire(&rank->machine, RANK_ON_LOSS, RANK_VACANT);
    core_warn(job->core, "job '%s' waits in step %llu for rank %u, which ended: %.*s",
        job->key.name, (unsigned long long)step_number(job), rank->number, UTF8_FIT(160, reason));
    return true;
}

const struct rank *successor_vacant(const struct job *job)
{
    for (unsigned i = 0; i < job->ranks; i++) {
        if (job->rank[i]->machine.state == RANK_VACANT) {
            return job->rank[i];
        }
    }
    return NULL;
}

bool successor_all_ended(const struct job *job)
{
    for (unsigned i = 0; i < job->ranks; i++) {
        if (job->rank[i]->machine.state != RANK_VACANT || job->rank[i]->vacancy.successor != NULL) {
            return false;
        }
    }
    return true;
}

/* ------------------------------------------------------------------ opening */

static bool successor_is_vacant(const struct job *job, uint32_t number)
{
    const struct rank *rank = job != NULL ? job_rank(job, number) : NULL;

    return rank != NULL && rank->machine.state == RANK_VACANT;
}

bool successor_is_meant(const struct job *job, const struct event_open *open)
{
    return open->comes_back || successor_is_vacant(job, open->rank);
}

static enum adtopk_status successor_check_step(
    const struct rank *vacant, uint64_t step, struct error *err)
{
    const uint64_t open = step_number(vacant->job);

    if (step == open || (step + 1 == open && !rank_has_begun(vacant))) {
        return ADTOPK_OK;
    }
    return error_set(err, ADTOPK_ERR_LOST,
        "rank %u comes back to job '%s' with step %llu, but the others are in step %llu, and can "
        "repeat %s",
        vacant->number, vacant->job->key.name, (unsigned long long)step, (unsigned long long)open,
        open == 0 || rank_has_begun(vacant) ? "only that step" : "that step or the one before");
}

/* The policy in force may be another one by now. */
static enum adtopk_status successor_check_policy(
    const struct job *job, const struct event *event, struct error *err)
{
    struct plan *plan = plan_of_rank(job->core, event, err);
    bool same;

    if (plan == NULL) {
        return err->code;
    }
    same = plan_brought(plan) == job->history.brought;
    plan_free(plan);
    return same ? ADTOPK_OK
                : error_set(err, ADTOPK_ERR_MISMATCH,
                      "rank %u comes back to job '%s' with another policy than before",
                      event->open.rank, job->key.name);
}

static enum adtopk_status successor_check(
    const struct job *job, const struct event *event, struct error *err)
{
    const struct event_open *open = &event->open;
    const struct rank *vacant = job != NULL ? job_rank(job, open->rank) : NULL;

    if (!successor_is_vacant(job, open->rank)) {
        return error_set(err, ADTOPK_ERR_STATE,
            "rank %u comes back with step %llu, but no job '%s' waits for it on this node",
            open->rank, (unsigned long long)open->first_step, open->key.name);
    }
    if (!open->comes_back) {
        return error_set(err, ADTOPK_ERR_STATE,
            "rank %u of job '%s' ended in step %llu, and the others wait for it: a process that "
            "takes its place must say with which step it comes back",
            open->rank, job->key.name, (unsigned long long)step_number(job));
    }
    if (!open->here) {
        return error_set(err, ADTOPK_ERR_STATE,
            "rank %u of job '%s' can only come back on the machine of its daemon", open->rank,
            job->key.name);
    }
    if (open->world_size != job->run.world_size) {
        return error_set(err, ADTOPK_ERR_MISMATCH,
            "rank %u says the job '%s' has %u ranks, but it was opened with %u", open->rank,
            job->key.name, open->world_size, job->run.world_size);
    }
    if (vacant->vacancy.successor != NULL) {
        return error_set(err, ADTOPK_ERR_MISMATCH,
            "another process (pid %u) is about to come back as rank %u of job '%s'",
            vacant->vacancy.successor->client.pid, open->rank, job->key.name);
    }
    return successor_check_step(vacant, open->first_step, err) == ADTOPK_OK
               ? successor_check_policy(job, event, err)
               : err->code;
}

enum adtopk_status successor_open(
    struct core *core, struct job *job, const struct event *event, struct error *err)
{
    struct rank *rank;

    if (successor_check(job, event, err) != ADTOPK_OK) {
        return err->code;
    }
    rank = calloc(1, sizeof(*rank));
    if (rank == NULL || !id_table_add(&core->ranks, event->session, rank)) {
        free(rank);
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for rank %u", event->open.rank);
    }
    rank->session = event->session;
    rank->number = event->open.rank;
    rank->client = (struct rank_client){
        .pid = event->open.pid, .returns = event->open.returns, .here = true, .succeeded = true};
    rank->job = job;
    rank->succeeds = true;
    rank->first_step = event->open.first_step;
    machine_init(&rank->machine, &rank_machine, &core->trace, rank->number);
    job_rank(job, rank->number)->vacancy.successor = rank;
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ on its way */

static enum adtopk_status successor_commit(struct rank *rank, struct error *err)
{
    struct job *job = rank->job;
    const struct rank *vacant = job_rank(job, rank->number);
    const struct core_memory *memory = &job->core->config.memory;
    uint64_t size;

    if (rank->machine.state != RANK_OPEN) {
        return error_set(err, ADTOPK_ERR_STATE, "rank %u has committed already", rank->number);
    }
    if (rank->registered < job->tensors) {
        return register_disagree(rank, "is missing", job->tensor[rank->registered].spec.name, err);
    }
    if (rank->on_gpu != vacant->on_gpu || rank->shown_on_gpu != vacant->shown_on_gpu) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "rank %u comes back with its gradients or updates in other memory than before",
            rank->number);
    }
    rank->pushed = calloc(job->tensors, sizeof(*rank->pushed) + sizeof(*rank->waits));
    if (rank->pushed == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for rank %u", rank->number);
    }
    rank->waits = (bool *)(rank->pushed + job->tensors);
    if (layout_gradients_size(job, 0, rank, &size, err) == ADTOPK_OK) {
        rank->gradients[0] = memory->gradients(memory->context, rank->session, 0, size, err);
    }
    if (rank->gradients[0] == NULL) {
        free(rank->pushed);
        rank->pushed = NULL;
        return err->code;
    }
    rank->committed = 1;
    machine_fire(&rank->machine, RANK_ON_COMMIT, RANK_COMMITTED);
    return ADTOPK_OK;
}

static enum adtopk_status successor_mapped(struct rank *rank, struct error *err)
{
    if (rank->machine.state != RANK_COMMITTED) {
        return error_set(err, ADTOPK_ERR_STATE, "rank %u has no arena to map", rank->number);
    }
    rank->mapped = 1;
    machine_fire(&rank->machine, RANK_ON_MAPPED, RANK_MAPPED);
    return ADTOPK_OK;
}

/* It gives up, or its process has ended, too. */
static void successor_forget(struct rank *rank)
{
    job_rank(rank->job, rank->number)->vacancy.successor = NULL;
    machine_fire(&rank->machine, RANK_ON_LEAVE, RANK_LEFT);
    rank_release(rank);
    rank_free(rank);
}

enum adtopk_status successor_event(struct rank *rank, const struct event *event, struct error *err)
{
    switch (event->type) {
    case EVENT_RANK_REGISTER: return register_tensor(rank, event->spec, err);
    case EVENT_RANK_COMMIT: return successor_commit(rank, err);
    case EVENT_RANK_MAPPED: return successor_mapped(rank, err);
    case EVENT_RANK_LEAVE:
        core_act(
            rank->job->core, &(struct action){.type = ACTION_CLOSED, .session = rank->session});
        successor_forget(rank);
        return ADTOPK_OK;
    case EVENT_RANK_LOST: successor_forget(rank); return ADTOPK_OK;
    default:
        return error_set(err, ADTOPK_ERR_STATE,
            "rank %u may not do this before its commit is "
            "complete",
            rank->number);
    }
}

/* ------------------------------------------------------------------ taking the place */

static void successor_point(const struct rank *rank)
{
    const struct job *job = rank->job;
    const uint8_t **gradients = job->layout.arenas.gradients;

    gradients[rank->index] = rank->gradients[0];
    gradients[CORE_MAX_BATCHES * job->ranks + rank->index] = rank->repeat.gradients;
}

/* What its predecessor pushed in the open step counts. False: there is no memory to note that. */
static bool successor_inherit(struct rank *rank, struct rank *vacant)
{
    const uint64_t open = step_number(rank->job) + 1;

    rank->repeat.pushed = calloc(rank->job->tensors, sizeof(*rank->repeat.pushed));
    if (rank->repeat.pushed == NULL) {
        return false;
    }
    for (uint32_t t = 0; t < rank->job->tensors; t++) {
        rank->pushed[t] = vacant->pushed[t];
        rank->repeat.pushed[t] = vacant->pushed[t] == open;
    }
    rank->repeat.step = open;
    rank->repeat.session = vacant->session;
    rank->repeat.gradients = vacant->gradients[0];
    return true;
}

/* It hears of the updates that are there, as ranks do that return to another daemon. */
static void successor_catch_up(const struct rank *rank)
{
    const struct job *job = rank->job;
    const bool closed = rank->first_step < step_number(job);

    for (uint32_t t = 0; t < job->tensors; t++) {
        if (closed || round_delivered(step_round(rank->job, t))) {
            results_tell(rank, t, rank->first_step);
        }
    }
}

static void successor_take_place(struct rank *rank, struct rank *vacant)
{
    struct job *job = rank->job;

    rank->index = vacant->index;
    rank->place = vacant->place;
    rank->submitted = vacant->submitted;
    rank->ended = vacant->ended;
    vacant->vacancy.successor = NULL;
    if (rank->repeat.session == 0) {
        rank_release(vacant);
    }
    job->rank[rank->index] = rank;
    rank_free(vacant);
    successor_point(rank);
    rank_make_ready(rank);
    successor_catch_up(rank);
    rank->succeeds = false;
    core_warn(job->core, "job '%s': rank %u is back, in step %llu", job->key.name, rank->number,
        (unsigned long long)rank->first_step);
}

/* Room for what it hears beside what others do: that its place is ready, and every update. */
static bool successor_has_room(const struct job *job)
{
    struct core *core = job->core;
    struct error unused;

    return core_reserve_actions(core, core->queue_count + job->tensors + 1, &unused) == ADTOPK_OK;
}

/* If its predecessor ended the open step, it comes with the next one. */
static bool successor_try(struct rank *vacant)
{
    struct rank *rank = vacant->vacancy.successor;
    const uint64_t open = step_number(vacant->job);

    if (rank == NULL || rank->machine.state != RANK_MAPPED || vacant->ended == open + 1 ||
        !successor_has_room(vacant->job)) {
        return false;
    }
    if (rank->first_step < open) {
        rank->repeat.step = open;
    } else if (rank_has_begun(vacant) && !successor_inherit(rank, vacant)) {
        return false;
    }
    successor_take_place(rank, vacant);
    return true;
}

/* Gives back the arena of a process that ended, as soon as nothing needs it. */
static void successor_tidy(struct rank *rank)
{
    const struct core_memory *memory = &rank->job->core->config.memory;
    struct repeat *repeat = &rank->repeat;

    if (repeat->pushed != NULL && repeat->step <= step_number(rank->job)) {
        memory->release_session(memory->context, repeat->session);
        free(repeat->pushed);
        *repeat = (struct repeat){.step = 0};
        successor_point(rank);
    }
    if (rank->machine.state == RANK_VACANT && rank->gradients[0] != NULL && !rank_has_begun(rank)) {
        memory->release_session(memory->context, rank->session);
        rank->gradients[0] = NULL;
        successor_point(rank);
    }
}

bool successor_advance(struct job *job)
{
    for (unsigned r = 0; job->view != 0 && job->advance.computing == 0 && r < job->ranks; r++) {
        successor_tidy(job->rank[r]);
        if (job->machine.state == JOB_ACTIVE && job->rank[r]->machine.state == RANK_VACANT &&
            successor_try(job->rank[r])) {
            return true;
        }
    }
    return false;
}

/* ------------------------------------------------------------------ the operation that is due */

static bool successor_is_called(const struct job *job, const struct member *member)
{
    return member->told.outside && member->told.number == job->store->ops_done;
}

static bool successor_is_called_here(const struct job *job)
{
    bool called = false;

    for (unsigned i = 0; i < job->ranks; i++) {
        called = called || job->rank[i]->submitted > job->store->ops_done;
    }
    return called;
}

/* Whether ranks that have pushed nothing wait in an operation that this one has not called. Ranks
 * may also call one in the middle of a step, and then this one pushes first, as they did. */
static bool successor_owes_call(const struct rank *rank)
{
    const struct job *job = rank->job;

    return rank->submitted <= job->store->ops_done && job->step.since_us == 0 &&
           (successor_is_called_here(job) || members_first(job, successor_is_called) != NULL);
}

enum adtopk_status successor_check_call(
    const struct rank *rank, const char *what, struct error *err)
{
    const uint64_t step = step_number(rank->job);

    return rank->client.succeeded && step <= rank->first_step + 1 && successor_owes_call(rank)
               ? error_set(err, ADTOPK_ERR_STATE,
                     "rank %u may not %s in step %llu: others wait in operation %llu, which the "
                     "process before it did not call",
                     rank->number, what, (unsigned long long)step,
                     (unsigned long long)rank->job->store->ops_done)
               : ADTOPK_OK;
}

/* ------------------------------------------------------------------ the step that is repeated */

bool successor_repeats(struct rank *rank, const struct event *event)
{
    struct job *job = rank->job;
    const struct repeat *repeat = &rank->repeat;
    const bool closed = repeat->pushed == NULL;

    if (repeat->step == 0 || event->step.number + 1 != repeat->step) {
        return false;
    }
    switch (event->type) {
    case EVENT_RANK_PUSH:
        return event->step.tensor < job->tensors && (closed || repeat->pushed[event->step.tensor]);
    case EVENT_RANK_WAIT: return closed;
    case EVENT_RANK_STEP_END:
        if (closed) {
            core_act(job->core, &(struct action){.type = ACTION_STEP,
                                    .session = rank->session,
                                    .number = event->step.number,
                                    .members = members_taking_part(rank, event->step.number + 1),
                                    .status = store_step_status(job->store)});
            rank->repeat.step = 0;
        }
        return closed;
    default: return false;
    }
}
