#include "kernels/cpu/narrow.h"

#include <string.h>

#include "kernels/base/rests.h"
#include "kernels/base/wide.h"

#define ELEMENTS_PER_PART (UINT64_C(1) << 19) /* fewer are not worth a thread's attention */
#define ENTRIES_PER_PART (UINT64_C(1) << 15)
#define PARTS 64u

static inline uint16_t to_half(float value, enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? convert_narrow_bf16(value) : convert_narrow_f16(value);
}

float narrow_value(float value, enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? convert_bf16(convert_narrow_bf16(value))
                               : convert_f16(convert_narrow_f16(value));
}

float narrow_rest(float value, enum dtype dtype)
{
    return rests_of_shown(value, dtype);
}

/* There is one loop per type, so that they vectorise. */
WIDE_BODY void add_rests(
    float *x, const float *value, uint64_t n, enum dtype dtype, float shrink, float unscale)
{
    for (uint64_t i = 0; dtype == DTYPE_BF16 && i < n; i++) {
        x[i] += rests_of_shown(value[i], DTYPE_BF16) * shrink * unscale;
    }
    for (uint64_t i = 0; dtype != DTYPE_BF16 && i < n; i++) {
        x[i] += rests_of_shown(value[i], DTYPE_F16) * shrink * unscale;
    }
}

WIDE static void add_rests_wide(
    float *x, const float *value, uint64_t n, enum dtype dtype, float shrink, float unscale)
{
    add_rests(x, value, n, dtype, shrink, unscale);
}

void narrow_add_rests(
    float *x, const float *value, uint64_t n, enum dtype dtype, float shrink, float unscale)
{
    if (wide_is_there()) {
        add_rests_wide(x, value, n, dtype, shrink, unscale);
    } else {
        add_rests(x, value, n, dtype, shrink, unscale);
    }
}

/* ------------------------------------------------------------------ the form that ranks see */

WIDE_BODY void narrow_body(uint16_t *half, const float *x, uint64_t n, enum dtype dtype)
{
    for (uint64_t i = 0; dtype == DTYPE_BF16 && i < n; i++) {
        half[i] = convert_narrow_bf16(x[i]);
    }
    for (uint64_t i = 0; dtype != DTYPE_BF16 && i < n; i++) {
        half[i] = convert_narrow_f16(x[i]);
    }
}

WIDE static void narrow_wide(uint16_t *half, const float *x, uint64_t n, enum dtype dtype)
{
    narrow_body(half, x, n, dtype);
}

static void narrow_plain(uint16_t *half, const float *x, uint64_t n, enum dtype dtype)
{
    narrow_body(half, x, n, dtype);
}

struct narrowing {
    const struct narrow *narrow;
    unsigned parts;
};

static uint64_t narrow_share(uint64_t total, unsigned part, unsigned parts)
{
    return total / parts * part + total % parts * part / parts;
}

static void dense_part(void *arg, unsigned part, unsigned thread)
{
    const struct narrowing *narrowing = arg;
    const struct narrow *narrow = narrowing->narrow;
    const uint64_t first = narrow_share(narrow->numel, part, narrowing->parts);
    const uint64_t end = narrow_share(narrow->numel, part + 1, narrowing->parts);

    (void)thread;
    (wide_is_there() ? narrow_wide : narrow_plain)(
        narrow->half + first, narrow->dense + first, end - first, narrow->dtype);
}

static void narrow_clear_part(void *arg, unsigned part, unsigned thread)
{
    const struct narrowing *narrowing = arg;
    const struct narrow *narrow = narrowing->narrow;
    const uint64_t first = narrow_share(narrow->numel, part, narrowing->parts);
    const uint64_t end = narrow_share(narrow->numel, part + 1, narrowing->parts);

    (void)thread;
    (void)memset(narrow->half + first, 0, (end - first) * sizeof(*narrow->half));
}

static void list_part(void *arg, unsigned part, unsigned thread)
{
    const struct narrowing *narrowing = arg;
    const struct narrow *narrow = narrowing->narrow;
    const uint64_t end = narrow_share(narrow->count, part + 1, narrowing->parts);

    (void)thread;
    for (uint64_t i = narrow_share(narrow->count, part, narrowing->parts); i < end; i++) {
        narrow->half[narrow->index[i]] = to_half(narrow->value[i], narrow->dtype);
        if (narrow->shown != NULL) {
            narrow->shown[i] = narrow_value(narrow->value[i], narrow->dtype);
        }
    }
}

void narrow_update(const struct narrow *narrow, const struct parallel *parallel)
{
    struct narrowing narrowing = {.narrow = narrow};

    narrowing.parts = parallel_parts(parallel, narrow->numel, ELEMENTS_PER_PART, PARTS);
    if (narrow->dense != NULL) {
        parallel_for(parallel, dense_part, &narrowing, narrowing.parts);
        return;
    }
    parallel_for(parallel, narrow_clear_part, &narrowing, narrowing.parts);
    narrowing.parts = parallel_parts(parallel, narrow->count, ENTRIES_PER_PART, PARTS);
    parallel_for(parallel, list_part, &narrowing, narrowing.parts);
}
