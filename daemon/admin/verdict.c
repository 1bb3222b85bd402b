#include "daemon/admin/verdict.h"

#include <math.h>

#define ROUNDING 0x1p-24 /* of a float, relative */
#define OF_RESIDUAL 16
#define OF_SUMS 1024

struct verdict verdict_of(const struct tensor_info *info)
{
    struct verdict verdict = {.balanced = true};
    double steps = (double)info->verified_step + 1;
    double largest = 0;

    for (int k = 0; k < 2; k++) {
        largest = fmax(largest, fabs(info->verified.input[k]));
        largest = fmax(largest, fabs(info->verified.applied[k]));
        largest = fmax(largest, fabs(info->verified.lost[k]));
    }
    verdict.tolerance =
        ROUNDING * (OF_RESIDUAL * fmax(info->most_magnitude, info->verified.magnitude) *
                           (1 + sqrt(steps / (double)info->numel)) +
                       OF_SUMS * largest);
    for (int k = 0; k < 2; k++) {
        verdict.off[k] = info->verified.input[k] - info->verified.applied[k] -
                         info->verified.lost[k] - info->verified.residual[k];
        verdict.balanced &= isfinite(verdict.off[k]) && fabs(verdict.off[k]) <= verdict.tolerance;
    }
    return verdict;
}
