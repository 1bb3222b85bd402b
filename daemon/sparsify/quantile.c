/* Both functions bisect. That is slow beside a rational approximation, but it takes a few
 * microseconds per tensor and is simple to get right. */
#include "daemon/sparsify/quantile.h"

#include <math.h>
#include <stdbool.h>

#define HALF_LOG_2PI 0.91893853320467274178
#define LARGE_SHAPE 1000.0
#define SMALLEST_LOG (-700.0) /* exp() of it is still a normal number */

static bool halve(double low, double high, double *middle)
{
    *middle = low + (high - low) / 2;
    return *middle > low && *middle < high;
}

double quantile_normal(double tail)
{
    double low = 0;
    double high = 40;
    double z = 0;
    if (tail > 0.5) {
        return -quantile_normal(1 - tail);
    }
    while (halve(low, high, &z)) {
        if (erfc(z / sqrt(2.0)) / 2 > tail) {
            low = z;
        } else {
            high = z;
        }
    }
    return z;
}

/* The logarithm of the gamma function: Stirling's series (DLMF 5.11.1) from 10 on, below by the
 * recurrence. Not lgamma(), which writes a global variable. */
static double log_gamma(double a)
{
    double product = 1;
    while (a < 10) {
        product *= a;
        a += 1;
    }
    const double r = 1 / (a * a);
    const double series =
        (1.0 / 12 - r * (1.0 / 360 - r * (1.0 / 1260 - r * (1.0 / 1680 - r / 1188)))) / a;
    return (a - 0.5) * log(a) - a + HALF_LOG_2PI + series - log(product);
}

/* P(a, x), the lower incomplete gamma function over the complete one: DLMF 8.7.1. */
static double lower_gamma(double a, double x, double log_of_gamma_1)
{
    double term = 1;
    double sum = 1;
    for (double n = 1; term > sum * 1e-17; n++) {
        term *= x / (a + n);
        sum += term;
    }
    return exp(a * log(x) - x - log_of_gamma_1) * sum;
}

/* Wilson and Hilferty 1931: the cube root is nearly normal. */
static double large_gamma(double shape, double tail)
{
    const double root = 1 - 1 / (9 * shape) + quantile_normal(tail) / (3 * sqrt(shape));
    return shape * root * root * root;
}

double quantile_gamma(double shape, double tail)
{
    const double log_of_gamma_1 = log_gamma(shape + 1);
    double low = SMALLEST_LOG; /* by the logarithm of x: a small shape puts x anywhere */
    double high = log(shape + 10 * sqrt(shape) + 100);
    double at = low;
    if (shape > LARGE_SHAPE) {
        return large_gamma(shape, tail);
    }
    while (halve(low, high, &at)) {
        if (1 - lower_gamma(shape, exp(at), log_of_gamma_1) > tail) {
            low = at;
        } else {
            high = at;
        }
    }
    return exp(at);
}
