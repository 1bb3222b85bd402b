/*
 * Where the tail of a distribution begins. The result for the normal distribution is right to about
 * 1e-12 of its value. The one for the gamma distribution is right to 1e-8 for tails of 1e-6 and
 * more, which is a float's resolution. Pure functions; formulas from the Digital Library of
 * Mathematical Functions, chapters 5, 7 and 8.
 */
#ifndef ADTOPK_SPARSIFY_QUANTILE_H
#define ADTOPK_SPARSIFY_QUANTILE_H

/** z such that a standard normal variable exceeds it with probability `tail` in (0, 1). */
double quantile_normal(double tail);

/** x such that a gamma variable of this shape (> 0) and scale 1 exceeds it with probability `tail`
 * in (0, 1). */
double quantile_gamma(double shape, double tail);

#endif
