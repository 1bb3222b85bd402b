/*
 * Verification checks the ledger of every tensor: the input must be the applied values plus the
 * residual. The core takes the three sums at one moment, on a worker, while no other compute uses
 * the residuals. job/verdict.h compares them, and decides how much rounding is allowed.
 */
#include "daemon/core/verify.h"

#include "daemon/compute/work_job.h"
#include "daemon/core/step.h"
#include "daemon/job/actions.h"
#include "daemon/job/job_index.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/ticket.h"
#include "daemon/job/verified.h"

enum adtopk_status verify_request(struct core *core, const struct event *event, struct error *err)
{
    struct job *job = job_by_number(core, event->asked.job);

    if (job == NULL || job->view == 0) {
        return error_set(
            err, ADTOPK_ERR_STATE, "the job is not running: there is nothing to verify");
    }
    if (job->lending.ticket != NULL) {
        return error_set(err, ADTOPK_ERR_STATE, "job '%s' is just being verified", job->key.name);
    }
    job->lending.ticket = ticket_create(event->asked.ticket);
    if (job->lending.ticket == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory to verify job '%s'", job->key.name);
    }
    job_touch(job);
    return ADTOPK_OK;
}

static void verified(struct work *work)
{
    struct job *job = work->job;

    job->lending.running = false;
    verified_take(job, step_number(job));
    ticket_answer(job, &job->lending.ticket,
        &(struct action){.type = ACTION_VERIFIED, .number = step_number(job)}, NULL);
    step_start(job);
}

bool verify_try(struct job *job)
{
    uint64_t bytes = job->figures.counters.elements * sizeof(float);

    if (job->lending.ticket == NULL || !residuals_are_free(job) ||
        job->machine.state != JOB_ACTIVE) {
        return false;
    }
    job->lending.running = true;
    core_work(&job->lending.work, &work_verify, verified, bytes);
    return true;
}
