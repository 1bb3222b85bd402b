/*
 * Requests of the local ranks.
 *
 * The happy path: open, register each tensor, commit (the arena is made), mapped. Once the job's
 * view is in force: ready. Then push, step_end and plain operations, step after step; leave.
 *
 * A refused request changes nothing and concerns only the rank itself. A rank that is lost, or
 * leaves within a step, ends the job, because the others wait for gradients that will never come.
 */
#include "daemon/core/rank.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/compute/keeping.h"
#include "daemon/compute/layout.h"
#include "daemon/compute/plan.h"
#include "daemon/compute/plan_life.h"
#include "daemon/compute/reading.h"
#include "daemon/compute/successor.h"
#include "daemon/core/agree/batch.h"
#include "daemon/core/agree/join.h"
#include "daemon/core/job.h"
#include "daemon/core/round.h"
#include "daemon/core/split.h"
#include "daemon/core/step.h"
#include "daemon/job/actions.h"
#include "daemon/job/flight.h"
#include "daemon/job/former.h"
#include "daemon/job/id_table.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_index.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/measure.h"
#include "daemon/job/members.h"
#include "daemon/job/ranks.h"
#include "daemon/job/register.h"
#include "proto/loss_scale.h"
#include "proto/utf8.h"

struct rank *rank_find(const struct core *core, session_id session)
{
    struct rank *rank = id_table_find(&core->ranks, session);

    return rank != NULL && !job_ended(rank->job) ? rank : NULL;
}

static enum adtopk_status check_open(
    const struct job *job, const struct event *event, struct error *err)
{
    const struct rank *taken = job_rank(job, event->open.rank);

    if (job->run.world_size != event->open.world_size) {
        return error_set(err, ADTOPK_ERR_MISMATCH,
            "rank %u says the job '%s' has %u ranks, but it was opened with %u", event->open.rank,
            job->key.name, event->open.world_size, job->run.world_size);
    }
    if (taken != NULL && event->open.run != 0 && event->open.run == job->run.id) {
        return error_set(err, ADTOPK_ERR_LOST,
            "rank %u is gone: it has lost its connection, and with it this run of job '%s'",
            event->open.rank, job->key.name); /* the daemon is about to notice */
    }
    if (taken != NULL) {
        return error_set(err, ADTOPK_ERR_MISMATCH, "rank %u of job '%s' is taken on this node",
            event->open.rank, job->key.name);
    }
    if (job->machine.state != JOB_FORMING || job->store != NULL) {
        return error_set(err, ADTOPK_ERR_STATE,
            "job '%s' is running already, with all of its ranks; rank %u came too late",
            job->key.name, event->open.rank);
    }
    if (job->ranks > 0 && event->open.run != job->run.id) {
        return error_set(err, ADTOPK_ERR_MISMATCH,
            "rank %u of job '%s' is of another run than the ranks before it on this node",
            event->open.rank, job->key.name);
    }
    return ADTOPK_OK;
}

static enum adtopk_status check_policy(
    const struct job *job, const struct event *event, struct error *err)
{
    struct plan *plan = plan_of_rank(job->core, event, err);
    bool same = plan != NULL && strcmp(plan->text, job->plan->text) == 0;

    if (plan == NULL) {
        return err->code;
    }
    plan_free(plan);
    return same ? ADTOPK_OK
                : error_set(err, ADTOPK_ERR_MISMATCH,
                      "rank %u of job '%s' asks for another policy than the ranks before it",
                      event->open.rank, job->key.name);
}

/* Inserts a rank. Their ascending order is the order in which gradients are added. */
static enum adtopk_status insert_rank(struct job *job, struct rank *rank)
{
    struct rank **grown = realloc(job->rank, (job->ranks + 1) * sizeof(struct rank *));
    unsigned at = job->ranks;

    if (grown == NULL) {
        return ADTOPK_ERR_MEMORY;
    }
    job->rank = grown;
    while (at > 0 && grown[at - 1]->number > rank->number) {
        grown[at] = grown[at - 1];
        at--;
    }
    grown[at] = rank;
    job->ranks++;
    return ADTOPK_OK;
}

static enum adtopk_status rank_add(struct job *job, const struct event *event, struct error *err)
{
    struct core *core = job->core;
    struct rank *rank = calloc(1, sizeof(*rank));

