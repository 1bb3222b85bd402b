#include "daemon/job/absent.h"

#include <stdlib.h>

#include "daemon/job/decision.h"
#include "daemon/job/store.h"

struct absent *absent_find(const struct job *job, uint16_t node)
{
    struct absent *absent = job->agreement.absent;

    while (absent != NULL && absent->node != node) {
        absent = absent->next;
    }
    return absent;
}

static void absent_drop(struct job *job, uint16_t node)
{
    for (struct absent **link = &job->agreement.absent; *link != NULL; link = &(*link)->next) {
        if ((*link)->node == node) {
            struct absent *absent = *link;
            *link = absent->next;
            free(absent);
            return;
        }
    }
}

void absent_free(struct job *job)
{
    while (job->agreement.absent != NULL) {
        absent_drop(job, job->agreement.absent->node);
    }
    free(job->agreement.comeback.delivered);
}

/* The step that is open on the furthest member. */
static uint64_t absent_step(const struct job *job, const Adtopk__PeerCommit *commit)
{
    for (size_t i = 0; i < commit->n_delivered; i++) {
        const Adtopk__PeerRound *round = commit->delivered[i];
        if (!round->operation && round->bucket == ALL_ROUNDS &&
            round->number == job->store->steps_done) {
            return job->store->steps_done + 1; /* this node gets the copies of a whole step */
        }
    }
    return job->store->steps_done;
}

/* A note with the rounds that are complete; NULL without memory. */
static struct absent *absent_make(const struct job *job, const Adtopk__PeerCommit *commit)
{
    struct absent *absent =
        calloc(1, sizeof(*absent) + commit->n_delivered * sizeof(*absent->delivered));

    if (absent == NULL) {
        return NULL;
    }
    absent->step = absent_step(job, commit);
    absent->policy = job->plan->change.version;
    absent->spoiled =
        job->store->steps_done == absent->step && store_step_status(job->store) != ADTOPK_OK;
    for (size_t i = 0; i < commit->n_delivered; i++) {
        const Adtopk__PeerRound *round = commit->delivered[i];
        if (!round->operation && round->bucket != ALL_ROUNDS && round->number == absent->step) {
            absent->delivered[absent->count++] = round->bucket;
        }
    }
    return absent;
}

/* The node is lost while it watches: it has memory of its own since, of which nothing is known. */
static void absent_again(const struct job *job, uint16_t node)
{
    struct absent *absent = absent_find(job, node);

    if (absent != NULL) {
        absent->spoiled = true;
    }
}

void absent_note(struct job *job, const Adtopk__PeerCommit *commit)
{
    for (unsigned i = 0; i < job->in_force.nodes; i++) {
        const uint16_t node = job->in_force.node[i];
        const bool stays = membership_index(&job->agreement.members, node) >= 0;
        struct absent *absent;

        if (stays) {
            continue;
        }
        if (job->in_force.since[i] > absent_step(job, commit)) {
            absent_again(job, node);
            continue;
        }
        absent_drop(job, node);
        absent = absent_make(job, commit);
        if (absent != NULL) {
            absent->node = node;
            absent->next = job->agreement.absent;
            job->agreement.absent = absent;
        }
    }
}

void absent_step_closed(struct job *job)
{
    const uint64_t closed = job->store->steps_done - 1;
    const bool withdrawn = store_step_status(job->store) != ADTOPK_OK;

    for (struct absent *absent = job->agreement.absent; withdrawn && absent != NULL;
         absent = absent->next) {
        absent->spoiled |= absent->step == closed || absent->step == closed + 1;
    }
}

bool absent_in_step(const struct job *job)
{
    for (const struct absent *absent = job->agreement.absent; absent != NULL;
         absent = absent->next) {
        if (absent->step >= job->store->steps_done) {
            return true;
        }
    }
    return false;
}

/* ------------------------------------------------------------------ messages */

static Adtopk__PeerAbsent *absent_message(struct absent *absent)
{
    Adtopk__PeerAbsent *message = malloc(sizeof(*message));

    if (message != NULL) {
        adtopk__peer_absent__init(message);
        message->node = absent->node;
        message->step = absent->step;
        message->policy = absent->policy;
        message->delivered = absent->delivered; /* the proposal is sent before the note can go */
        message->n_delivered = absent->count;
    }
    return message;
}

bool absent_fill(
    const struct job *job, const struct membership *joined, Adtopk__PeerPrepare *prepare)
{
    prepare->absent = malloc((joined->nodes + 1) * sizeof(*prepare->absent));
    for (unsigned i = 0; prepare->absent != NULL && i < joined->nodes; i++) {
        struct absent *absent =
            joined->since[i] == SINCE_UNKNOWN ? absent_find(job, joined->node[i]) : NULL;
        if (absent == NULL || absent->spoiled) {
            continue;
        }
        prepare->absent[prepare->n_absent] = absent_message(absent);
        if (prepare->absent[prepare->n_absent] == NULL) {
            return false;
        }
        prepare->n_absent++;
    }
    return prepare->absent != NULL;
}

void absent_drop_message(Adtopk__PeerPrepare *prepare)
{
    for (size_t i = 0; i < prepare->n_absent; i++) {
        free(prepare->absent[i]);
    }
    free(prepare->absent);
    prepare->absent = NULL;
    prepare->n_absent = 0;
}
