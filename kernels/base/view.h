/*
 * A view: the order in which a selection numbers a tensor's elements.
 *
 * A view divides a tensor of n elements into `fibres` fibres of `length` elements, which lie
 * `stride` elements apart in memory. A *position* p in 0..n-1 counts in view order: p = fibre *
 * length + j. Selections, payloads and sums carry positions; only code that reads or writes tensor
 * memory needs view_element(). With stride 1 the position is the element's index.
 */
#ifndef ADTOPK_VIEW_H
#define ADTOPK_VIEW_H

#include <stdint.h>

#include "kernels/base/inline.h"

/* Positions are 32 bit on the wire and in lists. */
#define VIEW_MAX_ELEMENTS UINT32_MAX

struct view {
    uint64_t fibres;
    uint64_t length; /* elements of one fibre */
    uint64_t stride; /* elements between two neighbours of a fibre */
};

BASE_INLINE uint64_t view_size(const struct view *view)
{
    return view->fibres * view->length;
}

/* The index in memory of element j of fibre 0 <= f < fibres is view_base(f) + j * stride. */
BASE_INLINE uint64_t view_base(const struct view *view, uint64_t fibre)
{
    return fibre / view->stride * (view->length * view->stride) + fibre % view->stride;
}

BASE_INLINE uint64_t view_element(const struct view *view, uint64_t position)
{
    if (view->stride == 1) {
        return position;
    }
    return view_base(view, position / view->length) + position % view->length * view->stride;
}

/* The other way round. */
BASE_INLINE uint64_t view_position(const struct view *view, uint64_t element)
{
    if (view->stride == 1) {
        return element;
    }
    const uint64_t slab = view->length * view->stride;
    const uint64_t fibre = element / slab * view->stride + element % view->stride;
    return fibre * view->length + element % slab / view->stride;
}

#endif
