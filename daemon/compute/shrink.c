/*
 * Jobs that go on without nodes that are lost, under the policy on_peer_loss "shrink".
 *
 * The happy path: a node does not answer, its daemon restarted and its ranks do not return, or it
 * says that its part of the job has ended. After `shrink_after` seconds, or at once if it can never
 * come back, every other node drops it. The lowest of them proposes a view without it
 * (core/agree/coordinate.c). From there it is a view change like any other: rounds that some member
 * delivered are completed everywhere from its copy, with what the lost node contributed. The others
 * are made again without it, and the mean is over the ranks that are left.
 *
 * What can go wrong:
 * - The network is cut: ../job/views.h says which side may go on. The other side waits. When it
 *   reaches the others again, they tell it that they went on, and its part of the job ends.
 * - The node comes back before the view begins: the coordinator proposes all of them again.
 * - Nodes disagree about who is lost: the proposal with the highest number wins, or none has enough
 *   members. Whoever is left out and lives hears of it as above.
 * - A daemon restarts meanwhile: joins tell it the known view, so it knows for whom not to wait.
 * - Too few nodes are left: the job waits until `wait_limit`. It ends at once if none that is
 *   missing can come back.
 *
 * What the lost node had in its residuals is lost. `verify` compares the sums of each node on its
 * own, so it still finds every gradient of the nodes that are left.
 */
#include "daemon/compute/shrink.h"

#include <stdio.h>

#include "daemon/compute/planning.h"
#include "daemon/compute/results.h"
#include "daemon/job/former.h"
#include "daemon/job/job_state.h"
#include "daemon/job/members.h"
#include "daemon/job/notes.h"

#define NODES_TEXT 80

/* The nodes that are left out, as "node 3" or "nodes 3, 5, 6 and 2 more". */
static void shrink_text(const struct job *job, char text[NODES_TEXT])
{
    unsigned count = 0, out = job->in_force.nodes - job->agreement.members.nodes;
    int used = snprintf(text, NODES_TEXT, "node%s", out > 1 ? "s" : "");

    for (unsigned i = 0; i < job->in_force.nodes && count < 4; i++) {
        if (membership_index(&job->agreement.members, job->in_force.node[i]) < 0) {
            used += snprintf(text + used, (size_t)(NODES_TEXT - used), "%s %u",
                count++ > 0 ? "," : "", job->in_force.node[i]);
        }
    }
    if (out > count) {
        (void)snprintf(text + used, (size_t)(NODES_TEXT - used), " and %u more", out - count);
    }
}

void shrink_take(struct job *job)
{
    char text[NODES_TEXT];

    if (job->in_force.nodes > 0) {
        shrink_text(job, text);
        core_warn(job->core,
            "job '%s' goes on without %s from step %llu: %u of its %u ranks are left",
            job->key.name, text, (unsigned long long)step_number(job), job->run.ranks,
            job->run.world_size);
    }
    former_leave_out(job, &job->agreement.members);
    membership_replace(&job->in_force, &job->agreement.members);
    members_keep(job, &job->in_force);
    results_rescale(job);
    planning_forget(job);
    planning_begin(job);
    job->run.carrying.left_out = true; /* a carrier's group has other members */
}
