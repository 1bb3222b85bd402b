/*
 * The life of a job on this node. Its first rank creates it, and it runs while its view is in
 * force. It is over when all ranks have left, or when something goes wrong that cannot be mended.
 */
#include "daemon/core/job.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/compute/keeping_array.h"
#include "daemon/compute/launch.h"
#include "daemon/compute/leaving.h"
#include "daemon/compute/plan.h"
#include "daemon/compute/plan_life.h"
#include "daemon/compute/planning.h"
#include "daemon/compute/recall.h"
#include "daemon/compute/round_memory.h"
#include "daemon/compute/successor.h"
#include "daemon/compute/work.h"
#include "daemon/core/agree/fetch.h"
#include "daemon/core/agree/switch_ask.h"
#include "daemon/core/frame.h"
#include "daemon/core/split.h"
#include "daemon/job/absent.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_index.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/measure.h"
#include "daemon/job/members.h"
#include "daemon/job/newcomers.h"
#include "daemon/job/peer.h"
#include "daemon/job/ranks.h"
#include "daemon/job/recording.h"
#include "daemon/job/roster.h"
#include "daemon/job/ticket.h"

struct job *job_create(struct core *core, const struct event *event, struct error *err)
{
    struct plan *plan = plan_of_rank(core, event, err);
    struct job *job = plan != NULL ? calloc(1, sizeof(*job)) : NULL;
    struct failure *failure = job != NULL ? calloc(1, sizeof(*failure)) : NULL;
    struct views *views = failure != NULL ? calloc(1, sizeof(*views)) : NULL;
    struct job **job_at = realloc(core->job_at, (core->job_count + 1) * sizeof(*job_at));
    struct job **end = &core->jobs;

    core->job_at = job_at != NULL ? job_at : core->job_at;

    if (plan == NULL) {
        return NULL;
    }
    if (failure == NULL || job_at == NULL || views == NULL) {
        free(failure);
        free(views);
        free(job);
        plan_free(plan);
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for job '%s'", event->open.key.name);
        return NULL;
    }
    failure->references = 1;
    job->ending.failure = failure;
    job->agreement.views = views;
    job->plan = plan;
    job->history.brought = plan_brought(plan);
    job->core = core;
    job->step.settle.job = job;
    job->lending.work.job = job;
    job->key = event->open.key;
    job->number = ++core->opened_jobs;
    job->run.id = event->open.run;
    job->run.seed = job_seed(&job->key);
    job->run.carrying.left_out = true; /* an earlier daemon of this node may have had operations */
    job->run.world_size = event->open.world_size;
    job->run.ranks = event->open.world_size;
    job->waits.forming_since_us = core->now_us;
    job->waits.moved_us = core->now_us;
    machine_init(&job->machine, &job_machine, &core->trace, job->number);
    machine_init(&job->step.machine, &step_machine, &core->trace, job->number);
    machine_init(&job->switching.machine, &switch_machine, &core->trace, job->number);
    while (*end != NULL) {
        end = &(*end)->places.next;
    }
    *end = job;
    core->job_at[core->job_count++] = job;
    job_index_enter(job);
    return job;
}

void job_free(struct job *job)
{
    measure_end(job);
    recorder_free(&job->figures.recorder);
    planning_free(job->figures.planning);
    plan_free(job->plan);
    plan_free(job->switching.next);
    while (job->history.discarded != NULL) {
        struct plan *plan = job->history.discarded;
        job->history.discarded = plan->discarded;
        plan_free(plan);
    }
    round_free(&job->op.round);
    launch_forget(job);
    work_drop(&job->step.settle);
    work_drop(&job->lending.work);
    keeping_free(job);
    free(job->layout.arenas.gradients);
    frame_drop_early(job);
    fetch_drop(job);
    split_free(job);
    for (unsigned i = 0; i < job->ranks; i++) {
        rank_free(job->rank[i]);
    }
    members_keep(job, NULL);
    absent_free(job);
    switch_drop_postponed(job);
    ticket_free(job->switching.asked);
    ticket_free(job->lending.ticket);
    ticket_free(job->agreement.due.tickets);
    recording_drop(job);
    roster_drop(job);
    job_drop_failure(job->ending.failure);
    free(job->tensor);
    free(job->registering.slot);
    free(job->registering.next);
    free(job->rank);
    free(job->member);
    membership_free(&job->in_force);
    membership_free(&job->agreement.members);
    if (job->store == NULL || job->agreement.views != &job->store->views) {
        free(job->agreement.views);
    }
    free(job);
}

