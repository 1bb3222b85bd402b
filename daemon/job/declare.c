#include "daemon/job/declare.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/job/job_state.h"
#include "daemon/job/members.h"
#include "daemon/job/notes.h"
#include "daemon/job/peer.h"
#include "daemon/job/plan_query.h"
#include "daemon/job/views.h"

#define DECLARE_EVERY_US 1000000u
/* Bytes of residuals that may be read in that time; and where that is only for statistics. */
#define DECLARE_READ (UINT64_C(32) << 20)
#define DECLARE_READ_SHOWN (UINT64_C(8) << 20)
/* More than all residuals of a node can add up to. Sums of all nodes stay finite. */
#define DECLARE_MOST ((double)FLT_MAX * CORE_MAX_TENSORS * VIEW_MAX_ELEMENTS * CORE_MAX_WORLD)

static bool declare_is_wanted(const struct job *job)
{
    return job->plan->policy.on_peer_loss == PEER_LOSS_SHRINK;
}

static bool declare_is_due(const struct job *job)
{
    const uint64_t told_us = job->figures.told_us;

    return told_us == 0 || job->core->now_us - told_us >= DECLARE_EVERY_US;
}

/* What there is to read of a tensor's residual. One that was never filled is not read. */
static uint64_t declare_bytes(const struct job *job, uint32_t t)
{
    const struct tensor *tensor = &job->tensor[t];

    return store_is_filled(tensor->store)
               ? tensor->numel * plan_residuals(job, &job->plan->tensor[t]) * sizeof(float)
               : 0;
}

/* Whether what was read last is long enough ago, at the pace that is in force now. */
static bool declare_reads(const struct job *job, uint64_t most)
{
    const struct figures *figures = &job->figures;
    const double seconds = fmax(1, (double)figures->measured_bytes / (double)most);

    return figures->measured_us == 0 ||
           job->core->now_us - figures->measured_us >= (uint64_t)(seconds * DECLARE_EVERY_US);
}

uint64_t declare_begin(struct job *job)
{
    struct figures *figures = &job->figures;
    struct work *work = &job->step.settle;
    const uint64_t most = declare_is_wanted(job) ? DECLARE_READ : DECLARE_READ_SHOWN;
    uint64_t bytes = 0;

    figures->tells = declare_is_due(job);
    work->measure = work->measure_end = 0;
    if (!declare_reads(job, most)) {
        return 0;
    }
    work->measure = figures->measure_next < job->tensors ? figures->measure_next : 0;
    for (uint32_t t = work->measure; t < job->tensors && bytes < most; t++) {
        bytes += declare_bytes(job, t);
        work->measure_end = t + 1;
    }
    figures->measure_next = work->measure_end;
    figures->measured_us = job->core->now_us;
    figures->measured_bytes = bytes;
    return bytes;
}

/* Until now the compute has written these. */
static void declare_take(struct job *job)
{
    const struct work *work = &job->step.settle;

    for (uint32_t t = work->measure; t < work->measure_end; t++) {
        struct tensor *tensor = &job->tensor[t];

        tensor->read = (struct residual_read){step_number(job), tensor->magnitude};
    }
}

void declare_tell(struct job *job)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerResidual residual = ADTOPK__PEER_RESIDUAL__INIT;
    const struct member_residual *own = &job->step.settle.residual;

    declare_take(job);
    if (!job->figures.tells) {
        return;
    }
    residual.step = step_number(job);
    residual.sum = own->sums[0];
    residual.hashed = own->sums[1];
    residual.measured = own->measured;
    residual.magnitude = own->magnitude;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_RESIDUAL;
    message.residual = &residual;
    peer_offer_all(job, &message);
    job->figures.told_us = job->core->now_us;
}

void declare_hear(struct job *job, uint16_t from, const Adtopk__PeerResidual *residual)
{
    struct member *member = members_find(job, from);

    if (!(fabs(residual->sum) <= DECLARE_MOST && fabs(residual->hashed) <= DECLARE_MOST &&
            residual->magnitude >= 0 && residual->magnitude <= DECLARE_MOST)) {
        job->core->bad_messages++;
    } else if (member != NULL) {
        member->residual = (struct member_residual){.told = true,
            .kept = member->residual.kept,
            .step = residual->step,
            .sums = {residual->sum, residual->hashed},
            .measured = residual->measured,
            .magnitude = residual->magnitude};
    }
}

/* What residuals added up to. The caller knows that the node has told it. */
static void declare_say(const struct member_residual *residual, char *text, size_t size)
{
    char magnitude[64] = "their magnitudes to what nobody knows";

    if (residual->measured) {
        (void)snprintf(
            magnitude, sizeof(magnitude), "their magnitudes to %.9g", residual->magnitude);
    }
    (void)snprintf(text, size, "they added up to %.9g after step %llu, %s", residual->sums[0],
        (unsigned long long)residual->step, magnitude);
}

