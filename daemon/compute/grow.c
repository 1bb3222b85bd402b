/*
 * Jobs that take nodes while they train, under the policies on_peer_loss "shrink" and "grow".
 *
 * The happy path: a job has lost nodes. Ranks with the missing numbers are started, on the same
 * node or another one, and their node sends its join. The coordinator proposes a view with it
 * (core/agree/coordinate.c). The newcomer answers that it knows nothing. The commit tells it the
 * steps and operations that are done, and the data of sparsifiers on which all nodes agree. Of the
 * members' answers it passes on the one furthest behind, so that the newcomer is ahead of none. Its
 * residuals are empty, unless it has them from before it was lost (comeback.h).
 *
 * In the step that is open now the newcomer only *watches*. It contributes nothing, the mean is
 * over the other ranks, and its own ranks do not hear of it. It contributes nothing to operations
 * either that others call meanwhile. From the next step on, `since`, its ranks take part. They, and
 * all other ranks, hear before it that ranks have joined (local_page.joined). They broadcast the
 * parameters then. A push before that is an error, because the new ranks have others.
 *
 * What can go wrong:
 * - The newcomer goes away before the view is in force: the others propose a view without it.
 * - It goes away later: it is lost like any other node. Where it had only watched, nothing is lost.
 * - The commit reaches some nodes only: the next view has the newcomer if it is there. The known
 *   view of these nodes says from which step on. A newcomer that missed the commit is lost, and
 *   joins again.
 * - Some ranks hear that ranks have joined, and the newcomer is lost in the same step: the others
 *   hear it, too, because all nodes that close the step know that view (views.grown). They
 *   broadcast in vain.
 * - The newcomer's ranks do not fit, or it has other tensors: it is told why, and the job goes on.
 */
#include "daemon/compute/grow.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/collective/collective.h"
#include "daemon/compute/comeback.h"
#include "daemon/compute/results.h"
#include "daemon/job/absent.h"
#include "daemon/job/actions.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/members.h"
#include "daemon/job/newcomers.h"
#include "daemon/job/ranks.h"
#include "daemon/job/store.h"
#include "proto/codec.h"

/* Steps from the last one that is done to the one from which a node takes part, at most. */
#define GROW_AHEAD 2u

#define AGREED_REALS (sizeof(((struct sparsifier_agreed *)0)->real) / sizeof(double))
#define AGREED_NUMBERS (sizeof(((struct sparsifier_agreed *)0)->number) / sizeof(uint32_t))

/* ------------------------------------------------------------------ late ranks */

static bool grow_drop_rank(struct job *job, unsigned at)
{
    struct rank *rank = job->rank[at];
    struct failure *failure = calloc(1, sizeof(*failure));

    if (failure == NULL) {
        job_fail_with(job, ADTOPK_ERR_MEMORY, "no memory for the ranks of job '%s'", job->key.name);
        return false;
    }
    failure->references = 1;
    (void)error_set(&failure->error, ADTOPK_ERR_STATE,
        "rank %u of job '%s' came too late: the other nodes have taken node %u in without it",
        rank->number, job->key.name, job->core->config.node);
    core_act(job->core, &(struct action){.type = ACTION_FAILED,
                            .session = rank->session,
                            .status = failure->error.code,
                            .error = &failure->error});
    machine_fire(&rank->machine, RANK_ON_LEAVE, RANK_LEFT);
    rank_release(rank);
    rank_free(rank);
    job->ranks--;
    (void)memmove(&job->rank[at], &job->rank[at + 1], (job->ranks - at) * sizeof(struct rank *));
    return true;
}

bool grow_drop_late(struct job *job)
{
    const bool joins = views_since(job->agreement.views, job->core->config.node) == SINCE_UNKNOWN;

    for (unsigned r = job->ranks; joins && r-- > 0;) {
        if (job->rank[r]->machine.state < RANK_MAPPED && !grow_drop_rank(job, r)) {
            return false;
        }
    }
    return true;
}

/* ------------------------------------------------------------------ what a newcomer must know */

static bool grow_has_newcomers(const struct job *job)
{
    const struct membership *members = &job->agreement.members;

    for (unsigned i = 0; i < members->nodes; i++) {
        if (members->since[i] == SINCE_UNKNOWN) {
            return true;
        }
    }
    return false;
}

/* What this node knows, in the arrays of a message. */
struct grow_arrays {
    uint64_t *turn;
    uint32_t *agreed;
    double *real;
    uint32_t *number;
};

