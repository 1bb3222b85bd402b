#include "daemon/job/due.h"

#include "daemon/job/job_index.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/members.h"
#include "daemon/job/peer.h"
#include "daemon/job/ticket.h"

uint64_t due_step(const struct job *job)
{
    return job->store != NULL && store_due(job->store) ? job->store->steps_done
                                                       : job->agreement.due.step;
}

uint64_t due_saved_as(const struct job *job)
{
    const uint64_t step = due_step(job);

    return step != 0 ? job->store->base + step : 0;
}

/* Whether there is no checkpoint (0), or a node that has done so many steps has gone past it. */
static bool due_is_over(uint64_t step, uint64_t done)
{
    return step == 0 || step < done;
}

/* Whether somebody waits for a checkpoint of which this node knows no step. */
static bool due_is_wanted(const struct job *job)
{
    return job->agreement.due.tickets != NULL && due_is_over(due_step(job), job->store->steps_done);
}

static void due_ask(struct job *job)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerCheckpointAsk ask = ADTOPK__PEER_CHECKPOINT_ASK__INIT;

    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_CHECKPOINT_ASK;
    message.checkpoint_ask = &ask;
    if (!peer_send_coordinator(job, &job->in_force, &message)) {
        job->agreement.due.asked = true;
    }
}

enum adtopk_status due_request(struct core *core, const struct event *event, struct error *err)
{
    struct job *job = job_by_number(core, event->asked.job);
    struct ticket *ticket;

    if (job == NULL || job->view == 0 || job_ended(job)) {
        return error_set(
            err, ADTOPK_ERR_STATE, "the job is not running: it has no step to save after");
    }
    if (job_is_left(job)) {
        return error_set(err, ADTOPK_ERR_STATE,
            "the ranks of job '%s' on node %u have left: they save nothing more", job->key.name,
            core->config.node);
    }
    if (ticket_count(job->agreement.due.tickets) >= DUE_ASKING_MAX) {
        return error_set(err, ADTOPK_ERR_STATE,
            "%u requests wait for a checkpoint of job '%s' already", DUE_ASKING_MAX, job->key.name);
    }
    ticket = ticket_create(event->asked.ticket);
    if (ticket == NULL) {
        return error_set(
            err, ADTOPK_ERR_MEMORY, "no memory to ask job '%s' for a checkpoint", job->key.name);
    }
    ticket->next = job->agreement.due.tickets;
    job->agreement.due.tickets = ticket;
    due_answer(job);
    if (job->machine.state == JOB_ACTIVE && due_is_wanted(job)) {
        due_ask(job); /* else the commit of the view that is being formed is looked at */
    }
    job_touch(job);
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ views */

void due_tell(const struct job *job, Adtopk__PeerState *state)
{
    state->checkpoint = due_step(job);
    state->wants_checkpoint = due_is_wanted(job);
}

bool due_hear(struct member *member, const Adtopk__PeerState *state)
{
    member->answer.checkpoint = state->checkpoint;
    member->answer.wants_checkpoint = state->wants_checkpoint;
    /* No commit has named a later one. */
    return state->checkpoint <= state->steps_done || state->checkpoint - state->steps_done <= 2;
}

uint64_t due_decide(const struct job *job, uint64_t steps)
{
    uint64_t known = 0;
    bool wanted = false;

    for (unsigned i = 0; i < job->members; i++) {
        const struct member *member = job->member[i];
        if (member_was_there(job, member)) {
            known = member->answer.checkpoint > known ? member->answer.checkpoint : known;
            wanted = wanted || member->answer.wants_checkpoint;
        }
    }
    return wanted && due_is_over(known, steps) ? steps + 1 : known;
}

void due_take(struct job *job, uint64_t step)
{
    job->agreement.due.step = step;
    job->agreement.due.asked = false;
    due_answer(job);
    if (due_is_wanted(job)) {
        due_ask(job); /* a client asked when the state was sent already */
    }
}

/* ------------------------------------------------------------------ the ranks hear of it */

void due_answer(struct job *job)
{
    if (store_due(job->store)) {
        ticket_answer_all(job, &job->agreement.due.tickets,
            &(struct action){.type = ACTION_CHECKPOINT, .number = due_saved_as(job)}, NULL);
    }
}
