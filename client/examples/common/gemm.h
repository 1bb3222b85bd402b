/* Matrix product for small dense matrices: the one hot loop of the example. */
#ifndef EXAMPLE_GEMM_H
#define EXAMPLE_GEMM_H

#include <stddef.h>

/* C += A B, with A m x k, B k x n and C m x n.
 *
 * B and C are stored row by row without gaps. A[i][p] lies at a[i * a_row + p * a_col], so that a
 * transposed A is passed with its strides exchanged. C must not overlap A or B. Every entry of C
 * adds its k products in the order of p: the result depends neither on the blocking nor on the
 * width of the vectors that the compiler chose. Thread-safe. */
void gemm_add(size_t m, size_t n, size_t k, const float *a, size_t a_row, size_t a_col,
    const float *b, float *c);

#endif