    if (rank != NULL) {
        rank->session = event->session;
        rank->number = event->open.rank;
        rank->client = (struct rank_client){
            .pid = event->open.pid, .returns = event->open.returns, .here = event->open.here};
        rank->brings = event->open.batches;
        rank->job = job;
        machine_init(&rank->machine, &rank_machine, &core->trace, rank->number);
    }
    if (rank == NULL || core_reserve_actions(core, actions_of_rank(job), err) != ADTOPK_OK ||
        !id_table_add(&core->ranks, rank->session, rank) || insert_rank(job, rank) != ADTOPK_OK) {
        if (rank != NULL) {
            rank_free(rank);
        }
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for rank %u", event->open.rank);
    }
    job->run.id = event->open.run != 0 ? event->open.run : job->run.id;
    job_note_run(job);
    return ADTOPK_OK;
}

static enum adtopk_status open_rank(struct core *core, const struct event *event, struct error *err)
{
    struct job *job = job_find(core, &event->open.key);
    const bool over = job != NULL && job_is_left(job); /* other nodes may need it a little longer */
    enum adtopk_status status;

    if (event->open.world_size == 0 || event->open.world_size > CORE_MAX_WORLD ||
        event->open.rank >= event->open.world_size) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "rank %u of %u is not possible (at most %u)",
            event->open.rank, event->open.world_size, CORE_MAX_WORLD);
    }
    if (core->stopping == CORE_STOPS || (core->stopping == CORE_LEAVES && event->open.run == 0)) {
        return error_set(
            err, ADTOPK_ERR_STATE, "node %u: its daemon is stopping", core->config.node);
    }
    if (former_check_return(core, event, err) != ADTOPK_OK) {
        return err->code;
    }
    if (successor_is_meant(job, &event->open)) {
        return successor_open(core, job, event, err);
    }
    if (over) {
        job_tell_leave(job); /* before other nodes hear of the next job */
    }
    if (job == NULL || over) {
        job = job_create(core, event, err);
        if (job == NULL) {
            return err->code;
        }
    }
    status = check_open(job, event, err);
    if (status == ADTOPK_OK) {
        status = check_policy(job, event, err);
    }
    if (status == ADTOPK_OK) {
        status = rank_add(job, event, err);
    }
    if (status != ADTOPK_OK && job->ranks == 0) {
        job_end(job); /* it was created for this rank */
    }
    return status;
}

static enum adtopk_status check_commit(struct rank *rank, struct error *err)
{
    const struct job *job = rank->job;
    const bool first = rank->machine.state == RANK_OPEN;

    if (!first && (rank->machine.state != RANK_READY || rank->committed != rank->ready)) {
        return error_set(err, ADTOPK_ERR_STATE, "rank %u has committed already", rank->number);
    }
    if (rank->registered == register_first(job, rank->committed)) {
        return error_set(err, ADTOPK_ERR_STATE, "rank %u registered no tensor%s", rank->number,
            first ? "" : " since its last commit");
    }
    if (!first && (rank_has_begun(rank) || rank->submitted == job->store->ops_done + 1)) {
        return error_set(err, ADTOPK_ERR_STATE,
            "rank %u can commit more tensors only between two steps, and step %llu has begun",
            rank->number, (unsigned long long)step_number(job));
    }
    return ADTOPK_OK;
}

/* A rank that left pushes and commits nothing any more, so the others would wait for it in vain. */
static enum adtopk_status check_left(
    struct job *job, const char *before, uint64_t number, struct error *err)
{
    for (unsigned i = 0; i < job->ranks; i++) {
        if (job->rank[i]->machine.state == RANK_LEFT) {
            (void)error_set(err, ADTOPK_ERR_PEER, "rank %u left the job before %s %llu",
                job->rank[i]->number, before, (unsigned long long)number);
            job_fail(job, err, true);
            return ADTOPK_ERR_PEER;
        }
    }
    for (unsigned i = 0; i < job->members; i++) {
        if (job->member[i]->left && job->member[i]->left_step <= step_number(job)) {
            job_fail_left(job, job->member[i]->node, before, number, err);
            return ADTOPK_ERR_PEER;
        }
    }
    return ADTOPK_OK;
}

