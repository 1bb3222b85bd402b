/*
 * Splits. A rank blocks on a tensor of a bucket and has not pushed all of the bucket. So from this
 * step on the bucket's tensors are sent alone, on every node.
 *
 * The node of that rank splits its bucket and tells the others. The state of a member and the
 * commit of a view contain the splits that a node knows. A split of a plan that is not in force
 * here yet waits with the job.
 */
#include "daemon/core/split.h"

#include <stdlib.h>

#include "daemon/core/round.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_state.h"
#include "daemon/job/peer.h"

static void split_for_tensor(const struct rank *rank, uint32_t tensor)
{
    struct job *job = rank->job;
    struct round *round = step_round(job, tensor);
    uint64_t step = step_number(job);

    if (round->machine.state > ROUND_COMBINE || round->tensors == 1 ||
        round->pushes[rank->index] == round->tensors || rank->ended == step + 1) {
        return; /* it comes whole; others may have it from an earlier daemon of this node */
    }
    peer_send_split(job, step, round->bucket);
    round_split(round, step);
}

/* False while the view changes, or the step is held. */
static bool split_may_act(const struct job *job)
{
    return job->step.machine.state == STEP_OPEN && job->machine.state == JOB_ACTIVE;
}

void split_for_wait(struct rank *rank, uint32_t tensor)
{
    if (split_may_act(rank->job)) {
        split_for_tensor(rank, tensor);
    } else if (!rank->waits[tensor]) {
        rank->waits[tensor] = true;
        rank->waiting++;
    }
}

void split_catch_up(struct rank *rank)
{
    const struct job *job = rank->job;

    if (!split_may_act(job)) {
        return;
    }
    for (uint32_t t = 0; rank->waiting > 0 && t < job->tensors; t++) {
        if (rank->waits[t]) {
            rank->waits[t] = false;
            rank->waiting--;
            split_for_tensor(rank, t);
        }
    }
}

/* Keeps a split of a plan that is not in force here yet. */
static void split_keep(struct job *job, const Adtopk__PeerSplit *message)
{
    struct split *split;
    uint32_t kept = 0;

    for (split = job->early.splits; split != NULL; split = split->next) {
        if (split->bucket == message->bucket && split->policy == message->policy) {
            return;
        }
        kept++;
    }
    split = kept < job->tensors ? malloc(sizeof(*split)) : NULL;
    if (split == NULL) {
        job_fail_with(
            job, ADTOPK_ERR_MEMORY, "no room for a split of a bucket of job '%s'", job->key.name);
        return;
    }
    *split = (struct split){.next = job->early.splits,
        .policy = message->policy,
        .bucket = message->bucket,
        .step = message->step};
    job->early.splits = split;
}

void split_message(struct job *job, const Adtopk__PeerSplit *split)
{
    if (job->plan->round != NULL && split->policy == job->plan->change.version + 1) {
        split_keep(job, split);
        return;
    }
    if (job->plan->round == NULL || split->policy != job->plan->change.version ||
        split->bucket >= job->plan->buckets || split->step > job->store->steps_done + 1) {
        return; /* before the plan: the commit repeats it */
    }
    round_split(&job->plan->round[split->bucket], split->step);
}

/* A split that some node knows holds for all nodes. */
void split_learn(
    struct job *job, const uint32_t *bucket, size_t buckets, const uint64_t *step, size_t steps)
{
    for (size_t i = 0; i < buckets && i < steps; i++) {
        if (bucket[i] < job->plan->buckets) {
            round_split(&job->plan->round[bucket[i]], step[i]);
        }
    }
}

bool split_learn_later(struct job *job, const Adtopk__PeerCommit *commit)
{
    Adtopk__PeerSplit split = ADTOPK__PEER_SPLIT__INIT;

    split.policy = commit->split_policy;
    for (size_t i = 0; i < commit->n_split && i < commit->n_split_step && !job_ended(job); i++) {
        split.bucket = commit->split[i];
        split.step = commit->split_step[i];
        split_keep(job, &split);
    }
    return !job_ended(job);
}

uint32_t split_list(const struct job *job, uint32_t *bucket, uint64_t *step)
{
    uint32_t count = 0;

    for (uint32_t b = 0; b < job->plan->buckets; b++) {
        if (job->plan->round[b].split_step != UINT64_MAX) {
            bucket[count] = b;
            step[count++] = job->plan->round[b].split_step;
        }
    }
    return count;
}

/* Repeats splits: the commit lacks those of a plan that its coordinator did not have yet. */
void split_repeat(struct job *job)
{
    for (uint32_t b = 0; b < job->plan->buckets; b++) {
        if (job->plan->round[b].split_step != UINT64_MAX &&
            job->plan->round[b].split_step >= job->store->steps_done) {
            peer_send_split(job, job->plan->round[b].split_step, b);
        }
    }
}

/* Takes splits of this plan's buckets that came before the plan was in force. */
void split_take_early(struct job *job)
{
    struct split **link = &job->early.splits;

    while (*link != NULL && !job_ended(job)) {
        struct split *split = *link;
        if (split->policy > job->plan->change.version) {
            link = &split->next;
            continue;
        }
        *link = split->next;
        if (split->policy == job->plan->change.version && split->bucket < job->plan->buckets) {
            round_split(&job->plan->round[split->bucket], split->step);
        }
        free(split);
    }
}

void split_free(struct job *job)
{
    while (job->early.splits != NULL) {
        struct split *split = job->early.splits;
        job->early.splits = split->next;
        free(split);
    }
}
