/*
 * Fetches: after a view change a node asks the holder of a delivered round for its copy.
 *
 * A holder that has not got its own commit yet keeps the question until it has; one that is
 * prepared for a newer view forgets it, because the asker will be told anew.
 */
#include <stdlib.h>

#include "daemon/core/view.h"

/* Fetches what others delivered and this node did not. */
void fetch_delivered(struct job *job, const Adtopk__PeerCommit *commit)
{
    for (size_t i = 0; i < commit->n_delivered; i++) {
        const Adtopk__PeerRound *held = commit->delivered[i];
        if (held->operation && held->number == job->store->ops_done) {
            round_fetch(&job->op_round, (uint16_t)held->holder);
        }
        if (held->operation || held->number != job->store->steps_done) {
            continue;
        }
        for (uint32_t r = 0; r < job->rounds; r++) {
            if ((held->bucket == r || held->bucket == ALL_ROUNDS) &&
                step_round_active(job, &job->round[r])) {
                round_fetch(&job->round[r], (uint16_t)held->holder);
            }
        }
    }
}

static void send_held(struct job *job, const struct fetch *fetch)
{
    if (fetch->op && fetch->number + 1 == job->store->ops_done) {
        round_send_copy(&job->op_round, fetch->node, fetch->number);
    } else if (!fetch->op && fetch->bucket < job->rounds) {
        const struct round *round = &job->round[fetch->bucket];
        if (fetch->number + 1 == job->store->steps_done ||
            (fetch->number == job->store->steps_done && round->machine.state == ROUND_DELIVERED)) {
            round_send_copy(round, fetch->node, fetch->number);
        }
    }
}

/* Answers the fetches that came before this node's own commit did. */
void fetch_answer(struct job *job)
{
    while (job->fetches != NULL && !job_ended(job)) {
        struct fetch *fetch = job->fetches;
        job->fetches = fetch->next;
        send_held(job, fetch);
        free(fetch);
    }
}

void fetch_drop(struct job *job)
{
    while (job->fetches != NULL) {
        struct fetch *fetch = job->fetches;
        job->fetches = fetch->next;
        free(fetch);
    }
}

void fetch_message(struct job *job, uint16_t from, const Adtopk__PeerFetch *message)
{
    const Adtopk__PeerRound *held = message->round;
    unsigned waiting = 0;
    struct fetch *fetch;

    for (fetch = job->fetches; fetch != NULL; fetch = fetch->next) {
        waiting += fetch->node == from ? 1 : 0;
    }
    if (held == NULL || join_member(job, from) == NULL || waiting > job->rounds) {
        job->core->bad_messages++; /* nobody asks for more than every round and an operation */
        return;
    }
    fetch = malloc(sizeof(*fetch));
    if (fetch == NULL) {
        view_fail(job, ADTOPK_ERR_MEMORY, "no memory to answer node %u", from);
        return;
    }
    *fetch = (struct fetch){.next = job->fetches,
        .node = from,
        .number = held->number,
        .bucket = held->bucket,
        .op = held->operation};
    job->fetches = fetch;
    if (job->machine.state == JOB_ACTIVE) {
        fetch_answer(job);
    }
}
