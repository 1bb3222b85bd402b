/*
 * A budget: how many bits the contribution of a tensor may take per element. The density follows.
 *
 * A turn of density d takes d (v + i) bits per element. A value has v bits, with its share of a
 * block's scales. A position has i bits, the entropy of entries that may be anywhere:
 *
 *     d i = -d log2(d) - (1 - d) log2(1 - d)
 *
 * which the payload's best encoding exceeds by some 2%. Headers are not counted. With a warm-up the
 * budget is the mean over the turns of the training (total_turns), those of the warm-up included.
 *
 * Pure, and the same bits on every machine: any thread may call it.
 */
#ifndef ADTOPK_BUDGET_H
#define ADTOPK_BUDGET_H

#include <stdbool.h>

#include "daemon/policy/policy.h"
#include "proto/error.h"

#define BUDGET_MAX 64.0 /* bits per element */

/** Bits per element of a turn of this density, in (0, 1]. */
double budget_bits(double density, enum payload_value values);

/** Reads "as 1% bf16", the bits that this density takes with these values; 0 if it is no such text.
 */
double budget_read(const char *text);

/**
 * The density that a policy's budget leaves: the least whose bits reach the budget, 1 if there is
 * none. 0 if there is none of at least 1e-6, or if there is
 * a warm-up and total_turns is not known.
 */
double budget_density(const struct tensor_policy *policy);

/** OK, or ADTOPK_ERR_POLICY and why the policy has no density. */
enum adtopk_status budget_check(const struct tensor_policy *policy, struct error *err);

#endif
