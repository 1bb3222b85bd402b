/*
 * Which sparsifiers, collectives, scopes and values go together.
 */
#ifndef ADTOPK_COMBINATION_H
#define ADTOPK_COMBINATION_H

#include "daemon/policy/policy.h"

/** OK, or ADTOPK_ERR_POLICY and the reason. "auto" counts as the setting that holds without a plan.
 */
enum adtopk_status combination_check(const struct tensor_policy *policy, struct error *err);

/** The same of the number of nodes, which a policy does not know. */
enum adtopk_status combination_check_nodes(
    const struct tensor_policy *policy, unsigned nodes, struct error *err);

#endif
