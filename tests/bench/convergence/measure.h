/* How one step's update covers one tensor, in double precision. Pure.
 *
 * A *fibre* (the paper's dimension) runs along axis 1 of the tensor in its native layout: a row of
 * a matrix, the input channels at one tap of a convolution. All arrays have the tensor's elements.
 */
#ifndef CONVERGENCE_MEASURE_H
#define CONVERGENCE_MEASURE_H

#include <stddef.h>
#include <stdint.h>

struct measure_tensor {
    size_t fibres;
    size_t length;      /* of a fibre */
    size_t stride;      /* between its neighbours */
    const float *mean;  /* mean gradient over the ranks */
    const float *total; /* the same plus the mean residual: the average input of selection */
    const float *sent;  /* the update: the mean of the workers' sent values */
    const float *ideal; /* the entries that a selection from `total` sends */
};

/* Squares of norms, and counts. */
struct measure {
    double mean;
    double total;
    double left;         /* of total - sent, the mean residual after the step */
    double deviation;    /* of ideal - sent; xi = sqrt(deviation / mean) */
    double missed_total; /* the part of `total` that lies in fibres that were missed */
    uint64_t nonzeros;   /* elements of the update */
    uint64_t live;       /* fibres that hold more of `total` than rounding leaves in a dead one */
    uint64_t missed;     /* of these, the number of which nothing was sent */
    uint64_t never;      /* of these, the number of which nothing was sent in any step so far */
    uint64_t longest;    /* steps since something was sent of a live fibre: the most */
};

/* Fibres, length and stride of a tensor of at least two dimensions. */
struct measure_tensor measure_shape(const size_t *shape, size_t dims);

/* Notes the fibres of which something was sent in this step, counted from 0. last[fibres]: one more
 * than the last such step, 0 for never. Call it in every step. Uses `sent` only. */
void measure_note(const struct measure_tensor *tensor, uint64_t step, uint64_t *last);

/* Measures the step; call it after measure_note(). A fibre is live if its part of `total`, squared,
 * is above 1e-7 of the average fibre's. Rounding errors where no gradient ever was are far below.
 * totals[fibres]: room. */
struct measure measure_step(
    const struct measure_tensor *tensor, uint64_t step, const uint64_t *last, double *totals);

#endif