static void grow_free(const struct grow_arrays *arrays)
{
    free(arrays->turn);
    free(arrays->agreed);
    free(arrays->real);
    free(arrays->number);
}

/* The tensor's turn in the open step. An earlier daemon of this node may have counted it already,
 * and was killed before it had settled all tensors of the step. */
static uint64_t grow_turn(const struct job *job, const struct store_tensor *store)
{
    const bool counted = store->step == step_number(job) && store->stage >= STAGE_SETTLING &&
                         store->settled != 0 && store->turn == store->settled;

    return store->turn - (counted ? 1 : 0);
}

/* Fills in a tensor. Returns whether its sparsifier keeps anything. */
static bool grow_fill_tensor(
    const struct job *job, uint32_t t, const struct grow_arrays *arrays, size_t agreed)
{
    static const struct sparsifier_agreed nothing;
    const struct store_tensor *store = job->tensor[t].store;
    const uint64_t turn = grow_turn(job, store);
    const struct sparsifier_agreed *known = &store->agreed[turn % 2];

    arrays->turn[t] = turn;
    if (!store_remembers(job->store, store, store->agreed_after[turn % 2]) ||
        memcmp(known, &nothing, sizeof(nothing)) == 0) {
        return false;
    }
    arrays->agreed[agreed] = t;
    (void)memcpy(&arrays->real[agreed * AGREED_REALS], known->real, sizeof(known->real));
    (void)memcpy(&arrays->number[agreed * AGREED_NUMBERS], known->number, sizeof(known->number));
    return true;
}

/* What this node knows, packed. NULL without memory. */
static uint8_t *grow_pack(const struct job *job, size_t *size)
{
    const size_t tensors = job->tensors;
    const struct grow_arrays arrays = {.turn = malloc(tensors * sizeof(*arrays.turn)),
        .agreed = malloc(tensors * sizeof(*arrays.agreed)),
        .real = malloc(tensors * AGREED_REALS * sizeof(*arrays.real)),
        .number = malloc(tensors * AGREED_NUMBERS * sizeof(*arrays.number))};
    Adtopk__PeerNewcomer newcomer = ADTOPK__PEER_NEWCOMER__INIT;
    uint8_t *bytes = NULL;

    if (arrays.turn != NULL && arrays.agreed != NULL && arrays.real != NULL &&
        arrays.number != NULL) {
        for (uint32_t t = 0; t < tensors; t++) {
            newcomer.n_agreed += grow_fill_tensor(job, t, &arrays, newcomer.n_agreed) ? 1 : 0;
        }
        newcomer.steps_done = job->store->steps_done;
        newcomer.seed = job->store->seed;
        newcomer.steps_before = job->store->base;
        newcomer.turns = arrays.turn;
        newcomer.n_turns = tensors;
        newcomer.agreed = arrays.agreed;
        newcomer.reals = arrays.real;
        newcomer.n_reals = newcomer.n_agreed * AGREED_REALS;
        newcomer.numbers = arrays.number;
        newcomer.n_numbers = newcomer.n_agreed * AGREED_NUMBERS;
        bytes = codec_pack(&newcomer.base, size);
    }
    grow_free(&arrays);
    return bytes;
}

bool grow_tell(const struct job *job, Adtopk__PeerState *state)
{
    const struct membership *members = &job->agreement.members;

    state->kept = job->agreement.comeback.kept;
    if (!grow_has_newcomers(job) || members->since[members->self] == SINCE_UNKNOWN) {
        return true;
    }
    state->newcomer.data = grow_pack(job, &state->newcomer.len);
    return state->newcomer.data != NULL;
}

bool grow_hear(struct member *member, const Adtopk__PeerState *state)
{
    struct answer *answer = &member->answer;

    answer->kept = state->kept;
    free(answer->newcomer);
    answer->newcomer_size = state->newcomer.len;
    answer->newcomer = malloc(state->newcomer.len + 1);
    if (answer->newcomer != NULL && state->newcomer.len > 0) {
        (void)memcpy(answer->newcomer, state->newcomer.data, state->newcomer.len);
    }
    return answer->newcomer != NULL;
}

/* Members that have come back with their residuals. */
static void grow_decide_kept(const struct job *job, uint32_t *kept, Adtopk__PeerCommit *commit)
{
    commit->kept = kept;
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (member_is_proposed(job, member) && member->answer.kept) {
            kept[commit->n_kept++] = member->node;
        }
    }
}

