/*
 * The global selection of a fused pass. It guesses a lower bound of the k-th magnitude from the
 * last turn or a sample, and selects exactly among the candidates that reach the bound. Internal to
 * kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_BRACKET_H
#define ADTOPK_KERNELS_BRACKET_H

#include "kernels/cpu/fused.h"

/** Entries that each range's list of candidates holds. */
size_t bracket_capacity(uint64_t n, uint64_t k, unsigned ranges);

/** Sets pass->least, by pass->hints[0] or a sample. False if none leaves a small set of candidates.
 */
bool bracket_guess(struct fused *pass);

/** Selects pass->k entries among the candidates of all ranges into pass->out, and keeps the
 * bound for the next turn in pass->hints[0]. False if the guess was wrong. */
bool bracket_select(struct fused *pass);

#endif
