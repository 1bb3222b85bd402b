#include "tests/integration/ahead.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/ledger.h"

#define AHEAD_CORRECTION 0.25f
#define AHEAD_EPSILON 0.125f

struct ahead {
    adtopk_context *context;
    uint32_t tensor;
    uint64_t numel;
    float *residual, *parameters, *shifted, *moment;
    struct adtopk_update update;
};

static bool ahead_fail(const char *what)
{
    printf("error ahead %s\n", what);
    return false;
}

static float ahead_pending(const struct adtopk_update *update, uint64_t i)
{
    float value;
    uint32_t bits;

    if (update->pending_dtype != ADTOPK_BF16) {
        return ((const float *)update->pending)[i];
    }
    bits = (uint32_t)((const uint16_t *)update->pending)[i] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Whether an element is among those of its chunk that adtopk_residual() adds rounding errors to. */
static bool ahead_takes_carry(const struct ahead *ahead, uint64_t i)
{
    return ahead->update.pending_dtype == ADTOPK_BF16 &&
           i % (LEDGER_WORD * LEDGER_WORDS) < 2 * LEDGER_LANES;
}

/* Whether the shown residual is what adtopk_residual() reads. Each rounding error is below the last
 * bit of an element, so below 2^-7 of the largest one. */
static bool ahead_is_residual(const struct ahead *ahead)
{
    float largest = 0;

    for (uint64_t i = 0; i < ahead->numel; i++) {
        largest = fmaxf(largest, fabsf(ahead_pending(&ahead->update, i)));
    }
    for (uint64_t i = 0; i < ahead->numel; i++) {
        const float shown = ahead_pending(&ahead->update, i);
        const bool same = memcmp(&shown, &ahead->residual[i], sizeof shown) == 0;

        if (!same && (!ahead_takes_carry(ahead, i) ||
                         !(fabsf(shown - ahead->residual[i]) <= 0x1p-7f * largest))) {
            return false;
        }
    }
    return true;
}

/* A hash (FNV-1a, by words) of the residual, of what is shown of it, and of the shifted parameters.
 */
static uint64_t ahead_hash(const struct ahead *ahead)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (uint64_t i = 0; i < ahead->numel; i++) {
        const float word[] = {
            ahead->residual[i], ahead_pending(&ahead->update, i), ahead->shifted[i]};

        for (unsigned j = 0; j < 3; j++) {
            uint32_t bits;

            memcpy(&bits, &word[j], sizeof bits);
            hash = (hash ^ bits) * 0x100000001b3u;
        }
    }
    return hash;
}

/* A second moment that is no number, negative or too large for a float moves nothing. */
static double ahead_step(const struct ahead *ahead, uint64_t i, enum ahead_kind kind)
{
    const double pending =
        (double)ahead->update.pending_scale * (double)ahead_pending(&ahead->update, i);
    const double moment = (double)ahead->moment[i] / (double)AHEAD_CORRECTION;

    if (kind == AHEAD_SGD) {
        return pending;
    }
    return moment >= 0 && moment <= (double)FLT_MAX
               ? fmax(-10, fmin(10, pending / (sqrt(moment) + (double)AHEAD_EPSILON)))
               : 0;
}

/* Whether the shift is what the header defines; *ratio: of the norms. */
static bool ahead_is_shift(
    const struct ahead *ahead, float rate, enum ahead_kind kind, double *ratio)
{
    double shifts = 0, parameters = 0;

    for (uint64_t i = 0; i < ahead->numel; i++) {
        const double parameter = (double)ahead->parameters[i];
        const double shift =
            ahead->update.pending == NULL
                ? 0
                : (double)rate * (double)ahead->update.lookahead * ahead_step(ahead, i, kind);

        if (!(fabs((double)ahead->shifted[i] - (parameter - shift)) <=
                1e-6 * (fabs(parameter) + fabs(shift)))) {
            return false;
        }
        shifts += shift * shift;
        parameters += parameter * parameter;
    }
    *ratio = parameters > 0 ? sqrt(shifts / parameters) : 0;
    return true;
}

static bool ahead_run(struct ahead *ahead, float rate, enum ahead_kind kind)
{
    const float overflows[] = {INFINITY, NAN, -1, FLT_MAX, 0.5f};
    const struct adtopk_lookahead_spec spec = {.size = sizeof spec,
        .parameters = ahead->parameters,
        .shifted = ahead->shifted,
        .second_moment = kind != AHEAD_SGD ? ahead->moment : NULL,
        .correction = AHEAD_CORRECTION,
        .epsilon = AHEAD_EPSILON,
        .rate = rate};
    double ratio = 0;

    for (uint64_t i = 0; i < ahead->numel; i++) {
        ahead->parameters[i] = (float)(i % 7) - 3;
        ahead->moment[i] = kind == AHEAD_OVERFLOW ? overflows[i % 5] : (float)(i % 5) / 8;
    }
    if (adtopk_residual(ahead->context, ahead->tensor, ahead->residual) != ADTOPK_OK ||
        adtopk_update(ahead->context, ahead->tensor, &ahead->update) != ADTOPK_OK ||
        adtopk_lookahead(ahead->context, ahead->tensor, &spec) != ADTOPK_OK) {
        return ahead_fail(adtopk_message(ahead->context));
    }
    if (ahead->update.pending != NULL && !ahead_is_residual(ahead)) {
        return ahead_fail("what is shown is not the residual");
    }
    if (!ahead_is_shift(ahead, rate, kind, &ratio)) {
        return ahead_fail("the shift is wrong");
    }
    if (ahead->update.pending == NULL) {
        return printf("ok none\n") > 0;
    }
    return printf("ok %s %g %g %016" PRIx64 "\n",
               ahead->update.pending_dtype == ADTOPK_BF16 ? "bf16" : "f32",
               (double)ahead->update.lookahead, ratio, ahead_hash(ahead)) > 0;
}

bool ahead_check(
    adtopk_context *context, uint32_t tensor, uint64_t numel, float rate, enum ahead_kind kind)
{
    float *memory = calloc(4 * numel, sizeof *memory);
    struct ahead ahead = {.context = context,
        .tensor = tensor,
        .numel = numel,
        .residual = memory,
        .parameters = memory + numel,
        .shifted = memory + 2 * numel,
        .moment = memory + 3 * numel,
        .update = {.size = sizeof ahead.update}};
    const bool right = memory != NULL ? ahead_run(&ahead, rate, kind) : ahead_fail("no memory");

    free(memory);
    return right;
}
