/* The trainable tensors of a model, as the exchange, the optimiser and the layers see them. */
#ifndef EXAMPLE_TENSOR_H
#define EXAMPLE_TENSOR_H

#include <stddef.h>
#include <stdint.h>

enum { TENSOR_MAX_DIMS = 4 };

/* One tensor in its native layout: [O, I, kh, kw], [O, I], [V, E] or [O]. */
struct tensor {
    const char *name;
    size_t dims;
    size_t shape[TENSOR_MAX_DIMS];
    float *values; /* the parameters; the model's */
};

/* Called when the gradient of one tensor, a number in the model's order, is complete. A result
 * other than 0 ends the backward pass. */
typedef int (*tensor_ready_fn)(void *context, size_t tensor);

/* Number of elements. */
size_t tensor_size(const struct tensor *tensor);

/* Weights get He's uniform initialisation (He et al. 2015), tensors of one dimension zero; equal
 * seeds give equal bits on every machine. */
void tensors_init(const struct tensor *tensors, size_t count, uint64_t seed);

/* A 64-bit hash (FNV-1a) of the bits of all parameters: equal models have equal hashes. */
uint64_t tensors_hash(const struct tensor *tensors, size_t count);

#endif
