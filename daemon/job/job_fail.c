#include "daemon/job/job_fail.h"

#include <stdarg.h>
#include <stdlib.h>

#include "daemon/job/actions.h"
#include "daemon/job/former.h"
#include "daemon/job/machine.h"
#include "daemon/job/newcomers.h"
#include "daemon/job/peer.h"
#include "daemon/job/ticket.h"

void job_drop_failure(struct failure *failure)
{
    if (failure != NULL && --failure->references == 0) {
        free(failure);
    }
}

/* Answers all clients that wait for something about the job. */
static void answer_tickets(struct job *job, const struct error *error)
{
    ticket_answer(job, &job->switching.asked, &(struct action){.type = ACTION_POLICY}, error);
    ticket_answer(job, &job->lending.ticket, &(struct action){.type = ACTION_VERIFIED}, error);
    ticket_answer(
        job, &job->figures.recording.ticket, &(struct action){.type = ACTION_RECORDS}, error);
    ticket_answer_all(
        job, &job->figures.roster.tickets, &(struct action){.type = ACTION_RANKS}, error);
    ticket_answer_all(
        job, &job->agreement.due.tickets, &(struct action){.type = ACTION_CHECKPOINT}, error);
}

void job_end(struct job *job)
{
    struct error error;

    (void)error_set(&error, ADTOPK_ERR_STATE, "job '%s' has ended", job->key.name);
    answer_tickets(job, &error);
    former_note(job, job->in_force.nodes > 0);
    former_note_why(job, "its ranks left");
    job->core->ended++;
    machine_fire(&job->machine, JOB_ON_LEAVE, JOB_ENDED);
}

/* Tells the peers why the job has failed. If memory is too short it does so again at the next
 * event. */
void job_tell_failure(struct job *job)
{
    if (job->ending.untold) {
        job->ending.out_of_memory = false;
        peer_send_fail(job, &job->ending.failure->error);
        job->ending.untold = job->ending.out_of_memory;
    }
}

/* Tells a rank why the job has failed; if its place is vacant, the process that is on its way. */
static void tell_rank(const struct rank *rank)
{
    struct failure *failure = rank->job->ending.failure;

    if (rank->machine.state == RANK_VACANT) {
        rank = rank->vacancy.successor;
    }
    if (rank != NULL && rank->machine.state != RANK_LEFT) {
        failure->references++;
        core_act(rank->job->core, &(struct action){.type = ACTION_FAILED,
                                      .session = rank->session,
                                      .status = failure->error.code,
                                      .error = &failure->error});
    }
}

bool job_goes_on_elsewhere(const struct job *job)
{
    return job->ending.alone && job->plan->policy.grow;
}

void job_fail(struct job *job, const struct error *error, bool tell_peers)
{
    if (newcomers_have_self(job) || newcomers_watch(job)) {
        job->ending.alone = true; /* the others go on without this node */
    }
    if (job_ended(job)) {
        return;
    }
    job->ending.failure->error = *error;
    job->ending.over |= !tell_peers;
    job->ending.untold = tell_peers;
    job_tell_failure(job);
    for (unsigned i = 0; i < job->ranks; i++) {
        tell_rank(job->rank[i]);
    }
    answer_tickets(job, error);
    former_note(job, !job_goes_on_elsewhere(job));
    former_note_why(job, error->text);
    if (job->core->config.failed != NULL) {
        job->core->config.failed(job->core->config.trace_context, job->number);
    }
    job->core->ended++;
    machine_fire(&job->machine, JOB_ON_FAIL, JOB_ENDED);
}

void job_fail_later(struct job *job, const struct error *error, uint64_t steps)
{
    if (job->ending.last_steps == 0 || steps < job->ending.last_steps) {
        job->ending.failure->error = *error;
        job->ending.last_steps = steps;
    }
}

void job_fail_due(struct job *job)
{
    struct error error = job->ending.failure->error;

    if (job->ending.last_steps > 0 && !job_ended(job)) {
        job_fail(job, &error, false);
    }
}

void job_fail_left(
    struct job *job, unsigned node, const char *before, uint64_t number, struct error *err)
{
    (void)error_set(err, ADTOPK_ERR_PEER, "the ranks of node %u left the job before %s %llu", node,
        before, (unsigned long long)number);
    job_fail(job, err, true);
}

void job_fail_with(struct job *job, enum adtopk_status code, const char *format, ...)
{
    struct error error;
    va_list args;

    va_start(args, format);
    (void)error_set_args(&error, code, format, args);
    va_end(args);
    job_fail(job, &error, true);
}

void job_fail_unsent(struct job *job)
{
    if (job->ending.too_long > 0 && !job_ended(job)) {
        job_fail_with(job, ADTOPK_ERR_ARGUMENT,
            "job '%s': a bucket takes a message of %llu bytes on node %u, and the longest has "
            "%llu: give it fewer tensors or a lower density",
            job->key.name, (unsigned long long)job->ending.too_long, job->core->config.node,
            (unsigned long long)job->core->config.links.max_bulk_message);
    }
    if (job->ending.control_too_long > 0 && !job_ended(job)) {
        job_fail_with(job, ADTOPK_ERR_ARGUMENT,
            "job '%s': node %u has to tell the others so much about %u tensors that it takes "
            "%llu bytes, and the longest message has %llu: register fewer tensors",
            job->key.name, job->core->config.node, job->tensors,
            (unsigned long long)job->ending.control_too_long,
            (unsigned long long)job->core->config.links.max_control_message);
    }
    if (job->ending.out_of_memory && !job_ended(job)) {
        job_fail_with(job, ADTOPK_ERR_MEMORY, "job '%s': no memory on node %u to send",
            job->key.name, job->core->config.node);
    }
}
