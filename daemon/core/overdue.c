#include "daemon/core/overdue.h"

#include <stdio.h>

#include "daemon/compute/launch.h"
#include "daemon/compute/work.h"
#include "daemon/core/waiting.h"
#include "daemon/job/job_fail.h"
#include "daemon/job/job_state.h"
#include "daemon/job/machine.h"
#include "daemon/job/members.h"

#define BUCKET_TEXT_SIZE 32

/* Whether the member waits only for this node's part of the present step or operation. This node
 * has sent that part, unless its ranks have not called the operation. If the member waits for a
 * part of an earlier one, this node's link is at fault. */
static bool overdue_waits_for_us(const struct job *job, const struct waiting *told)
{
    const uint64_t next = told->operation ? job->store->ops_done : step_number(job);
    const bool sent = !told->operation || job->op.round.machine.state != ROUND_COLLECT;

    return told->kind == WAIT_FRAME && told->node == job->core->config.node &&
           told->number >= next + (sent ? 0 : 1);
}

/* Whether a message, of which the first bytes are here, is a frame of the job's run. */
static bool overdue_is_ours(const void *context, const uint8_t *bytes, size_t size)
{
    const struct job *job = context;
    struct payload_header header;

    return payload_peek(&header, bytes, size, NULL) == ADTOPK_OK && header.run == job->run.id;
}

/* A number that changes with every byte of the job's frames that the member sends or takes. */
static uint64_t overdue_moved(const struct job *job, const struct member *member)
{
    const struct links *links = job->core->links;

    return member->bytes.frames + links_begun(links, member->node, overdue_is_ours, job) -
           links_queued(links, member->node, job->number);
}

static void overdue_note_excuse(struct job *job, struct member *member)
{
    const struct waiting *told = waiting_heard(job, member);
    uint64_t moved = overdue_moved(job, member);

    if (moved != member->bytes.moved || !job_peer_is_up(job, member->node) ||
        (told != NULL && !overdue_waits_for_us(job, told))) {
        member->excused_us = job->core->now_us;
    }
    member->bytes.moved = moved;
}

/* Since when the node owes its part without an excuse. */
static uint64_t overdue_since(const struct job *job, const struct round *round, uint16_t node)
{
    uint64_t excused_us = members_find(job, node)->excused_us;
    uint64_t since_us =
        round->since_us > job->waits.moved_us ? round->since_us : job->waits.moved_us;

    return since_us > excused_us ? since_us : excused_us;
}

static void overdue_check_round(struct job *job, const struct round *round)
{
    int node = round_late_node(round);
    char bucket[BUCKET_TEXT_SIZE] = "";

    if (node < 0 || job_ended(job) || !job_peer_is_up(job, (uint16_t)node) ||
        job->core->now_us - overdue_since(job, round, (uint16_t)node) <
            job->plan->policy.round_timeout_us) {
        return;
    }
    if (!round->op) {
        (void)snprintf(bucket, sizeof(bucket), "bucket %u of ", round->bucket);
    }
    job_fail_with(job, ADTOPK_ERR_TIMEOUT,
        "job '%s': node %d is up, but its part of %s%s %llu did not come within round_timeout, "
        "%llu s",
        job->key.name, node, bucket, round->op ? "operation" : "step",
        (unsigned long long)round_number(round),
        (unsigned long long)(job->plan->policy.round_timeout_us / 1000000));
}

void overdue_check(struct job *job)
{
    work_check_engine(&job->step.settle);
    work_check_engine(&job->lending.work);
    if (job->machine.state != JOB_ACTIVE) {
        return;
    }
    for (unsigned i = 0; i < job->members; i++) {
        overdue_note_excuse(job, job->member[i]);
    }
    for (uint32_t r = 0; r < job->plan->rounds; r++) {
        overdue_check_round(job, &job->plan->round[r]);
        work_check_engine(&job->plan->round[r].work);
        launch_check(&job->plan->round[r]);
    }
    overdue_check_round(job, &job->op.round);
}

void overdue_forgive(struct job *job)
{
    for (unsigned i = 0; i < job->members; i++) {
        job->member[i]->excused_us = job->core->now_us;
    }
}
