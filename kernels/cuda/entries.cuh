/* Looking up an entry of a list (entries.h). */
#ifndef ADTOPK_KERNELS_ENTRIES_CUH
#define ADTOPK_KERNELS_ENTRIES_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/entries.h"

/* The number of the list's first entry at a position or above; the list's count if there is none.
 */
DEVICE uint64_t entries_from(const struct entries *list, uint64_t position)
{
    uint64_t low = 0;
    uint64_t high = list->count;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        const bool below = list->position[middle] < position;
        low = below ? middle + 1 : low;
        high = below ? high : middle;
    }
    return low;
}

#endif
