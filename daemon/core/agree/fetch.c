/*
 * Fetches: after a view change a node asks the holder of a delivered round for its copy.
 *
 * A holder that has not got its own commit yet keeps the question until then. A holder that is
 * prepared for a newer view forgets the question, because the asker will get a new commit.
 */
#include "daemon/core/agree/fetch.h"

#include <stdlib.h>

#include "daemon/core/round.h"
#include "daemon/job/decision.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/members.h"

static void fetch_round(struct job *job, uint32_t round, uint16_t holder)
{
    if (round < job->plan->rounds && step_round_active(job, &job->plan->round[round])) {
        round_fetch(&job->plan->round[round], holder);
    }
}

/* Fetches the rounds that others delivered and this node did not. */
void fetch_delivered(struct job *job, const Adtopk__PeerCommit *commit)
{
    for (size_t i = 0; i < commit->n_delivered; i++) {
        const Adtopk__PeerRound *held = commit->delivered[i];
        if (held->operation && held->number == job->store->ops_done) {
            round_fetch(&job->op.round, (uint16_t)held->holder);
        }
        if (held->operation || held->number != job->store->steps_done) {
            continue;
        }
        if (held->bucket == ALL_ROUNDS) {
            for (uint32_t r = 0; r < job->plan->rounds; r++) {
                fetch_round(job, r, (uint16_t)held->holder);
            }
        } else {
            fetch_round(job, held->bucket, (uint16_t)held->holder);
        }
    }
}

/* Notes that a node gets a copy; false if it had one in this view, or memory is short. */
static bool first_copy(struct job *job, uint16_t node, uint32_t round)
{
    struct member *member = members_find(job, node);

    if (member->copied == NULL) {
        member->copied = calloc((size_t)job->plan->rounds + 1, sizeof(*member->copied));
    }
    if (member->copied == NULL) {
        job_fail_with(job, ADTOPK_ERR_MEMORY, "no memory to answer node %u", node);
        return false;
    }
    if (member->copied[round] == job->view) {
        job->core->bad_messages++;
        return false;
    }
    member->copied[round] = job->view;
    return true;
}

static void send_held(struct job *job, const struct fetch *fetch)
{
    const uint32_t at = fetch->op ? job->plan->rounds : fetch->bucket;
    const uint64_t done = fetch->op ? job->store->ops_done : job->store->steps_done;
    const struct round *round;

    if (!fetch->op && at >= job->plan->rounds) {
        job->core->bad_messages++;
        return;
    }
    round = fetch->op ? &job->op.round : &job->plan->round[at];
    if (fetch->view != job->view || membership_index(&job->in_force, fetch->node) < 0) {
        return; /* the asker goes on to this view, and asks again in it; or is no member of it */
    }
    if ((fetch->number + 1 == done ||
            (fetch->number == done && round->machine.state == ROUND_DELIVERED)) &&
        first_copy(job, fetch->node, at)) {
        round_send_copy(round, fetch->node, fetch->number);
    }
}

/* Answers the fetches that came before this node had the commit. */
void fetch_answer(struct job *job)
{
    while (job->early.fetches != NULL && !job_ended(job)) {
        struct fetch *fetch = job->early.fetches;
        job->early.fetches = fetch->next;
        send_held(job, fetch);
        free(fetch);
    }
}

void fetch_drop(struct job *job)
{
    while (job->early.fetches != NULL) {
        struct fetch *fetch = job->early.fetches;
        job->early.fetches = fetch->next;
        free(fetch);
    }
}

void fetch_message(struct job *job, uint16_t from, const Adtopk__PeerFetch *message)
{
    const Adtopk__PeerRound *held = message->round;
    unsigned waiting = 0;
    struct fetch *fetch;

    for (fetch = job->early.fetches; fetch != NULL; fetch = fetch->next) {
        waiting += fetch->node == from ? 1 : 0;
    }
    if (held == NULL || members_find(job, from) == NULL || waiting > job->plan->rounds) {
        job->core->bad_messages++; /* no node asks for more than every round and an operation */
        return;
    }
    fetch = malloc(sizeof(*fetch));
    if (fetch == NULL) {
        job_fail_with(job, ADTOPK_ERR_MEMORY, "no memory to answer node %u", from);
        return;
    }
    *fetch = (struct fetch){.next = job->early.fetches,
        .view = message->view,
        .node = from,
        .number = held->number,
        .bucket = held->bucket,
        .op = held->operation};
    job->early.fetches = fetch;
    if (job->machine.state == JOB_ACTIVE) {
        fetch_answer(job);
    }
}
