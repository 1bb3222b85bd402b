/*
 * The planner (planner.h) of a job at work, on its coordinator. A decision among thousands of
 * tensors takes milliseconds: it is a compute, and the core's thread goes on meanwhile.
 *
 * Only the core's thread calls these. While a decision runs nobody but its compute touches planner,
 * estimates and in_force.
 */
#ifndef ADTOPK_PLANNING_H
#define ADTOPK_PLANNING_H

#include "daemon/job/model.h"
#include "daemon/planner/planner.h"

#define PLANNING_SHOWN 16u

struct planning {
    struct work work; /* first */
    struct planner *planner;
    struct estimates estimates; /* of all nodes: what is decided with */
    struct choices in_force;
    uint32_t version; /* of the policy in force when the decision began */
    bool running;
    bool dropped; /* nobody wants to know what comes of it */
    /* When it is over. decision.plan is `wanted`. */
    struct planner_decision decision;
    struct choices wanted;
    double predicted_us; /* of that */
    /* The best candidates, for people, while a decision runs; their plans are `plan`. */
    struct planner_candidate shown[PLANNING_SHOWN];
    struct choices plan[PLANNING_SHOWN];
    unsigned shown_count;
};

/** For the policy in force. NULL without memory. Belongs to the job: job->figures.planning. */
struct planning *planning_create(struct job *job);
void planning_free(struct planning *planning);

/** Another policy, or the first, is in force: measuring and planning begin anew where it leaves
 * anything to the planner. A plan that the planner itself has proposed changes nothing. */
void planning_begin(struct job *job);

/** It is for a policy that is no longer in force: it ends, once its decision has. */
void planning_drop(struct job *job);

/** Decides with the estimates and the plan in force; done() is called when that is over. */
void planning_decide(struct planning *planning, void (*done)(struct work *work));

/** The index-th candidate of the last decision, best first; false behind the last. */
bool planning_candidate(
    const struct planning *planning, unsigned index, struct planner_candidate *candidate);

#endif