/* The rank's arena for the batch, and room to note its pushes. */
static enum adtopk_status open_arena(struct rank *rank, struct error *err)
{
    struct job *job = rank->job;
    const struct core_memory *memory = &job->core->config.memory;
    const uint8_t **arena = &rank->gradients[rank->committed];
    const uint32_t count = register_count(job);
    uint64_t *pushed = calloc(count, sizeof(*pushed) + sizeof(*rank->waits)); /* waits behind it */
    uint64_t size;

    if (pushed == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for rank %u", rank->number);
    }
    if (layout_gradients(job, rank->committed, rank, &size, err) != ADTOPK_OK ||
        (*arena = memory->gradients(memory->context, rank->session, rank->committed, size, err)) ==
            NULL) {
        free(pushed);
        return err->code;
    }
    free(rank->next_pushed);
    rank->next_pushed = pushed;
    rank->next_waits = (bool *)(pushed + count);
    return ADTOPK_OK;
}

/* Commits the first batch of a job's tensors or, between two steps, another one. */
static enum adtopk_status commit(struct rank *rank, struct error *err)
{
    struct job *job = rank->job;

    if (check_commit(rank, err) != ADTOPK_OK ||
        (rank->machine.state == RANK_READY &&
            check_left(job, "step", step_number(job), err) != ADTOPK_OK)) {
        return err->code;
    }
    if (rank->registered < register_end(job, rank->committed)) {
        return register_disagree(rank, "is registered on only one of them",
            register_at(job, rank->registered)->spec.name, err);
    }
    if (core_reserve_actions(job->core, 0, err) != ADTOPK_OK ||
        open_arena(rank, err) != ADTOPK_OK) {
        return err->code;
    }
    register_fix(job, rank->committed++);
    if (job->view == 0) {
        rank_take_pushed(rank);
    } else {
        job_note_since(job, &job->registering.since_us);
    }
    machine_fire(&rank->machine, RANK_ON_COMMIT,
        rank->machine.state == RANK_OPEN ? RANK_COMMITTED : RANK_READY);
    return ADTOPK_OK;
}

static enum adtopk_status mapped(struct rank *rank, struct error *err)
{
    if (rank->machine.state != RANK_COMMITTED &&
        (rank->machine.state != RANK_READY || rank->mapped == rank->committed)) {
        return error_set(err, ADTOPK_ERR_STATE, "rank %u has no arena to map", rank->number);
    }
    rank->mapped++;
    machine_fire(&rank->machine, RANK_ON_MAPPED,
        rank->machine.state == RANK_READY ? RANK_READY
        : rank->mapped < rank->brings     ? RANK_OPEN
                                          : RANK_MAPPED);
    if (rank->machine.state != RANK_OPEN &&
        (rank->job->view == 0 || batch_mapped(rank->job) > rank->job->batches)) {
        join_announce(rank->job);
    }
    return ADTOPK_OK;
}

/* Checks a request that is possible only in a running job. */
static enum adtopk_status check_running(
    const struct rank *rank, const char *what, struct error *err)
{
    if (rank->machine.state != RANK_READY || rank->committed != rank->ready) {
        return error_set(err, ADTOPK_ERR_STATE, "rank %u may not %s before its commit is complete",
            rank->number, what);
    }
    return ADTOPK_OK;
}

static enum adtopk_status check_step(
    const struct rank *rank, uint64_t step, const char *what, struct error *err)
{
    uint64_t open = step_number(rank->job);

    if (check_running(rank, what, err) != ADTOPK_OK ||
        keeping_check_push(rank, what, err) != ADTOPK_OK ||
        successor_check_call(rank, what, err) != ADTOPK_OK) {
        return ADTOPK_ERR_STATE;
    }
    /* While a step is held (idle) for a switch of the policy, it is open to its ranks. */
    if (step != open || rank->job->step.machine.state > STEP_OPEN) {
        return error_set(err, ADTOPK_ERR_STATE, "rank %u may not %s in step %llu: step %llu is %s",
            rank->number, what, (unsigned long long)step, (unsigned long long)open,
            rank->job->step.machine.state > STEP_OPEN ? "being closed" : "open");
    }
    if (rank->ended == step + 1) {
        return error_set(err, ADTOPK_ERR_STATE, "rank %u has ended step %llu already", rank->number,
            (unsigned long long)step);
    }
    return ADTOPK_OK;
}

