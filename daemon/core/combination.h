/*
 * Which sparsifiers, collectives, scopes and values go together.
 */
#ifndef ADTOPK_COMBINATION_H
#define ADTOPK_COMBINATION_H

#include "daemon/core/policy.h"

/** OK, or ADTOPK_ERR_POLICY and the reason. */
enum adtopk_status combination_check(const struct tensor_policy *policy, struct error *err);

#endif
