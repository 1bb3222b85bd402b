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
 * What the lost node had in its residuals is lost, and job/declare.h says how much that was.
 * `verify` compares the sums of each node on its own, so it still finds every gradient of the nodes
 * that are left.
 */
#include "daemon/compute/shrink.h"

#include <stdio.h>

#include "daemon/compute/planning.h"
#include "daemon/job/former.h"
#include "daemon/job/job_state.h"
#include "daemon/job/members.h"
#include "daemon/job/newcomers.h"
#include "daemon/job/notes.h"

#define NODES_TEXT 80

/* The nodes of one membership that are not in another, as "node 3" or "nodes 3, 5, 6 and 2 more".
 * False: there are none. */
static bool shrink_text(
    const struct membership *of, const struct membership *without, char text[NODES_TEXT])
{
    char list[NODES_TEXT] = "";
    unsigned count = 0;
    int used = 0;

    for (unsigned i = 0; i < of->nodes; i++) {
        if (membership_index(without, of->node[i]) < 0 && ++count <= 4) {
            used += snprintf(list + used, (size_t)(NODES_TEXT - used), "%s %u",
                count > 1 ? "," : "", of->node[i]);
        }
    }
    if (count > 4) {
        (void)snprintf(list + used, (size_t)(NODES_TEXT - used), " and %u more", count - 4);
    }
    (void)snprintf(text, NODES_TEXT, "node%s%.60s", count > 1 ? "s" : "", list);
    return count > 0;
}

static void shrink_tell(const struct job *job)
{
    const struct membership *now = &job->agreement.members;
    const uint32_t ranks = membership_ranks(now, SINCE_UNKNOWN);
    char text[NODES_TEXT];

    if (shrink_text(&job->in_force, now, text)) {
        core_warn(job->core,
            "job '%s' goes on without %s from step %llu: %u of its %u ranks are left",
            job->key.name, text, (unsigned long long)step_number(job), ranks, job->run.world_size);
    }
    if (shrink_text(now, &job->in_force, text)) {
        core_note(job->core, "job '%s': %s joins from step %llu: %u of its %u ranks are there",
            job->key.name, text,
            (unsigned long long)views_grown_by(job->agreement.views, UINT64_MAX), ranks,
            job->run.world_size);
    }
}

void shrink_take(struct job *job)
{
    if (job->in_force.nodes > 0) {
        shrink_tell(job);
    }
    former_leave_out(job, &job->agreement.members);
    membership_replace(&job->in_force, &job->agreement.members);
    members_keep(job, &job->in_force);
    newcomers_invite_all(job);
    planning_forget(job);
    planning_begin(job);
    job->run.carrying.left_out = true; /* a carrier's group has other members */
}
