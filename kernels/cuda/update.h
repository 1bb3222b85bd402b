/*
 * Updates on a device: UPDATE, NARROW and SUMMED of many tensors at once. The bits are those of
 * kernels/cpu/scatter.h and kernels/cpu/narrow.h.
 *
 * Happy path: update_elements, then update_entries. The first has all elements of the batch, the
 * second all entries; a thread has one of them at a time. Both may be repeated. SUMMED is
 * update_summed alone, which works in place and so is launched once.
 */
#ifndef ADTOPK_KERNELS_UPDATE_H
#define ADTOPK_KERNELS_UPDATE_H

#include <stdint.h>

#include "kernels/base/dtype.h"
#include "kernels/cuda/entries.h"

#define UPDATE_NO_LIST UINT32_MAX /* in place of a list's count: there is none */

/* UPDATE has a list of positions, and at least one of dense, index and value. NARROW has `half`,
 * and of the two others the dense form or a list of elements. SHOW is like either, with a list of
 * positions. */
struct update_order {
    uint64_t first;         /* number of its first entry in the batch */
    uint64_t first_element; /* and of its first element */
    uint64_t numel;
    struct view view;    /* NARROW by list: of stride 1 */
    struct entries list; /* NARROW of the dense form: empty */
    float *dense;        /* UPDATE: the dense form, or NULL. NARROW: what is narrowed, or NULL */
    uint32_t *index;     /* the elements of the entries, or NULL. May be the list's positions */
    float *value;        /* UPDATE: their values, or NULL */
    uint16_t *half;      /* NARROW: numel elements; UPDATE: NULL */
    float *shown;        /* NARROW by list: rounded and widened again, or NULL */
    uint32_t *counted;   /* SHOW: gets `count`; or NULL */
    uint32_t count;      /* SHOW: of the entries that index and value get, or UPDATE_NO_LIST */
    uint32_t dtype;      /* NARROW: of `half` (enum dtype) */
};

struct update_batch {
    const struct update_order *order;
    uint32_t orders;
    uint64_t entries, elements; /* of all orders */
};

/* SUMMED: a sum of all nodes becomes the update, and is written where ranks see it. */
struct update_sum {
    uint64_t first; /* number of its first element in the batch */
    float *sum;     /* becomes (0 + sum) * factor: no update has -0 */
    float factor;
    uint32_t dtype; /* of what ranks see (enum dtype), if `half` is not 0; else it is in f32 */
    uint32_t half;
    uint32_t places;
    void *const *shown;       /* so many arrays of all elements */
    uint32_t *const *counted; /* so many words that get UPDATE_NO_LIST, some of them NULL */
};

struct update_sums {
    const struct update_sum *order;
    uint32_t orders;
    uint64_t elements; /* of all orders */
};

#endif
