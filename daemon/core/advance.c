/*
 * Decides what a job does next. No other file does.
 *
 * Handlers note the content of an event, and touch the job. When the event, or one message of it,
 * has been handled, this file asks each touched job in a fixed order what it can do now. The job
 * does the first thing that it can, and is asked again from the beginning, until it can do nothing.
 * So no handler has to know what follows, and an event costs only the jobs that it concerns.
 */
#include "daemon/core/advance.h"

#include "daemon/compute/successor.h"
#include "daemon/core/agree/coordinate.h"
#include "daemon/core/agree/switch.h"
#include "daemon/core/agree/switch_ask.h"
#include "daemon/core/agree/view.h"
#include "daemon/core/job.h"
#include "daemon/core/replan.h"
#include "daemon/core/step.h"
#include "daemon/core/verify.h"

/* Opens the next step, or holds it for the next policy. */
static bool advance_step(struct job *job)
{
    if (job->view == 0 || job->step.machine.state != STEP_IDLE ||
        job->switching.machine.state >= SWITCH_HELD) {
        return false;
    }
    if (switch_hold(job)) {
        step_rest(job);
    } else {
        step_open(job);
    }
    return true;
}

/* Each of these does one thing if it is time for it, and says whether it did. */
static bool (*const advance_order[])(struct job *job) = {
    coordinate_regroup,    /* Nodes were lost or came back, or the policy has changed: a new view
                              may be due. */
    coordinate_anew,       /* All members hold for the next policy, or a checkpoint is asked for. */
    step_settle,           /* Every round is delivered: the step is over. */
    advance_step,          /* The last step is closed. */
    successor_advance,     /* Nothing computes, and a process comes back as a rank that ended. */
    view_catch_up,         /* The step has opened: work that waited for it goes on. */
    view_ready_newcomer,   /* This node has joined and watched: its ranks begin. */
    switch_take_postponed, /* The last change is done everywhere: the waiting one is proposed. */
    job_try_leave,         /* All ranks have left. */
    replan_step,           /* A step was accepted: the coordinator gets its measurements. */
    view_try_answer,       /* Nothing computes any more: the state answers a prepare. */
    verify_try,            /* Nothing computes, and a client waits for a verification. */
};

static void advance_job(struct job *job)
{
    const unsigned count = sizeof(advance_order) / sizeof(advance_order[0]);

    for (unsigned i = 0; i < count && !job_ended(job) && !job->advance.frozen;) {
        i = advance_order[i](job) ? 0 : i + 1;
    }
}

void advance_jobs(struct core *core)
{
    while (core->touched != NULL) {
        struct job *job = core->touched;
        core->touched = job->advance.next;
        job->advance.touched = false;
        advance_job(job);
    }
}
