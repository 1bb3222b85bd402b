/*
 * Entries dealt to strided fibres, and the fibres' peaks. Internal to kernels/cpu.
 */
#ifndef ADTOPK_KERNELS_DEAL_H
#define ADTOPK_KERNELS_DEAL_H

#include "kernels/cpu/select.h"

/* What deal_avx512() takes at most: fibres, and elements of all of them. */
enum { DEAL_NARROW = 16, DEAL_SHORT = 1 << 16 };

/* Where the entries of a list go. Positions in the list count elements from where the first fibre
 * begins, a position divided by the stride is the element's number in its fibre. */
struct deal {
    uint32_t stride;     /* fibres, which take turns */
    uint32_t length;     /* of each */
    uint32_t first;      /* position of the first fibre's first element in the view */
    uint32_t room;       /* entries of each fibre */
    uint32_t *count;     /* of each fibre */
    struct sparse dealt; /* fibre f's entries begin at f * deal_pitch(room) */
};

/* Entries are stored a vector at a time. */
static inline size_t deal_pitch(uint32_t room)
{
    return (size_t)room + 16;
}

/* peak[i % period] = the largest of itself and the keys of all x[i]. Compiled for the instructions
 * of its caller. */
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

bool deal_avx512(const struct sparse *list, const struct deal *deal);
void deal_peaks_avx512(const float *x, size_t n, int32_t *peak, size_t period);

#endif
