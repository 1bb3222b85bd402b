/*
 * The passes over one residual, each at most once a step. kept: NULL for a tensor that is sent
 * dense and has no momentum.
 */
#ifndef ADTOPK_PASS_H
#define ADTOPK_PASS_H

#include "daemon/core/model.h"

/* Adds the gradients (`count`, NULL where there is none), and unless the tensor is sent dense
 * selects into kept->list. */
enum adtopk_status pass_add(struct work *work, uint32_t tensor, unsigned rank,
    const void *const *gradients, unsigned count, struct kept *kept);
/* Takes them out again. */
enum adtopk_status pass_withdraw(struct work *work, uint32_t tensor, unsigned rank,
    const void *const *gradients, unsigned count, struct kept *kept);
/* Takes out what travels of a dense tensor; taken: the ledger's sums of it. */
enum adtopk_status pass_take(struct work *work, uint32_t tensor, double taken[2]);
/* Of a dense tensor whose residual is empty, and stays so: only looks at the gradients, and writes
 * their sum, scaled, to `sum` unless that is NULL. May be repeated. */
void pass_direct(struct work *work, uint32_t tensor, const void *const *gradients, float *sum);
/* ... the ledger's sums of it, and those of the input without it. */
void pass_direct_sums(const struct job *job, uint32_t tensor, double taken[2], double before[2]);
/* Adds the residuals of the other ranks. */
enum adtopk_status pass_join(struct work *work, uint32_t tensor, const void *const *others);

#endif