/* Tells the log what was lost with a node. */
static void declare_note(
    const struct job *job, uint16_t node, const struct member_residual *residual)
{
    char said[160];

    if (!residual->told) {
        core_warn(job->core, "job '%s': it is not known how much node %u had in its residuals",
            job->key.name, node);
        return;
    }
    declare_say(residual, said, sizeof(said));
    core_warn(job->core, "job '%s': what node %u had in its residuals is lost: %s", job->key.name,
        node, said);
}

void declare_add_to(struct error *err, struct job *job, uint16_t node)
{
    const struct member *member = members_find(job, node);
    const size_t used = strlen(err->text);
    char said[160];

    if (err->code == ADTOPK_ERR_LOST && member != NULL && member->residual.told) {
        declare_say(&member->residual, said, sizeof(said));
        (void)snprintf(err->text + used, sizeof(err->text) - used,
            ". Of what node %u had in its residuals it told last: %s", node, said);
    }
}

/* The members before the next view, and the steps from which they take part. */
struct members_before {
    const uint16_t *node;
    const uint64_t *since;
    unsigned nodes;
};

/* Those of the view in force or, after a restart, of the known view. A node that joins had none. */
static struct members_before declare_before(const struct job *job)
{
    const struct membership *in_force = &job->in_force, *now = &job->agreement.members;
    const struct known_view *known = views_known(job->agreement.views);
    const bool restarted = in_force->nodes == 0 && now->since[now->self] != SINCE_UNKNOWN;

    return restarted ? (struct members_before){known->node, known->since, known->nodes}
                     : (struct members_before){in_force->node, in_force->since, in_force->nodes};
}

/* Declares what the i-th member before had. A node that only watched so far has none, unless it
 * came back with some. */
static void declare_member(const struct job *job, const struct members_before *before, unsigned i,
    struct declared *declared)
{
    const struct member *member = members_find(job, before->node[i]);
    const bool watched = before->since[i] > 0 && before->since[i] >= step_number(job);
    const struct member_residual residual =
        member != NULL ? member->residual : (struct member_residual){.told = false};

    if (!watched || residual.kept) {
        declared_add(declared, before->node[i], &residual);
        declare_note(job, before->node[i], &residual);
    }
}

/* The node has come back with what it had. It may be lost again before it tells anything. */
static void declare_withdraw(
    const struct job *job, struct declared *declared, struct member *member)
{
    if (declared_withdraw(declared, member->node, &member->residual)) {
        core_note(job->core,
            "job '%s': node %u has come back with its residuals, which are not lost any more",
            job->key.name, member->node);
    }
    member->residual.kept = true;
}

/* The node joins without what it had. That is declared already, unless this node did not hear of
 * the view without it. */
static void declare_anew(const struct job *job, struct declared *declared, uint16_t node)
{
    const struct members_before before = declare_before(job);
    struct member *member = members_find(job, node);

    for (unsigned i = 0; i < before.nodes; i++) {
        if (before.node[i] == node) {
            declare_member(job, &before, i, declared);
        }
    }
    if (member != NULL) {
        member->residual = (struct member_residual){.told = false};
    }
}

static bool declare_keeps(const Adtopk__PeerCommit *commit, uint16_t node)
{
    bool keeps = false;

    for (size_t i = 0; i < commit->n_kept; i++) {
        keeps = keeps || commit->kept[i] == node;
    }
    return keeps;
}

bool declare_returns(
    const struct job *job, const Adtopk__PeerCommit *commit, struct declared *declared)
{
    const struct membership *now = &job->agreement.members;
    bool valid = commit->n_kept <= now->nodes;

    if (now->since[now->self] == SINCE_UNKNOWN) {
        (void)memset(declared, 0, sizeof(*declared)); /* of an earlier life in the job */
    }
    for (size_t i = 0; valid && i < commit->n_kept; i++) {
        const uint16_t node = (uint16_t)commit->kept[i];
        struct member *member = node == commit->kept[i] ? members_find(job, node) : NULL;
        valid = member != NULL;
        if (valid) {
            declare_withdraw(job, declared, member);
        }
    }
    for (unsigned i = 0; i < now->nodes; i++) {
        if (now->since[i] == SINCE_UNKNOWN && !declare_keeps(commit, now->node[i])) {
            declare_anew(job, declared, now->node[i]);
        }
        declared_finish(declared, now->node[i]); /* it is back without what it had */
    }
    return valid;
}

void declare_lost(struct job *job, struct declared *declared)
{
    const struct members_before before = declare_before(job);

    job->figures.told_us = 0; /* nodes that join have heard nothing yet */
    for (unsigned i = 0; i < before.nodes; i++) {
        if (membership_index(&job->agreement.members, before.node[i]) < 0) {
            declare_member(job, &before, i, declared);
        }
    }
}
