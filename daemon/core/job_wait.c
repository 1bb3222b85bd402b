/*
 * How long a job waits. When its patience ends, it fails with a sentence that names the reason. The
 * node of a late rank is the first to know its name, so other nodes wait a little longer.
 */
#include "daemon/core/job_wait.h"

#include "daemon/compute/successor.h"
#include "daemon/core/waiting.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/loss.h"
#include "daemon/job/machine.h"
#include "daemon/job/members.h"
#include "daemon/job/newcomers.h"

#define RETRY_US 10000u /* time until the job repeats an action that failed for want of memory */

/* When the step or operation under way began; 0: there is none. */
static uint64_t busy_since(const struct job *job)
{
    uint64_t step = job->step.since_us, op = job->op.since_us;

    return step == 0 || (op != 0 && op < step) ? op : step;
}

/* The moment from which the job waits now, and how long by the policy. Without a key it does not
 * wait. */
static struct policy_limit patience_of_state(const struct job *job, uint64_t *since_us)
{
    const struct policy *policy = &job->plan->policy;
    const struct policy_limit wait = {"wait_limit", policy->wait_limit_us};
    const struct policy_limit push = {"push_timeout", policy->push_timeout_us};
    const struct rank *vacant = successor_vacant(job);

    if (vacant != NULL) {
        *since_us = vacant->vacancy.since_us;
        return wait;
    }
    if (job->machine.state != JOB_ACTIVE) {
        *since_us = job->waits.forming_since_us;
        return job->view == 0 ? newcomers_patience(job) : wait;
    }
    if (job->registering.since_us != 0) {
        *since_us = job->registering.since_us;
        return (struct policy_limit){"join_timeout", policy->join_timeout_us};
    }
    *since_us = busy_since(job) != 0 ? busy_since(job) : job->ending.left_since_us;
    return *since_us != 0 ? push : (struct policy_limit){.key = NULL};
}

/* When the job's patience ends, and the limit that ends it; UINT64_MAX: it does not wait. */
static uint64_t patience(const struct job *job, struct policy_limit *limit)
{
    const uint64_t wait_us = job->plan->policy.wait_limit_us;
    uint64_t due = UINT64_MAX, since = 0;

    if (job_ended(job) || newcomers_are_in_doubt(job)) {
        return due; /* a doubt ends soon, and has the better reason */
    }
    *limit = patience_of_state(job, &since);
    if (limit->key != NULL) {
        due = since + limit->us;
        if (successor_vacant(job) == NULL && waiting_hears_vacant(job)) {
            due += wait_us;
        }
    }
    if (job->waits.lost_since_us != 0 && waiting_lost_node(job) >= 0 &&
        job->waits.lost_since_us + wait_us < due) {
        due = job->waits.lost_since_us + wait_us;
        *limit = (struct policy_limit){"wait_limit", wait_us};
    }
    return due;
}

/* The extra time of a node that knows no culprit. The patience of the late rank's node ends at
 * about the same moment, and that node knows the rank. */
static uint64_t grace(const struct job *job)
{
    return (job->registering.since_us != 0 ? job->plan->policy.join_timeout_us
                                           : job->plan->policy.push_timeout_us) /
           4;
}

uint64_t job_deadline(const struct job *job)
{
    struct policy_limit limit;
    uint64_t due = patience(job, &limit);
    const bool looks = !job_ended(job) && loss_may_matter(job);
    const uint64_t shrink = looks ? loss_deadline(job) : UINT64_MAX;

    if (job->ending.untold) {
        return job->core->now_us + RETRY_US;
    }
    due = due <= job->core->now_us ? due + grace(job) : due;
    return due < shrink ? due : shrink;
}

void job_check_time(struct job *job)
{
    struct policy_limit limit;
    uint64_t due = patience(job, &limit);
    char text[ERROR_TEXT_SIZE / 2];
    struct waiting waiting;
    bool missing;

    if (waiting_lost_node(job) < 0) {
        job->waits.lost_since_us = 0;
    }
    if (job->core->now_us < due ||
        (job->machine.state == JOB_ACTIVE && !waiting_is_culprit(job) &&
            waiting_lost_node(job) < 0 && job->core->now_us < due + grace(job))) {
        return;
    }
    waiting = waiting_find(job);
    job->ending.alone |=
        waiting.kind == WAIT_VACANT && waiting.node == (int32_t)job->core->config.node;
    missing = waiting.kind == WAIT_FORMING && job->run.id == 0 &&
              members_missing_ranks(job, text, sizeof(text));
    job_fail_with(job, ADTOPK_ERR_TIMEOUT, "job '%s' waited longer than %s, %.10g s, for %s%s",
        job->key.name, limit.key, (double)limit.us / 1e6,
        waiting_text(job, &waiting, text, sizeof(text)),
        missing ? "; ranks of another user would be of another job" : "");
}
