/*
 * The planner (planner.h) of a job, on its coordinator. A decision among thousands of tensors takes
 * milliseconds. So it is a compute, and the core's thread goes on meanwhile.
 *
 * Only the core's thread calls these functions. While a decision runs, only its compute uses
 * planner, estimates and in_force.
 */
#ifndef ADTOPK_PLANNING_H
#define ADTOPK_PLANNING_H

#include "daemon/job/model.h"
#include "daemon/planner/planner.h"

#define PLANNING_SHOWN 16u

struct planning {
    struct work work; /* first */
    struct planner *planner;
    struct estimates estimates; /* of all nodes, for the decision */
    struct choices in_force;
    uint32_t version; /* version of the policy in force when the decision began */
    bool running;
    bool dropped;                     /* nobody needs the result any more */
    struct planner_decision decision; /* the result in the end; its plan is `wanted` */
    struct choices wanted;
    double predicted_us; /* for that plan */
    /* The best candidates, for reports, while a decision runs; their plans are `plan`. */
    struct planner_candidate shown[PLANNING_SHOWN];
    struct choices plan[PLANNING_SHOWN];
    unsigned shown_count;
};

/** Makes a planning for the policy in force; NULL without memory. The job owns it. */
struct planning *planning_create(struct job *job);
void planning_free(struct planning *planning);

/** Call it when another policy, or the first, is in force. Measuring and planning begin anew if the
 * policy leaves choices to the planner. A plan that the planner itself proposed changes nothing. */
void planning_begin(struct job *job);

/** Ends a planning for a policy that is no longer in force, once its decision has ended. */
void planning_drop(struct job *job);

/** Drops it, and all measurements: they were made with other tensors or other nodes. */
void planning_forget(struct job *job);

/** Decides with the estimates and the plan in force. Calls done() when that is over. */
void planning_decide(struct planning *planning, void (*done)(struct work *work));

/** The index-th candidate of the last decision, best first; false after the last. */
bool planning_candidate(
    const struct planning *planning, unsigned index, struct planner_candidate *candidate);

#endif
