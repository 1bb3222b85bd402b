/*
 * A sparse list: positions in strictly ascending order, each with its value.
 */
#ifndef ADTOPK_SPARSE_H
#define ADTOPK_SPARSE_H

#include <stddef.h>
#include <stdint.h>

struct sparse {
    uint32_t *position; /* strictly ascending positions of a view */
    float *value;
    size_t count;
    size_t capacity; /* entries that both arrays can hold; they belong to whoever made the list */
};

/** The index of the first entry at `position` or above; `count` if there is none. */
static inline size_t sparse_find(const struct sparse *list, uint64_t position)
{
    size_t low = 0, high = list->count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (list->position[middle] < position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

#endif
