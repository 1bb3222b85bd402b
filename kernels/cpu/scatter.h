/*
 * Turns a sparse list into what trainers read: indices in memory instead of positions of a view,
 * and the dense form. The result does not depend on which thread writes which part.
 */
#ifndef ADTOPK_KERNELS_SCATTER_H
#define ADTOPK_KERNELS_SCATTER_H

#include <stdint.h>

#include "kernels/base/parallel.h"
#include "kernels/base/sparse.h"
#include "kernels/base/view.h"

/**
 * dense[view_element(position)] = value for every entry, 0 everywhere else.
 *
 * dense: view_size(view) elements, overlapping nothing of the list. Uses about 36 KiB of stack.
 */
void scatter_dense(float *dense, const struct view *view, const struct sparse *list,
    const struct parallel *parallel);

/** index[i] = view_element(position[i]) for every entry; index may be list->position itself. */
void scatter_index(uint32_t *index, const struct view *view, const struct sparse *list,
    const struct parallel *parallel);

#endif
