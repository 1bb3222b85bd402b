/*
 * Entries dealt to strided fibres, and the fibres' peaks. Internal to kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_DEAL_H
#define ADTOPK_KERNELS_DEAL_H

#include <string.h>

#include "kernels/cpu/select.h"

/* Limits of deal_avx512(): fibres, elements of all of them, entries of the list and of one fibre,
 * and selected entries of one fibre. */
enum { DEAL_NARROW = 16, DEAL_SHORT = 1 << 16, DEAL_LIST = 192, DEAL_ROWS = 32, DEAL_BEST = 16 };

/* Where the entries of a list go. Positions in the list count elements from where the first fibre
 * begins, a position divided by the stride is the element's number in its fibre. */
struct deal {
    uint32_t stride;     /* fibres, which take turns */
    uint32_t length;     /* of each */
    uint32_t first;      /* position of the first fibre's first element in the view */
    uint32_t room;       /* entries of each fibre's part */
    uint32_t *count;     /* that are there */
    struct sparse dealt; /* fibre f's part begins at f * deal_pitch(room) */
    uint64_t k;          /* entries to select of every fibre, above 0 */
    struct sparse out;   /* fibre f's begin at f * k */
    float *last;         /* the k-th magnitudes of fibres that were selected from */
};

/* Entries are stored a vector at a time. */
static inline size_t deal_pitch(uint32_t room)
{
    return (size_t)room + 16;
}

/* peak[i % period] = the largest of itself and the keys of all x[i]. Compiled for the instructions
 * of its caller, like the functions below. */
static inline __attribute__((always_inline)) void deal_peaks_inline(
    const float *x, size_t n, int32_t *peak, size_t period)
{
    for (size_t i = 0; i < n; i += period) {
        const size_t end = n - i < period ? n - i : period;
        for (size_t j = 0; j < end; j++) {
            const int32_t key = (int32_t)select_key(x[i + j]);
            peak[j] = key > peak[j] ? key : peak[j];
        }
    }
}

/* The k largest of every column of x, 0 < k <= rows; best: k + 1 rows, the last one of scratch. */
static inline __attribute__((always_inline)) void deal_columns_inline(
    const int32_t *x, size_t rows, size_t stride, size_t k, int32_t *restrict best)
{
    int32_t *const next = best + k * stride;
    memset(best, 0, k * stride * sizeof *best);
    for (size_t r = 0; r < rows; r++) {
        memcpy(next, x + r * stride, stride * sizeof *next);
        for (size_t i = 0; i < k; i++) {
            int32_t *const place = best + i * stride;
            for (size_t f = 0; f < stride; f++) {
                const int32_t larger = next[f] > place[f] ? next[f] : place[f];
                next[f] = next[f] > place[f] ? place[f] : next[f];
                place[f] = larger;
            }
        }
    }
}

bool deal_avx512(const struct sparse *list, const struct deal *deal, uint32_t *settled);
void deal_peaks_avx512(const float *x, size_t n, int32_t *peak, size_t period);
void deal_columns_avx512(const int32_t *x, size_t rows, size_t stride, size_t k, int32_t *best);

#endif
