/*
 * Inputs of kernels, drawn from a seed.
 */
#ifndef ADTOPK_TESTS_CUDA_INPUT_H
#define ADTOPK_TESTS_CUDA_INPUT_H

#include <stdint.h>

#include "kernels/base/dtype.h"
#include "tests/cuda/launch.h"

/* Blocks of a launch, at most. A GPU runs more at a time than this processor does. */
#ifndef INPUT_BLOCKS
#define INPUT_BLOCKS 6
#endif

enum input_kind {
    INPUT_NORMAL,
    INPUT_CONSTANT,
    INPUT_MOSTLY_ZERO,
    INPUT_SORTED,
    INPUT_TIES,
    INPUT_HOT_BLOCK, /* large in one place */
    INPUT_BITS,      /* any bits: infinities, NaN and subnormals are among them */
    INPUT_KINDS
};

/* A stream of random numbers; any value is a seed. */
struct input {
    uint64_t state;
};

uint64_t input_next(struct input *input);
uint64_t input_below(struct input *input, uint64_t bound);

/** Fills n elements. */
void input_fill(
    struct input *input, enum input_kind kind, enum dtype dtype, uint64_t n, void *element);

/** A size of 1 to most, small ones more often, and those beside the end of a chunk. */
uint64_t input_size(struct input *input, uint64_t most);

/** How a kernel is launched. */
struct launch input_launch(struct input *input);

/** Memory of exactly this size that kernels reach, too, or the test ends. input_free() gives it
 * back. */
void *input_memory(uint64_t bytes, int filled);

/** NULL is allowed. */
void input_free(void *memory);

#endif