static enum adtopk_status check_tensor(const struct rank *rank, uint32_t tensor, struct error *err)
{
    if (tensor >= rank->job->tensors) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "rank %u names tensor %u, but there are %u",
            rank->number, tensor, rank->job->tensors);
    }
    return ADTOPK_OK;
}

static enum adtopk_status check_scale(
    const struct rank *rank, uint32_t tensor, float scale, struct error *err)
{
    return loss_scale_is_valid(scale)
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_ARGUMENT,
                     "rank %u pushed tensor '%s' with the loss scale %g; it must be from 2^-126 to "
                     "2^126",
                     rank->number, rank->job->tensor[tensor].spec.name, (double)scale);
}

/* Checks a value that is for reports alone: no result depends on it. */
static enum adtopk_status check_lookahead(
    const struct rank *rank, uint32_t tensor, float lookahead, struct error *err)
{
    return lookahead >= 0 && lookahead <= 1
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_ARGUMENT,
                     "rank %u pushed tensor '%s' and looked ahead by %g; it must be from 0 to 1",
                     rank->number, rank->job->tensor[tensor].spec.name, (double)lookahead);
}

/* A step has one loss scale: residuals are in units without it, an update has one unit. */
static enum adtopk_status agree_on_scale(
    const struct rank *rank, uint32_t tensor, float scale, struct error *err)
{
    struct job *job = rank->job;
    struct step *open = &job->step;

    if (open->loss_scale != 0 && open->loss_scale != scale) {
        (void)error_set(err, ADTOPK_ERR_MISMATCH,
            "loss scales differ in step %llu: rank %u pushed tensor '%s' with %.9g, rank %u an "
            "earlier one with %.9g",
            (unsigned long long)step_number(job), rank->number, job->tensor[tensor].spec.name,
            (double)scale, open->loss_rank, (double)open->loss_scale);
        job_fail(job, err, true);
        return ADTOPK_ERR_MISMATCH;
    }
    if (open->loss_scale == 0) {
        open->loss_scale = scale;
        open->loss_rank = rank->number;
    }
    return ADTOPK_OK;
}

static enum adtopk_status push(struct rank *rank, const struct event *event, struct error *err)
{
    struct job *job = rank->job;
    const uint32_t tensor = event->step.tensor;
    const uint64_t step = event->step.number;
    const float scale = loss_scale_factor(event->step.scale);

    if (check_tensor(rank, tensor, err) != ADTOPK_OK ||
        check_step(rank, step, "push", err) != ADTOPK_OK ||
        check_scale(rank, tensor, scale, err) != ADTOPK_OK ||
        check_lookahead(rank, tensor, event->step.lookahead, err) != ADTOPK_OK) {
        return err->code;
    }
    if (members_await_broadcast(rank)) {
        return error_set(err, ADTOPK_ERR_STATE,
            "rank %u must broadcast the parameters first: other ranks take part from step %llu on, "
            "in which it pushed tensor '%s'",
            rank->number, (unsigned long long)step, job->tensor[tensor].spec.name);
    }
    if (rank->pushed[tensor] == step + 1) {
        return error_set(err, ADTOPK_ERR_STATE, "rank %u pushed tensor '%s' twice in step %llu",
            rank->number, job->tensor[tensor].spec.name, (unsigned long long)step);
    }
    if (check_left(job, "step", step_number(job), err) != ADTOPK_OK ||
        agree_on_scale(rank, tensor, scale, err) != ADTOPK_OK) {
        return err->code;
    }
    job_note_since(job, &job->step.since_us);
    rank->pushed[tensor] = step + 1;
    job->tensor[tensor].lookahead = event->step.lookahead;
    if (rank->pace.pushed_us == 0) {
        flight_rank(rank, RECORD_BEGAN, 0);
    }
    measure_push(rank, tensor);
    machine_fire(&rank->machine, RANK_ON_PUSH, RANK_READY);
    if (job->step.machine.state == STEP_OPEN) {
        round_push(step_round(job, tensor), rank->index);
    }
    return ADTOPK_OK;
}

static enum adtopk_status rank_step_end(struct rank *rank, uint64_t step, struct error *err)
{
    struct job *job = rank->job;

