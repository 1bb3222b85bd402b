/*
 * Verification: does the ledger of every tensor hold? What came in must be what was applied plus
 * what is in the residual. The core takes the three at one moment, on a worker, while no other
 * compute touches the residuals; whoever asked compares them, because how much rounding to allow
 * is for them to say (inspect.h).
 */
#include "daemon/core/model.h"

enum adtopk_status verify_request(struct core *core, const struct event *event, struct error *err)
{
    struct job *job = job_by_number(core, event->verify.job);

    if (job == NULL || job->view == 0) {
        return error_set(
            err, ADTOPK_ERR_STATE, "the job is not running: there is nothing to verify");
    }
    if (job->verify != NULL) {
        return error_set(err, ADTOPK_ERR_STATE, "job '%s' is just being verified", job->key.name);
    }
    job->verify = ticket_create(event->verify.ticket);
    if (job->verify == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory to verify job '%s'", job->key.name);
    }
    verify_try(job);
    return ADTOPK_OK;
}

static void verified(struct work *work)
{
    struct job *job = work->job;

    job->verifying = false;
    for (uint32_t t = 0; t < job->tensors; t++) {
        job->tensor[t].verified = job->tensor[t].found; /* the next one must not show half done */
        job->tensor[t].verified_step = step_number(job);
    }
    ticket_answer(job, &job->verify,
        &(struct action){.type = ACTION_VERIFIED, .number = step_number(job)}, NULL);
    step_start(job);
}

void verify_try(struct job *job)
{
    uint64_t bytes = job->counters.elements * sizeof(float);

    if (job->verify == NULL || job->verifying || job->computing > 0 ||
        job->machine.state != JOB_ACTIVE) {
        return;
    }
    job->verifying = true;
    core_compute(&job->verification, work_verify, verified, bytes);
}

void verify_drop(struct job *job, const struct error *error)
{
    ticket_answer(job, &job->verify, &(struct action){.type = ACTION_VERIFIED}, error);
}
