#include "kernels/base/survey.h"

#include <math.h>

float survey_threshold(double threshold, bool strict)
{
    if (threshold < 0 || (threshold == 0 && !strict)) {
        return 0;
    }
    if (!(threshold < INFINITY)) {
        return INFINITY;
    }
    const float nearest = (float)threshold;
    const bool reached = strict ? (double)nearest > threshold : (double)nearest >= threshold;
    return reached ? nearest : nextafterf(nearest, INFINITY);
}
