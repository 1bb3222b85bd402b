#include "daemon/job/verdict.h"

#include <math.h>

#define ROUNDING 0x1p-24 /* of a float, relative */
#define OF_RESIDUAL 16
#define OF_SUMS 1024

struct verdict verdict_of(const struct verified *verified, uint64_t elements)
{
    struct verdict verdict = {.balanced = true};
    double steps = (double)verified->step + 1;
    double largest = 0;

    for (int k = 0; k < 2; k++) {
        largest = fmax(largest, fabs(verified->input[k]));
        largest = fmax(largest, fabs(verified->applied[k]));
        largest = fmax(largest, fabs(verified->lost[k]));
    }
    verdict.tolerance =
        ROUNDING * (OF_RESIDUAL * fmax(verified->most_magnitude, verified->magnitude) *
                           (1 + sqrt(steps / (double)elements)) +
                       OF_SUMS * largest);
    for (int k = 0; k < 2; k++) {
        verdict.off[k] =
            verified->input[k] - verified->applied[k] - verified->lost[k] - verified->residual[k];
        verdict.balanced &= isfinite(verdict.off[k]) && fabs(verdict.off[k]) <= verdict.tolerance;
    }
    return verdict;
}
