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

#endif