    if (check_step(rank, step, "end it", err) != ADTOPK_OK ||
        check_left(job, "step", step_number(job), err) != ADTOPK_OK) {
        return err->code;
    }
    job_note_since(job, &job->step.since_us);
    rank->ended = step + 1;
    flight_rank(rank, RECORD_ENDED, 0);
    machine_fire(&rank->machine, RANK_ON_STEP_END, RANK_READY);
    step_start(job);
    return ADTOPK_OK;
}

/* The rank, or a stream of it, blocks on a tensor. If it has not pushed all of the bucket, the
 * bucket could wait for ever. So it is split, here and on every node. This does not happen while
 * the view changes: other nodes may have delivered the bucket, with the contribution of an earlier
 * daemon of this node. The commit says so. */
static enum adtopk_status wait_tensor(
    struct rank *rank, uint32_t tensor, uint64_t step, struct error *err)
{
    struct job *job = rank->job;

    if (check_tensor(rank, tensor, err) != ADTOPK_OK ||
        check_running(rank, "wait", err) != ADTOPK_OK) {
        return err->code;
    }
    if (rank->pushed[tensor] != step + 1) {
        return error_set(err, ADTOPK_ERR_STATE,
            "rank %u waits for tensor '%s', which it did not push in step %llu", rank->number,
            job->tensor[tensor].spec.name, (unsigned long long)step);
    }
    if (step != step_number(job) || rank->ended == step + 1) {
        return ADTOPK_OK; /* over, or complete: the rank does not block */
    }
    split_for_wait(rank, tensor);
    return ADTOPK_OK;
}

/* Whether the operation is the next one, and possible. */
static enum adtopk_status check_operation(
    const struct rank *rank, const struct event *event, struct error *err)
{
    const struct job *job = rank->job;
    const uint64_t number = event->op.number;

    if (number != job->store->ops_done || rank->submitted == number + 1) {
        return error_set(err, ADTOPK_ERR_STATE,
            "rank %u called operation %llu, but operation %llu is the next", rank->number,
            (unsigned long long)number, (unsigned long long)job->store->ops_done);
    }
    if ((unsigned)event->op.kind >= OP_KIND_COUNT || event->op.size > CORE_OP_SIZE ||
        event->op.root >= job->run.world_size ||
        (event->op.kind == OP_ALLREDUCE && event->op.size % sizeof(float) != 0)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "rank %u called an operation of kind %d, root %u, %u bytes, which is not possible",
            rank->number, (int)event->op.kind, event->op.root, event->op.size);
    }
    if (event->op.kind == OP_BROADCAST && members_lost_rank(job, event->op.root)) {
        return error_set(err, ADTOPK_ERR_PEER,
            "rank %u, the root of the broadcast, was on a node that is lost", event->op.root);
    }
    return ADTOPK_OK;
}

/* A local rank that called another operation under the same number; NULL: none did. */
static const struct rank *calls_another(const struct rank *rank, const struct event *event)
{
    const struct job *job = rank->job;

    for (unsigned i = 0; i < job->ranks; i++) {
        const struct rank *other = job->rank[i];
        if (other->submitted == event->op.number + 1 &&
            (other->op_kind != event->op.kind || other->op_root != event->op.root ||
                other->op_size != event->op.size)) {
            return other;
        }
    }
    return NULL;
}

static enum adtopk_status operation(struct rank *rank, const struct event *event, struct error *err)
{
    struct job *job = rank->job;
    const uint64_t number = event->op.number;
    const struct rank *other;

    if (check_running(rank, "call an operation", err) != ADTOPK_OK ||
        check_left(job, "operation", number, err) != ADTOPK_OK) {
        return err->code;
    }
    /* The rank returned, and another node's copy of the result came before this call of it. */
    if (number + 1 == job->store->ops_done && rank->submitted <= number) {
        return ADTOPK_OK;
    }
    if (check_operation(rank, event, err) != ADTOPK_OK) {
        return err->code;
    }
    other = calls_another(rank, event);
    if (other != NULL) {
        (void)error_set(err, ADTOPK_ERR_MISMATCH,
            "ranks %u and %u called different operations (kind, root or size) as number %llu",
            other->number, rank->number, (unsigned long long)number);
        job_fail(job, err, true);
        return ADTOPK_ERR_MISMATCH;
    }
    job_note_since(job, &job->op.since_us);
    rank->op_kind = event->op.kind;
    rank->op_root = event->op.root;
    rank->op_size = event->op.size;
    rank->submitted = number + 1;
    machine_fire(&rank->machine, RANK_ON_OP, RANK_READY);
    round_try(&job->op.round);
    return ADTOPK_OK;
}