void grow_decide(const struct job *job, uint64_t steps, uint32_t *kept, Adtopk__PeerCommit *commit)
{
    const struct member *last = NULL;

    grow_decide_kept(job, kept, commit);
    if (!grow_has_newcomers(job)) {
        return;
    }
    commit->since = steps + 1;
    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (!member_was_there(job, member)) {
            continue;
        }
        if (last == NULL || member->answer.ops_done < commit->ops_done) {
            commit->ops_done = member->answer.ops_done;
        }
        if (last == NULL || member->answer.steps_done < last->answer.steps_done) {
            last = member;
        }
    }
    commit->newcomer.data = last->answer.newcomer;
    commit->newcomer.len = last->answer.newcomer_size;
}

/* ------------------------------------------------------------------ taking it over */

static bool grow_is_valid(
    const struct job *job, const Adtopk__PeerCommit *commit, const Adtopk__PeerNewcomer *newcomer)
{
    bool valid = newcomer != NULL && newcomer->n_turns == job->tensors &&
                 newcomer->n_reals == newcomer->n_agreed * AGREED_REALS &&
                 newcomer->n_numbers == newcomer->n_agreed * AGREED_NUMBERS &&
                 commit->since > newcomer->steps_done &&
                 commit->since - newcomer->steps_done <= GROW_AHEAD;

    for (size_t i = 0; valid && i < newcomer->n_agreed; i++) {
        valid = newcomer->agreed[i] < job->tensors;
    }
    return valid;
}

/* What the i-th sparsifier that keeps something keeps. after: switches of the policy, the one that
 * the commit brings included. */
static void grow_adopt_agreed(
    const struct job *job, const Adtopk__PeerNewcomer *newcomer, size_t i, uint32_t after)
{
    struct store_tensor *store = job->tensor[newcomer->agreed[i]].store;
    const unsigned now = (unsigned)(store->turn % 2);
    struct sparsifier_agreed *agreed = &store->agreed[now];

    (void)memcpy(agreed->real, &newcomer->reals[i * AGREED_REALS], sizeof(agreed->real));
    (void)memcpy(agreed->number, &newcomer->numbers[i * AGREED_NUMBERS], sizeof(agreed->number));
    store->agreed_after[now] = after;
}

static void grow_adopt(
    struct job *job, const Adtopk__PeerCommit *commit, const Adtopk__PeerNewcomer *newcomer)
{
    const bool moves =
        commit->policy != NULL && commit->policy->version > job->plan->change.version;
    const uint32_t after = job->store->policies + (moves ? 1 : 0);

    for (uint32_t t = 0; t < job->tensors; t++) {
        struct store_tensor *store = job->tensor[t].store;
        double applied[2];
        (void)memcpy(applied, store_applied(store), sizeof(applied));
        store->turn = newcomer->turns[t];
        (void)memcpy(store->applied[store->turn % 2], applied, sizeof(applied));
        /* As if no rank of this node had pushed it in the open step: so copies of its rounds fit.
         */
        store->unpushed = 1;
        store->step = newcomer->steps_done;
        store->settled = 0;
        store->nodes = 0; /* it contributed to none of them, and takes no rests */
        store_publish(&store->stage, STAGE_ACCUMULATED);
    }
    for (size_t i = 0; i < newcomer->n_agreed; i++) {
        grow_adopt_agreed(job, newcomer, i, after);
    }
    store_publish64(&job->store->seed, newcomer->seed);
    store_publish64(&job->store->base, newcomer->steps_before);
    store_publish64(&job->store->ops_done, commit->ops_done);
    store_publish64(&job->store->steps_done, newcomer->steps_done);
}

/* This node joins. Without memory the job fails, and says so. */
static bool grow_take_over(struct job *job, const Adtopk__PeerCommit *commit)
{
    struct error error;
    Adtopk__PeerNewcomer *newcomer =
        (Adtopk__PeerNewcomer *)codec_unpack(&adtopk__peer_newcomer__descriptor,
            commit->newcomer.data, commit->newcomer.len, CODEC_PEER_MAX, &error);
    const bool valid = grow_is_valid(job, commit, newcomer);

    if (valid) {
        comeback_adopt(job);
        grow_adopt(job, commit, newcomer);
    } else if (newcomer == NULL && error.code == ADTOPK_ERR_MEMORY) {
        job_fail(job, &error, true);
    }
    codec_free((ProtobufCMessage *)newcomer);
    return valid;
}

