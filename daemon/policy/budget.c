/*
 * From bits to a density: see budget.h. There is no libm in it: nodes with different ones must find
 * the same density.
 */
#include "daemon/policy/budget.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DENSITY_LEAST 1e-6 /* that the key "density" allows */
#define STEPS 60           /* of the bisection */
#define TERMS 13           /* of the logarithm's series: the first one left out is below 2^-60 */
#define LOG2_E 1.4426950408889634

/* Of a positive number: its exponent, and the series of the inverse hyperbolic tangent. */
static double budget_log2(double x)
{
    int exponent;
    const double mantissa = frexp(x, &exponent), t = (mantissa - 0.75) / (mantissa + 0.75);
    const double base = -0.41503749927884381; /* log2(0.75) */
    double sum = 0;

    for (int term = 2 * TERMS + 1; term > 0; term -= 2) {
        sum = sum * t * t + 1.0 / term;
    }
    return exponent + base + 2 * LOG2_E * t * sum;
}

/* -x log2(x) */
static double budget_share(double x)
{
    return x > 0 ? -x * budget_log2(x) : 0;
}

double budget_bits(double density, enum payload_value values)
{
    return density * payload_value_bits(values) + budget_share(density) + budget_share(1 - density);
}

static double budget_power(double factor, uint64_t exponent)
{
    double product = 1;

    for (uint64_t i = 0; i < exponent; i++) {
        product *= factor;
    }
    return product;
}

/* The density v / (1 + v), with v two to the power of a value's bits, at which the bits are most.
 * From there on more entries save more bits of positions than they take for values. Bits come in
 * eighths. */
static double budget_peak(enum payload_value values)
{
    const double eighth = 1.0905077326652577; /* root of 2 */
    const double v = budget_power(eighth, (uint64_t)(8 * payload_value_bits(values)));

    return v / (1 + v);
}

double budget_read(const char *text)
{
    char *end;
    double percent;

    if (strncmp(text, "as ", 3) != 0 || text[3] < '0' || text[3] > '9') {
        return 0;
    }
    percent = strtod(text + 3, &end);
    if (text + 3 + strspn(text + 3, "0123456789.e-") != end ||
        !(percent >= 100 * DENSITY_LEAST && percent <= 100) || strncmp(end, "% ", 2) != 0) {
        return 0;
    }
    for (unsigned v = 0; v < PAYLOAD_VALUE_COUNT; v++) {
        if (strcmp(end + 2, policy_value_name((enum payload_value)v)) == 0) {
            return budget_bits(percent / 100, (enum payload_value)v);
        }
    }
    return 0;
}

/* Mean bits over the training, if each epoch of the warm-up multiplies the density by `factor`: in
 * epoch e (0, 1, ...) it is factor^(e+1). */
static double budget_mean(const struct tensor_policy *policy, double factor, double peak)
{
    const struct sparsifier_params *params = &policy->params;
    double left = params->warmup_epochs > 0 ? (double)params->total_turns : 1;
    const double all = left;
    double density = factor, sum = 0;

    for (uint64_t epoch = 0; epoch <= params->warmup_epochs; epoch++, density *= factor) {
        const bool last = epoch == params->warmup_epochs;
        const double whole = (double)params->epoch_turns;
        const double turns = last || left < whole ? left : whole;

        sum += turns * budget_bits(density < peak ? density : peak, policy->values);
        left -= turns;
    }
    return sum / all;
}

/* Whether the warm-up can be counted in. */
static bool budget_knows_turns(const struct tensor_policy *policy)
{
    return policy->params.warmup_epochs == 0 || policy->params.total_turns > 0;
}

double budget_density(const struct tensor_policy *policy)
{
    const uint64_t epochs = policy->params.warmup_epochs + 1;
    const double peak = budget_peak(policy->values);
    double low = 0, high = 1, density;

    if (!(policy->budget > 0) || !budget_knows_turns(policy)) {
        return 0;
    }
    if (budget_mean(policy, 1, peak) <= policy->budget) {
        return 1;
    }
    for (unsigned i = 0; i < STEPS; i++) {
        const double middle = (low + high) / 2;

        if (budget_mean(policy, middle, peak) <= policy->budget) {
            low = middle;
        } else {
            high = middle;
        }
    }
    density = budget_power(low, epochs);
    return density >= DENSITY_LEAST ? density : 0;
}

enum adtopk_status budget_check(const struct tensor_policy *policy, struct error *err)
{
    if (policy->params.density > 0) {
        return ADTOPK_OK;
    }
    if (!(policy->budget > 0)) {
        return error_set(err, ADTOPK_ERR_POLICY, "\"density\" \"auto\" needs a \"budget\"");
    }
    if (!budget_knows_turns(policy)) {
        return error_set(err, ADTOPK_ERR_POLICY,
            "\"warmup_epochs\" needs \"total_turns\", to count it into the \"budget\", or a "
            "\"density\"");
    }
    return error_set(err, ADTOPK_ERR_POLICY,
        "\"budget\" %.6g is less than a density of %g takes with values \"%s\"", policy->budget,
        DENSITY_LEAST, policy_value_name(policy->values));
}