static void drop_from_list(struct core *core, const struct job *job)
{
    uint32_t at = 0;

    while (core->job_at[at] != job) {
        at++;
    }
    core->job_count--;
    (void)memmove(
        &core->job_at[at], &core->job_at[at + 1], (core->job_count - at) * sizeof(struct job *));
}

void job_reap(struct job *job)
{
    struct job **link = &job->core->jobs;

    if (!job_ended(job) || job->advance.computing > 0 || job->ending.untold || plan_retire(job)) {
        return;
    }
    while (*link != job) {
        link = &(*link)->places.next;
    }
    *link = job->places.next;
    drop_from_list(job->core, job);
    job_index_drop(job);
    job->core->ended--;
    for (unsigned i = 0; i < job->ranks; i++) {
        rank_release(job->rank[i]);
    }
    recall_release(job);
    job_free(job);
}

void job_stop(struct job *job)
{
    if (job_ended(job) || leaving_stays(job) || leaving_saves(job) ||
        (job->machine.state == JOB_ACTIVE && !job->advance.frozen &&
            successor_vacant(job) == NULL && (step_begun(job) || job->op.since_us != 0))) {
        return;
    }
    job->ending.last_steps = step_number(job);
    job->ending.alone = true;
    job_fail_with(job, ADTOPK_ERR_PEER, "node %u: its daemon is stopping", job->core->config.node);
}

/* Tells the other nodes, once in every view, because a node that restarted has forgotten it. That
 * may be in the proposed view, because this job may end before it gets the commit. */
void job_tell_leave(struct job *job)
{
    if (job->ending.left_view != job->agreement.promised) {
        job->ending.left_view = job->agreement.promised;
        peer_send_leave(job);
    }
}

/* When all local ranks have left, the job stays until the ranks of the other nodes have left too.
 * Another node may still need a copy of the last update. */
bool job_try_leave(struct job *job)
{
    if (!job_is_left(job)) {
        return false;
    }
    if (job->machine.state == JOB_FORMING) {
        job_end(job);
        return true;
    }
    if (job->machine.state != JOB_ACTIVE && (job->view == 0 || members_staying(job) != NULL)) {
        return false; /* the view changes: this is repeated when it is in force */
    }
    job_note_since(job, &job->ending.left_since_us);
    job_tell_leave(job);
    if (members_staying(job) == NULL &&
        !job->ending.out_of_memory) { /* else the others did not hear it: the job fails */
        job_end(job);
    }
    return job_ended(job);
}

void job_peer_left(struct job *job, uint16_t node, uint64_t steps_done, uint64_t ops_done)
{
    struct member *member = members_find(job, node);
    struct error error;

    if (member == NULL) {
        return;
    }
    member->left = true;
    member->left_step = steps_done;
    newcomers_peer_left(job);
    job_note_since(job, &job->ending.leaving_us);
    if (job->registering.since_us != 0) {
        job_fail_with(job, ADTOPK_ERR_PEER,
            "the ranks of node %u left the job while others commit more tensors", node);
    } else if (job->step.since_us != 0 && step_number(job) >= steps_done) {
        job_fail_left(job, node, "step", step_number(job), &error);
    } else if (job->op.since_us != 0 && ops_done != 0 && job->store->ops_done >= ops_done - 1) {
        job_fail_left(job, node, "operation", job->store->ops_done, &error);
    }
}

/* Whether the job needs the node's daemon as it was. A job can wait for another daemon there only
 * if that daemon may find the store of the one before. */
static bool job_is_lost(const struct job *job, uint16_t node, enum peer_loss loss)
{
    return job->plan->policy.on_peer_loss == PEER_LOSS_FAIL ||
           (loss != PEER_SILENT && !members_find(job, node)->loss.keeps);
}

void job_peer_lost(struct job *job, uint16_t node, enum peer_loss loss)
{
    static const char *const why[] = {[PEER_SILENT] = "does not answer",
        [PEER_RESTARTED] = "restarted",
        [PEER_GONE] = "is gone: no daemon listens at its address"};
    bool noted;

    if (newcomers_forget(job, node)) {
        return;
    }
    noted = !job_ended(job) && loss_note(job, node, loss);
    if (job_ended(job) || job_is_done_with(job, node) ||
        (membership_index(&job->in_force, node) < 0 && (job->in_force.nodes > 0 || !noted))) {
        return;
    }
    if (job->ending.last_steps > 0) {
        job_fail_due(job); /* its last step may need something that is lost */
        return;
    }
    job_note_since(job, &job->waits.lost_since_us);
    if (!noted && job_is_lost(job, node, loss)) {
        job_fail_with(job, ADTOPK_ERR_PEER, "node %u %s", node, why[loss]);
    }
}
