/*
 * The nodes' residuals, in f32 or bf16.
 */
#ifndef ADTOPK_RESIDUAL_H
#define ADTOPK_RESIDUAL_H

#include "daemon/core/model.h"

/* Opens the plan's STORE_RESIDUALS: that in use, or another one if its residuals have other types,
 * which residual_convert() fills. */
enum adtopk_status residual_open(struct job *job, struct plan *plan, struct error *err);
void residual_drop_other(struct job *job); /* the part that the plan in force does not use */
/* Fills the next plan's residual of a tensor, if it is another one. Repeatable. */
void residual_convert(const struct job *job, uint32_t tensor);
/* The node's elements, or a local rank's, in f32. Carries of bf16 (kernels/cpu/rounded.h) are added
 * to some of them: the ledger's sums stay. */
void residual_copy(const struct job *job, uint32_t tensor, unsigned rank, float *out);
/* sums += the ledger's sums of a residual; returns the sum of its magnitudes. */
double residual_sums(const struct job *job, uint32_t tensor, unsigned rank, double sums[2]);

#endif
