/*
 * The nodes' residuals, in f32 or bf16.
 */
#ifndef ADTOPK_COMPUTE_RESIDUAL_H
#define ADTOPK_COMPUTE_RESIDUAL_H

#include "daemon/job/model.h"

/* Opens the plan's STORE_RESIDUALS: the part in use, or the other part if its residuals have other
 * types. The change of the policy fills that one. If the next plan is of another engine, its parts
 * are opened there, too. */
enum adtopk_status residual_open(struct job *job, struct plan *plan, struct error *err);
/* The bytes of a batch's part, which is there even without tensors. */
uint64_t residual_bytes(const struct job *job, const struct plan *plan, unsigned batch);
/* Drops the parts that the plan in force does not use. */
void residual_drop_other(struct job *job);

#endif
