#include "gemm.h"

#include <string.h>

/* A block of C stays in registers while the products of DEPTH columns of A are added to it. The
 * part of B that it needs, a panel, stays in the first-level cache for all blocks below. */
enum { BLOCK_ROWS = 4, BLOCK_COLS = 16, DEPTH = 256, LANES = 4, WIDE_LANES = 8 };

/* Vectors that may lie anywhere among floats. */
typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float))));

struct block {
    size_t depth;
    const float *a; /* A's first entry, and where the next row and column are */
    size_t row;
    size_t col;
    const float (*panel)[BLOCK_COLS];
    float *c;
    size_t c_row;
};

/* The vector types of gcc and clang make sure that sums stay in registers; gcc 12 does not get
 * there from plain arrays. Every lane is an entry of C of its own, so no sum changes its order. */
static void gemm_half(const struct block *block, size_t first)
{
    enum { VECTORS = BLOCK_COLS / LANES / 2 };
    lanes sum[BLOCK_ROWS][VECTORS];
    const float *a = block->a;

    for (size_t i = 0; i < BLOCK_ROWS; i++) {
        for (size_t j = 0; j < VECTORS; j++) {
            sum[i][j] = *(const lanes *)(block->c + i * block->c_row + first + j * LANES);
        }
    }
    for (size_t p = 0; p < block->depth; p++, a += block->col) {
        const lanes *right = (const lanes *)(block->panel[p] + first);
        for (size_t i = 0; i < BLOCK_ROWS; i++) {
            for (size_t j = 0; j < VECTORS; j++) {
                sum[i][j] += a[i * block->row] * right[j];
            }
        }
    }
    for (size_t i = 0; i < BLOCK_ROWS; i++) {
        for (size_t j = 0; j < VECTORS; j++) {
            *(lanes *)(block->c + i * block->c_row + first + j * LANES) = sum[i][j];
        }
    }
}

static void gemm_block_plain(const struct block *block)
{
    gemm_half(block, 0);
    gemm_half(block, BLOCK_COLS / 2);
}

#ifdef __x86_64__
typedef float wide_lanes
    __attribute__((vector_size(WIDE_LANES * sizeof(float)), aligned(sizeof(float))));

__attribute__((target("avx2"))) static void gemm_block_avx2(const struct block *block)
{
    enum { VECTORS = BLOCK_COLS / WIDE_LANES };
    wide_lanes sum[BLOCK_ROWS][VECTORS];
    const float *a = block->a;

    for (size_t i = 0; i < BLOCK_ROWS; i++) {
        for (size_t j = 0; j < VECTORS; j++) {
            sum[i][j] = *(const wide_lanes *)(block->c + i * block->c_row + j * WIDE_LANES);
        }
    }
    for (size_t p = 0; p < block->depth; p++, a += block->col) {
        const wide_lanes *right = (const wide_lanes *)(block->panel[p]);
        for (size_t i = 0; i < BLOCK_ROWS; i++) {
            for (size_t j = 0; j < VECTORS; j++) {
                sum[i][j] += a[i * block->row] * right[j];
            }
        }
    }
    for (size_t i = 0; i < BLOCK_ROWS; i++) {
        for (size_t j = 0; j < VECTORS; j++) {
            *(wide_lanes *)(block->c + i * block->c_row + j * WIDE_LANES) = sum[i][j];
        }
    }
}

static void gemm_block(const struct block *block)
{
    if (__builtin_cpu_supports("avx2")) {
        gemm_block_avx2(block);
    } else {
        gemm_block_plain(block);
    }
}
#else
static void gemm_block(const struct block *block)
{
    gemm_block_plain(block);
}
#endif

/* At the right and lower edge: uses copies, whose lanes beyond C are dropped. */
static void gemm_edge(struct block block, size_t rows, size_t cols)
{
    float a[DEPTH][BLOCK_ROWS] = {0}, c[BLOCK_ROWS][BLOCK_COLS] = {0};
    const struct block whole = {.depth = block.depth,
        .a = a[0],
        .row = 1,
        .col = BLOCK_ROWS,
        .panel = block.panel,
        .c = c[0],
        .c_row = BLOCK_COLS};

    for (size_t i = 0; i < rows; i++) {
        for (size_t p = 0; p < block.depth; p++) {
            a[p][i] = block.a[i * block.row + p * block.col];
        }
        memcpy(c[i], block.c + i * block.c_row, cols * sizeof(float));
    }
    gemm_block(&whole);
    for (size_t i = 0; i < rows; i++) {
        memcpy(block.c + i * block.c_row, c[i], cols * sizeof(float));
    }
}

static void gemm_pack(struct gemm_matrix b, size_t depth, size_t cols, float (*panel)[BLOCK_COLS])
{
    if (b.col == 1) {
        for (size_t p = 0; p < depth; p++) {
            memcpy(panel[p], b.values + p * b.row, cols * sizeof(float));
        }
        return;
    }
    for (size_t j = 0; j < cols; j++) {
        for (size_t p = 0; p < depth; p++) {
            panel[p][j] = b.values[p * b.row + j * b.col];
        }
    }
}

static size_t gemm_least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Adds the products of `depth` columns of A to some columns of C. */
static void gemm_panel(size_t m, size_t cols, struct block block)
{
    const float *a = block.a;
    float *c = block.c;

    for (size_t row = 0; row < m; row += BLOCK_ROWS) {
        const size_t rows = gemm_least(BLOCK_ROWS, m - row);
        block.a = a + row * block.row;
        block.c = c + row * block.c_row;
        if (rows == BLOCK_ROWS && cols == BLOCK_COLS) {
            gemm_block(&block);
        } else {
            gemm_edge(block, rows, cols);
        }
    }
}

void gemm_add(size_t m, size_t n, size_t k, struct gemm_matrix a, struct gemm_matrix b, float *c)
{
    float panel[DEPTH][BLOCK_COLS] = {0};

    for (size_t p = 0; p < k; p += DEPTH) {
        const size_t depth = gemm_least(DEPTH, k - p);
        for (size_t col = 0; col < n; col += BLOCK_COLS) {
            const size_t cols = gemm_least(BLOCK_COLS, n - col);
            const struct gemm_matrix part = {b.values + p * b.row + col * b.col, b.row, b.col};
            gemm_pack(part, depth, cols, panel);
            gemm_panel(m, cols,
                (struct block){.depth = depth,
                    .a = a.values + p * a.col,
                    .row = a.row,
                    .col = a.col,
                    .panel = (const float(*)[BLOCK_COLS])panel,
                    .c = c + col,
                    .c_row = n});
        }
    }
}
