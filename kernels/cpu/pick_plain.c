/* Picking in plain C: what every processor runs and the others are compared with. */
#include "kernels/cpu/bisect.h"
#include "kernels/cpu/pick.h"

static void plain_append(struct sparse *list, uint32_t position, float value)
{
    list->position[list->count] = position;
    list->value[list->count++] = value;
}

static void plain_collect(
    const float *x, size_t length, uint32_t least, uint32_t position, struct sparse *list)
{
    for (size_t i = 0; i < length; i++) {
        if (select_key(x[i]) >= least) {
            plain_append(list, position + (uint32_t)i, x[i]);
        }
    }
}

static void plain_sieve(const float *x, size_t length, const struct pick_pattern *pattern,
    uint32_t position, struct sparse *list)
{
    uint32_t phase = pattern->phase;
    for (size_t i = 0; i < length; i++) {
        if ((int32_t)select_key(x[i]) > pattern->below[phase]) {
            plain_append(list, position + (uint32_t)i, x[i]);
        }
        phase = phase + 1 < pattern->period ? phase + 1 : 0;
    }
}

static size_t plain_count(const float *x, size_t n, uint32_t least)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        count += select_key(x[i]) >= least;
    }
    return count;
}

static uint32_t plain_best(
    const struct sparse *list, size_t k, uint32_t least, uint32_t likely, struct sparse *out)
{
    struct select_cut cut =
        select_bisect_near(list->value, list->count, k, least, likely, plain_count);
    if (cut.ties == SELECT_ALL) {
        select_filter_from(list, cut.key, out);
    } else {
        select_filter(list, &cut, out, k);
    }
    return cut.key;
}

const struct pick_ops pick_plain = {
    .collect = plain_collect,
    .sieve = plain_sieve,
    .best = plain_best,
};
