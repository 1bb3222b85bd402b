/*
 * What a policy leaves to the planner: which choices (choices.h) a tensor has, and what each makes
 * of its policy. Only what is "auto" is ever touched.
 */
#ifndef ADTOPK_CHOOSING_H
#define ADTOPK_CHOOSING_H

#include "daemon/core/choices.h"
#include "daemon/core/policy.h"

/* How a tensor travels under its policy where no plan says otherwise (policy_settled()). */
enum choosing_way {
    CHOOSING_DENSE,  /* dense: it is too small for anything else, or its sparsifier is "dense" */
    CHOOSING_LISTS,  /* sparse, by a sparse collective */
    CHOOSING_VALUES, /* sparse, as values at known positions, by a dense collective */
};

/**
 * The policy under a choice. False if the tensor does not have this choice: a key that is not
 * "auto" says otherwise, or combination.h does. A tensor without a choice has the one that comes
 * nearest to how it travels, and its policy stays as it is.
 */
bool choosing_apply(const struct tensor_policy *policy, enum choosing_way way, enum choice choice,
    unsigned nodes, struct tensor_policy *chosen);

/** All that it has: one bit, 1 << choice, each; at least one. nodes: 0 if they are not known. */
uint32_t choosing_allowed(
    const struct tensor_policy *policy, enum choosing_way way, unsigned nodes);

/** The choice that comes nearest to how it travels without a plan; it is allowed. */
enum choice choosing_nearest(const struct tensor_policy *policy, enum choosing_way way);

#endif
