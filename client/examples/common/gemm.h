/* Matrix product for small dense matrices: the one hot loop of the example. */
#ifndef EXAMPLE_GEMM_H
#define EXAMPLE_GEMM_H

#include <stddef.h>

/* A matrix whose entry [i][j] lies at `values[i * row + j * col]`: a transposed one has its strides
 * exchanged. */
struct gemm_matrix {
    const float *values;
    size_t row;
    size_t col;
};

/* C += A B, with A m x k, B k x n and C m x n, row by row without gaps.
 *
 * C must not overlap A or B. Every entry of C adds its k products in the order of p. So the result
 * depends neither on the blocking nor on the width of the processor's vectors. Thread-safe. */
void gemm_add(size_t m, size_t n, size_t k, struct gemm_matrix a, struct gemm_matrix b, float *c);

#endif
