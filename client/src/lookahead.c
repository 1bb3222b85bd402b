/* Look-ahead: shifts parameters to the point at which the next gradient is taken. */
#include <math.h>
#include <string.h>

#include "client/src/transport.h"
#include "kernels/base/wide.h"

#define LOOKAHEAD_LIMIT 0.1f  /* limit of a shift, relative to the norm of the parameters */
#define LOOKAHEAD_STEPS 10.0f /* limit of an element's shift, in steps of Adam */
#define LOOKAHEAD_BLOCK 1024u

/* The inputs for the shift of one tensor. */
struct lookahead {
    const void *pending;
    bool rounded;
    float factor; /* by which the pending element, or its quotient, is multiplied */
    float scale;  /* by which the pending element is multiplied before it is divided */
    const struct adtopk_lookahead_spec *spec;
};

/* Sums of squares. */
struct lookahead_norms {
    double shift, parameters;
};

WIDE_BODY float lookahead_bf16(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Converts shifts from gradients to steps of Adam. Divides in any case: the compiler makes no
 * vectors of divisions that some elements do without. */
WIDE_BODY void lookahead_divide(const struct adtopk_lookahead_spec *spec,
    const float *second_moment, unsigned count, float *shift)
{
    const float corrects = 1 / spec->correction, most = LOOKAHEAD_STEPS;

    for (unsigned i = 0; i < count; i++) {
        const float root = sqrtf(second_moment[i] * corrects) + spec->epsilon;
        const float quotient = shift[i] / root;
        const float steps = root > 0 ? quotient : 0;

        shift[i] = steps > most ? most : steps < -most ? -most : steps;
    }
}

/* Computes the shifts of `count` elements, beginning at `first`. */
WIDE_BODY void lookahead_shifts(
    const struct lookahead *ahead, uint64_t first, unsigned count, float *shift)
{
    const struct adtopk_lookahead_spec *spec = ahead->spec;

    if (ahead->rounded) {
        const uint16_t *from = (const uint16_t *)ahead->pending + first;
        for (unsigned i = 0; i < count; i++) {
            shift[i] = lookahead_bf16(from[i]) * ahead->scale;
        }
    } else {
        const float *from = (const float *)ahead->pending + first;
        for (unsigned i = 0; i < count; i++) {
            shift[i] = from[i] * ahead->scale;
        }
    }
    if (spec->second_moment != NULL) {
        lookahead_divide(spec, spec->second_moment + first, count, shift);
    }
}

/* Floats that one instruction handles together, in memory with the alignment of a float. */
typedef float lookahead_lanes __attribute__((vector_size(32), aligned(4), may_alias));
enum { LOOKAHEAD_LANES = sizeof(lookahead_lanes) / sizeof(float) };

WIDE_BODY struct lookahead_norms lookahead_block(
    const struct lookahead *ahead, uint64_t first, unsigned count)
{
    const float *parameter = ahead->spec->parameters + first;
    float shift[LOOKAHEAD_BLOCK], *shifted = ahead->spec->shifted + first;
    const unsigned whole = count / LOOKAHEAD_LANES * LOOKAHEAD_LANES;
    lookahead_lanes shifts = {0}, parameters = {0};
    struct lookahead_norms norms = {0, 0};

    lookahead_shifts(ahead, first, count, shift);
    for (unsigned i = 0; i < whole; i += LOOKAHEAD_LANES) {
        const lookahead_lanes p = *(const lookahead_lanes *)(parameter + i);
        const lookahead_lanes s = *(const lookahead_lanes *)(shift + i) * ahead->factor;
        shifts += s * s;
        parameters += p * p;
        *(lookahead_lanes *)(shifted + i) = p - s;
    }
    for (unsigned i = whole; i < count; i++) {
        const float s = shift[i] * ahead->factor, p = parameter[i];
        norms.shift += (double)(s * s);
        norms.parameters += (double)(p * p);
        shifted[i] = p - s;
    }
    for (unsigned lane = 0; lane < LOOKAHEAD_LANES; lane++) {
        norms.shift += (double)shifts[lane];
        norms.parameters += (double)parameters[lane];
    }
    return norms;
}

WIDE_BODY struct lookahead_norms lookahead_blocks(const struct lookahead *ahead, uint64_t numel)
{
    struct lookahead_norms all = {0, 0};

    for (uint64_t first = 0; first < numel; first += LOOKAHEAD_BLOCK) {
        const uint64_t left = numel - first;
        const struct lookahead_norms block = lookahead_block(
            ahead, first, left < LOOKAHEAD_BLOCK ? (unsigned)left : LOOKAHEAD_BLOCK);
        all.shift += block.shift;
        all.parameters += block.parameters;
    }
    return all;
}

WIDE static struct lookahead_norms lookahead_wide(const struct lookahead *ahead, uint64_t numel)
{
    return lookahead_blocks(ahead, numel);
}

static struct lookahead_norms lookahead_shift(const struct lookahead *ahead, uint64_t numel)
{
    return wide_is_there() ? lookahead_wide(ahead, numel) : lookahead_blocks(ahead, numel);
}

/* The guard for the next shift: the share of the policy's look-ahead that makes the shift as long
 * as the limit allows. This shift had these norms, with the share `guard`. */
static float lookahead_guard(float guard, const struct lookahead_norms *norms)
{
    const double limit = (double)(LOOKAHEAD_LIMIT * LOOKAHEAD_LIMIT) * norms->parameters;

    if (!(norms->shift >= 0 && norms->shift <= 1e30)) {
        return 0;
    }
    if (!(norms->shift > 0)) {
        return 1;
    }
    const double next = (double)guard * sqrt(limit / norms->shift);
    return next < 1 ? (float)next : 1;
}

/* Over every transport: a program that works over tcp:// works on the daemon's machine, too. */
static enum adtopk_status lookahead_check_form(adtopk_context *context, uint32_t tensor)
{
    const struct client_tensor *about = &context->tensor[tensor];

    return (about->forms & ADTOPK_FORM_PENDING) != 0
               ? ADTOPK_OK
               : client_refuse(context, ADTOPK_ERR_ARGUMENT,
                     "adtopk_lookahead(): tensor \"%s\" was registered "
                     "without ADTOPK_FORM_PENDING",
                     about->name);
}

static enum adtopk_status lookahead_check(
    adtopk_context *context, uint32_t tensor, const struct adtopk_lookahead_spec *spec)
{
    const char *fault = spec->parameters == NULL                    ? "parameters is NULL"
                        : spec->shifted == NULL                     ? "shifted is NULL"
                        : spec->shifted == spec->parameters         ? "shifted is parameters"
                        : !(spec->rate >= 0 && spec->rate <= 1e30f) ? "rate is not from 0 to 1e30"
                        : spec->reserved != 0                       ? "reserved is not 0"
                        : spec->second_moment == NULL               ? NULL
                        : spec->shifted == spec->second_moment      ? "shifted is second_moment"
                        : !(spec->correction > 0 && spec->correction <= 1)
                            ? "correction is not above 0 and at most 1"
                        : !(spec->epsilon >= 0 && spec->epsilon <= 1) ? "epsilon is not from 0 to 1"
                                                                      : NULL;

    return fault == NULL
               ? ADTOPK_OK
               : client_refuse(context, ADTOPK_ERR_ARGUMENT, "adtopk_lookahead() of \"%s\": %s",
                     context->tensor[tensor].name, fault);
}

/* Adam on updates that have momentum already learns next to nothing. */
static enum adtopk_status lookahead_check_moments(
    adtopk_context *context, uint32_t tensor, const struct adtopk_lookahead_spec *spec)
{
    const struct client_tensor *about = &context->tensor[tensor];

    return spec->second_moment == NULL || about->update == NULL ||
                   about->update->pending.corrected == 0
               ? ADTOPK_OK
               : client_refuse(context, ADTOPK_ERR_POLICY,
                     "adtopk_lookahead(): tensor \"%s\" has \"momentum\" in its policy, which is "
                     "not for optimisers with a second moment, such as Adam",
                     about->name);
}

static void lookahead_apply(adtopk_context *context, uint32_t tensor,
    const struct adtopk_lookahead_spec *spec, const struct adtopk_update *update)
{
    struct client_tensor *about = &context->tensor[tensor];
    const bool shifts = update->pending != NULL && spec->rate * update->lookahead > 0;
    const struct lookahead ahead = {.pending = update->pending,
        .rounded = update->pending_dtype == ADTOPK_BF16,
        .factor = shifts ? spec->rate * update->lookahead : spec->rate,
        .scale = update->pending_scale,
        .spec = spec};

    about->ahead = update->pending != NULL ? update->lookahead : 0;
    if (update->pending != NULL && ahead.factor > 0) {
        const struct lookahead_norms norms = lookahead_shift(&ahead, update->numel);

        /* A guard of 0 cannot grow again. So the full shift is measured here, though it is not
         * used. */
        about->guard = lookahead_guard(shifts ? about->guard : 1, &norms);
    }
    if (!shifts) {
        memcpy(spec->shifted, spec->parameters, update->numel * sizeof(float));
    }
}

static enum adtopk_status lookahead_take(
    adtopk_context *context, uint32_t tensor, const struct adtopk_lookahead_spec *given)
{
    enum adtopk_status status = client_enter_tensor(context, "adtopk_lookahead()", tensor, true);
    struct adtopk_lookahead_spec spec;
    struct adtopk_update update = {.size = sizeof update};

    if (status == ADTOPK_OK) {
        status = client_take(context, "struct adtopk_lookahead_spec", given, &spec, sizeof spec);
    }
    if (status == ADTOPK_OK) {
        status = lookahead_check(context, tensor, &spec);
    }
    if (status == ADTOPK_OK) {
        status = lookahead_check_form(context, tensor);
    }
    if (status == ADTOPK_OK) {
        status = lookahead_check_moments(context, tensor, &spec);
    }
    if (status == ADTOPK_OK && context->step_state != CLIENT_STEP_NEW) {
        status = client_refuse(context, ADTOPK_ERR_STATE,
            "adtopk_lookahead() in step %llu: wait for its end", (unsigned long long)context->step);
    }
    update.numel = status == ADTOPK_OK ? context->tensor[tensor].numel : 0;
    if (status == ADTOPK_OK && context->transport->pending != NULL) {
        status = context->transport->pending(context, tensor, &update);
    }
    if (status == ADTOPK_OK) {
        lookahead_apply(context, tensor, &spec, &update);
    }
    return status;
}

enum adtopk_status adtopk_lookahead(
    adtopk_context *context, uint32_t tensor, const struct adtopk_lookahead_spec *spec)
{
    client_lock(context);
    return client_unlock(context, lookahead_take(context, tensor, spec));
}
