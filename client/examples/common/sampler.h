/* Draws batches: which examples each step sees. */
#ifndef EXAMPLE_SAMPLER_H
#define EXAMPLE_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

/* Every epoch goes through a fresh permutation of the examples, which depends only on seed and
 * epoch. Examples that fill no batch are dropped. */
struct sampler;

/* For examples 0..count-1. NULL when there is no memory. 1 <= batch <= count <= 2^32. */
struct sampler *sampler_create(size_t count, size_t batch, uint64_t seed);
void sampler_destroy(struct sampler *sampler);

/* The `batch` examples of step `step`; valid until the next call. The ranks of a job each take
 * their own stretch of the same batch. */
const size_t *sampler_batch(struct sampler *sampler, uint64_t step);

#endif