static void leave(struct rank *rank)
{
    struct job *job = rank->job;
    session_id session = rank->session;
    struct error error;

    if (step_begun(job)) {
        (void)error_set(&error, ADTOPK_ERR_PEER, "rank %u left the job in the middle of step %llu",
            rank->number, (unsigned long long)step_number(job));
    } else if (job->registering.since_us != 0) {
        (void)error_set(&error, ADTOPK_ERR_PEER,
            "rank %u left the job while others commit more tensors", rank->number);
    } else if (job->op.since_us != 0 && rank->submitted != job->store->ops_done + 1) {
        (void)error_set(&error, ADTOPK_ERR_PEER, "rank %u left the job before operation %llu",
            rank->number, (unsigned long long)job->store->ops_done);
    } else if (rank->machine.state != RANK_READY &&
               (job->ranks > 1 || rank->machine.state == RANK_MAPPED)) {
        (void)error_set(
            &error, ADTOPK_ERR_PEER, "rank %u left the job before it began", rank->number);
    } else {
        error.code = ADTOPK_OK;
    }
    machine_fire(&rank->machine, RANK_ON_LEAVE, RANK_LEFT);
    job_note_since(job, &job->ending.leaving_us);
    core_act(job->core, &(struct action){.type = ACTION_CLOSED, .session = session});
    if (error.code != ADTOPK_OK) {
        job_fail(job, &error, true);
    }
}

static void lost(struct rank *rank, const char *reason)
{
    reason = reason != NULL ? reason : "its process ended";
    if (successor_wait(rank, reason)) {
        return;
    }
    machine_fire(&rank->machine, RANK_ON_LEAVE, RANK_LEFT);
    rank->job->ending.alone = true;
    job_fail_with(
        rank->job, ADTOPK_ERR_PEER, "rank %u is gone: %.*s", rank->number, UTF8_FIT(160, reason));
}

enum adtopk_status rank_event(struct core *core, const struct event *event, struct error *err)
{
    struct error unused;
    struct rank *rank;
    enum adtopk_status status = ADTOPK_OK;

    err = err != NULL ? err : &unused;
    if (event->type == EVENT_RANK_OPEN) {
        return open_rank(core, event, err);
    }
    rank = rank_find(core, event->session);
    if (rank == NULL || rank->machine.state == RANK_LEFT) {
        return error_set(err, ADTOPK_ERR_STATE, "this session is not part of a job");
    }
    job_touch(rank->job);
    if (rank->job->advance.frozen && event->type != EVENT_RANK_LOST &&
        event->type != EVENT_RANK_READ && event->type != EVENT_RANK_KEEP) {
        return ADTOPK_OK; /* it says so again, to the next daemon */
    }
    if (rank->succeeds) {
        return successor_event(rank, event, err);
    }
    rank->job->waits.moved_us = core->now_us;
    if (successor_repeats(rank, event)) {
        return ADTOPK_OK;
    }
    switch (event->type) {
    case EVENT_RANK_REGISTER: status = register_tensor(rank, event->spec, err); break;
    case EVENT_RANK_COMMIT: status = commit(rank, err); break;
    case EVENT_RANK_MAPPED: status = mapped(rank, err); break;
    case EVENT_RANK_PUSH: status = push(rank, event, err); break;
    case EVENT_RANK_STEP_END: status = rank_step_end(rank, event->step.number, err); break;
    case EVENT_RANK_WAIT:
        status = wait_tensor(rank, event->step.tensor, event->step.number, err);
        break;
    case EVENT_RANK_OP: status = operation(rank, event, err); break;
    case EVENT_RANK_READ: status = reading_take(rank, &event->read, err); break;
    case EVENT_RANK_KEEP: status = keeping_take(rank, event->keep, err); break;
    case EVENT_RANK_LEAVE: leave(rank); break;
    case EVENT_RANK_LOST: lost(rank, event->reason); break;
    default: status = error_set(err, ADTOPK_ERR_ARGUMENT, "no such event"); break;
    }
    return status;
}
