/* Picking in plain C: what every processor runs and the others are compared with. */
#include "kernels/cpu/bisect.h"
#include "kernels/cpu/pick.h"

static void plain_mark(const float *x, size_t length, uint32_t least, uint64_t *marks)
{
    for (size_t first = 0; first < length; first += PICK_WORD) {
        uint64_t word = 0;
        for (size_t i = 0; i < PICK_WORD && first + i < length; i++) {
            word |= (uint64_t)(select_key(x[first + i]) >= least) << i;
        }
        *marks++ = word;
    }
}

static void plain_sieve(
    const float *x, size_t length, const struct pick_pattern *pattern, uint64_t *marks)
{
    uint32_t phase = pattern->phase;
    for (size_t first = 0; first < length; first += PICK_WORD) {
        uint64_t word = 0;
        for (size_t i = 0; i < PICK_WORD && first + i < length; i++) {
            word |= (uint64_t)((int32_t)select_key(x[first + i]) > pattern->below[phase]) << i;
            phase = phase + 1 < pattern->period ? phase + 1 : 0;
        }
        *marks++ = word;
    }
}

static void plain_list(
    const float *x, unsigned words, const uint64_t *marks, uint32_t position, struct sparse *list)
{
    for (unsigned w = 0; w < words; w++) {
        for (unsigned i = 0; i < PICK_WORD; i++) {
            if ((marks[w] >> i & 1u) != 0) {
                list->position[list->count] = position + w * PICK_WORD + i;
                list->value[list->count++] = x[w * PICK_WORD + i];
            }
        }
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
    .mark = plain_mark,
    .sieve = plain_sieve,
    .list = plain_list,
    .best = plain_best,
};
