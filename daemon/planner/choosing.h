/*
 * The choices that a policy leaves to the planner: which ones (choices.h) a tensor has, and how
 * each changes its policy. Only keys that are "auto" are ever changed.
 */
#ifndef ADTOPK_CHOOSING_H
#define ADTOPK_CHOOSING_H

#include "daemon/policy/choices.h"
#include "daemon/policy/policy.h"

/* How a tensor is sent under its policy if no plan says otherwise (policy_settled()). */
enum choosing_way {
    CHOOSING_DENSE,  /* dense: it is too small for anything else, or its sparsifier is "dense" */
    CHOOSING_LISTS,  /* sparse, by a sparse collective */
    CHOOSING_VALUES, /* sparse, as values at known positions, by a dense collective */
};

/**
 * The policy under a choice. Returns false if the tensor does not have this choice, because a key
 * that is not "auto" or combination.h excludes it. A tensor without a choice gets the one that is
 * nearest to how it is sent, and its policy stays as it is.
 */
bool choosing_apply(const struct tensor_policy *policy, enum choosing_way way, enum choice choice,
    unsigned nodes, struct tensor_policy *chosen);

/** All that it has: one bit, 1 << choice, each; at least one. nodes: 0 if they are not known. */
uint32_t choosing_allowed(
    const struct tensor_policy *policy, enum choosing_way way, unsigned nodes);

/** The choice nearest to how the tensor is sent without a plan; it is allowed. */
enum choice choosing_nearest(const struct tensor_policy *policy, enum choosing_way way);

#endif
