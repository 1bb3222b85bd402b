/*
 * Loss scales: the factor by which a gradient is too large, because the loss was multiplied by it.
 *
 * The daemon divides gradients by it and multiplies updates by it. So the factor and its reciprocal
 * must be normal numbers. In messages and structures 0 stands for a scale that was not given.
 */
#ifndef ADTOPK_LOSS_SCALE_H
#define ADTOPK_LOSS_SCALE_H

#include <stdbool.h>

#define LOSS_SCALE_MIN 0x1p-126f
#define LOSS_SCALE_MAX 0x1p126f

/** Whether ranks may push with this scale; 0 is none. */
static inline bool loss_scale_is_valid(float scale)
{
    return scale >= LOSS_SCALE_MIN && scale <= LOSS_SCALE_MAX; /* false for NaN */
}

/** The factor that a scale stands for. */
static inline float loss_scale_factor(float scale)
{
    return scale != 0 ? scale : 1.0f;
}

/** Whether gradients and updates differ from those without a scale. */
static inline bool loss_scale_changes(float scale)
{
    return loss_scale_factor(scale) != 1.0f;
}

#endif
