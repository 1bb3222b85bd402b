/*
 * The global selection of a fused pass: a bracket around the k-th magnitude, guessed from a sample,
 * and the exact selection among the candidates that reach it. Internal to kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_BRACKET_H
#define ADTOPK_KERNELS_BRACKET_H

#include "kernels/cpu/fused.h"

/** Entries that each range's list of candidates holds. */
size_t bracket_capacity(uint64_t n, uint64_t k, unsigned ranges);

/** Sets pass->least and pass->bits. False if no bracket leaves a small set of candidates. */
bool bracket_guess(struct fused *pass);

/** Selects pass->k entries among the candidates of all ranges into pass->out. False if the bracket
 * was wrong. */
bool bracket_select(struct fused *pass);

#endif