/* Steps pass by without this node's ranks until it takes part. If that were far away, one event
 * would pass through them all. */
static bool grow_begins_soon(struct job *job)
{
    const uint64_t since = job->agreement.members.since[job->agreement.members.self];
    const uint64_t done = job->store->steps_done;

    if (since > done && since - done > GROW_AHEAD) {
        job_fail_with(job, ADTOPK_ERR_LOST,
            "the store of this job, here or on another node, is damaged: by a view in it this node "
            "takes part from step %llu on, and %llu are done",
            (unsigned long long)since, (unsigned long long)done);
        return false;
    }
    return true;
}

bool grow_take(struct job *job, const Adtopk__PeerCommit *commit)
{
    struct membership *members = &job->agreement.members;

    if (!grow_has_newcomers(job)) {
        return grow_begins_soon(job);
    }
    if (commit->since == 0 || commit->since == SINCE_UNKNOWN ||
        (members->since[members->self] == SINCE_UNKNOWN && !grow_take_over(job, commit))) {
        return false;
    }
    for (unsigned i = 0; i < members->nodes; i++) {
        if (members->since[i] == SINCE_UNKNOWN) {
            members->since[i] = commit->since;
        }
    }
    return grow_begins_soon(job);
}

/* ------------------------------------------------------------------ watching */

/* The ranks that take part in the step and have lower numbers. */
static uint32_t grow_place(const struct job *job, uint32_t number)
{
    uint32_t place = 0;

    for (unsigned i = 0; i < job->in_force.nodes; i++) {
        const struct member *member = members_at(job, i);
        const bool counts = job->in_force.since[i] <= step_number(job);
        for (uint32_t r = 0; counts && r < member->ranks; r++) {
            place += member->rank[r] < number ? 1 : 0;
        }
    }
    return place;
}

/* The lowest rank that does not take part for the first time. */
static uint32_t grow_root(const struct job *job)
{
    uint32_t root = UINT32_MAX;

    for (unsigned i = 0; i < job->in_force.nodes; i++) {
        const struct member *member = members_at(job, i);
        const uint64_t since = job->in_force.since[i];
        const bool counts = since == 0 || since < step_number(job);
        for (uint32_t r = 0; counts && r < member->ranks; r++) {
            root = member->rank[r] < root ? member->rank[r] : root;
        }
    }
    return root;
}

void grow_count(struct job *job)
{
    job->run.ranks = membership_ranks(&job->in_force, step_number(job));
    job->run.root = grow_root(job);
    for (unsigned r = 0; r < job->ranks; r++) {
        job->rank[r]->place = grow_place(job, job->rank[r]->number);
    }
    results_rescale(job);
}

void grow_step_closed(struct job *job)
{
    if (views_grow_at(job->agreement.views, step_number(job))) {
        grow_count(job);
    }
    absent_step_closed(job);
    newcomers_look(job);
}

void grow_step_opens(struct job *job)
{
    if (!newcomers_watch(job)) {
        return;
    }
    for (unsigned r = 0; r < job->ranks; r++) {
        job->rank[r]->ended = step_number(job) + 1;
    }
    job->step.since_us = job->core->now_us; /* it waits for the others */
    job->advance.opened = true;             /* and its rounds for nothing */
}

/* Whether other nodes have begun the next operation before the step from which this node takes
 * part. */
static bool grow_sees_op(const struct job *job, const struct parked *parked, struct exchange_op *op)
{
    return parked->header.view == job->view && parked->header.number == job->store->ops_done &&
           plain_peek(parked->frame->bytes, parked->frame->size, op) && op->size <= CORE_OP_SIZE &&
           op->root < job->run.world_size &&
           (op->kind != OP_ALLREDUCE || op->size % sizeof(float) == 0) &&
           op->step < job->in_force.since[job->in_force.self];
}

void grow_try_op(struct job *job)
{
    const struct parked *parked = newcomers_watch(job) ? job->op.round.parked : NULL;
    struct exchange_op op;

    while (parked != NULL && !grow_sees_op(job, parked, &op)) {
        parked = parked->next;
    }
    for (unsigned r = 0; parked != NULL && r < job->ranks; r++) {
        job->rank[r]->op_kind = op.kind;
        job->rank[r]->op_root = op.root;
        job->rank[r]->op_size = op.size;
        job->rank[r]->submitted = job->store->ops_done + 1;
    }
}
