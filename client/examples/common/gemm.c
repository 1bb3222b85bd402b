#include "gemm.h"

#include <string.h>

/* The block of C that stays in registers while its products are added. */
enum { BLOCK_ROWS = 4, BLOCK_COLS = 8, LANES = 4 };

typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

struct operands {
    size_t n;
    size_t k;
    const float *a;
    size_t a_row;
    size_t a_col;
    const float *b;
    float *c;
};

/* A block stays in registers. The vector type of gcc and clang makes sure of it; gcc 12 does not
 * get there from plain arrays. Every lane is an entry of C of its own, so no sum changes its order.
 */
static void gemm_block(const struct operands *op, size_t row, size_t col)
{
    lanes sum[BLOCK_ROWS][BLOCK_COLS / LANES];
    const size_t n = op->n, a_row = op->a_row;
    const float *a = op->a + row * a_row;
    const float *b = op->b + col;
    float *c = op->c + row * n + col;

    for (size_t i = 0; i < BLOCK_ROWS; i++) {
        memcpy(sum[i], c + i * n, sizeof sum[i]);
    }
    for (size_t p = op->k; p > 0; p--, a += op->a_col, b += n) {
        lanes right[BLOCK_COLS / LANES];
        memcpy(right, b, sizeof right);
        for (size_t i = 0; i < BLOCK_ROWS; i++) {
            for (size_t j = 0; j < BLOCK_COLS / LANES; j++) {
                sum[i][j] += a[i * a_row] * right[j];
            }
        }
    }
    for (size_t i = 0; i < BLOCK_ROWS; i++) {
        memcpy(c + i * n, sum[i], sizeof sum[i]);
    }
}

/* What is left at the right and lower edge. */
static void gemm_edge(
    const struct operands *op, size_t row, size_t rows, size_t col_begin, size_t col_end)
{
    for (size_t i = row; i < row + rows; i++) {
        float *c = op->c + i * op->n;
        for (size_t p = 0; p < op->k; p++) {
            float a = op->a[i * op->a_row + p * op->a_col];
            const float *b = op->b + p * op->n;
            for (size_t j = col_begin; j < col_end; j++) {
                c[j] += a * b[j];
            }
        }
    }
}

void gemm_add(size_t m, size_t n, size_t k, const float *a, size_t a_row, size_t a_col,
    const float *b, float *c)
{
    const struct operands op = {
        .n = n, .k = k, .a = a, .a_row = a_row, .a_col = a_col, .b = b, .c = c};
    const size_t full_rows = m - m % BLOCK_ROWS;
    const size_t full_cols = n - n % BLOCK_COLS;

    for (size_t row = 0; row < full_rows; row += BLOCK_ROWS) {
        for (size_t col = 0; col < full_cols; col += BLOCK_COLS) {
            gemm_block(&op, row, col);
        }
        gemm_edge(&op, row, BLOCK_ROWS, full_cols, n);
    }
    gemm_edge(&op, full_rows, m - full_rows, 0, n);
}
