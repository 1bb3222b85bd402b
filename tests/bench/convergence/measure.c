#include "measure.h"

#define LIVE_SHARE 1e-7

struct measure_tensor measure_shape(const size_t *shape, size_t dims)
{
    struct measure_tensor tensor = {.length = shape[1], .stride = 1, .fibres = shape[0]};
    for (size_t d = 2; d < dims; d++) {
        tensor.stride *= shape[d];
        tensor.fibres *= shape[d];
    }
    return tensor;
}

/* The first element of a fibre. */
static size_t measure_start(const struct measure_tensor *tensor, size_t fibre)
{
    const size_t stride = tensor->stride;
    return fibre / stride * stride * tensor->length + fibre % stride;
}

void measure_note(const struct measure_tensor *tensor, uint64_t step, uint64_t *last)
{
    for (size_t fibre = 0; fibre < tensor->fibres; fibre++) {
        const float *sent = tensor->sent + measure_start(tensor, fibre);
        for (size_t i = 0; i < tensor->length; i++) {
            if (sent[i * tensor->stride] != 0) {
                last[fibre] = step + 1;
                break;
            }
        }
    }
}

static double square(double value)
{
    return value * value;
}

/* Adds up one fibre; returns its part of the total. */
static double measure_fibre(const struct measure_tensor *tensor, size_t fibre, struct measure *sum)
{
    const size_t start = measure_start(tensor, fibre);
    double total = 0;
    for (size_t i = 0; i < tensor->length; i++) {
        const size_t at = start + i * tensor->stride;
        const double sent = tensor->sent[at];
        total += square(tensor->total[at]);
        sum->mean += square(tensor->mean[at]);
        sum->left += square(tensor->total[at] - sent);
        sum->deviation += square(tensor->ideal[at] - sent);
        sum->nonzeros += sent != 0;
    }
    return total;
}

struct measure measure_step(
    const struct measure_tensor *tensor, uint64_t step, const uint64_t *last, double *totals)
{
    struct measure sum = {0};
    for (size_t fibre = 0; fibre < tensor->fibres; fibre++) {
        totals[fibre] = measure_fibre(tensor, fibre, &sum);
        sum.total += totals[fibre];
    }
    const double least = LIVE_SHARE * sum.total / (double)tensor->fibres;
    for (size_t fibre = 0; fibre < tensor->fibres; fibre++) {
        const uint64_t waited = step + 1 - last[fibre];
        if (!(totals[fibre] > least)) {
            continue;
        }
        sum.live++;
        sum.never += last[fibre] == 0;
        sum.missed += waited > 0;
        sum.missed_total += waited > 0 ? totals[fibre] : 0;
        sum.longest = waited > sum.longest ? waited : sum.longest;
    }
    return sum;
}
