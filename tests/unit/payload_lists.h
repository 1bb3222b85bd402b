/*
 * Random lists for the tests of the payload. Include it after cmocka.h and payload_support.h.
 */
#ifndef ADTOPK_TEST_PAYLOAD_LISTS_H
#define ADTOPK_TEST_PAYLOAD_LISTS_H

#include <string.h>

#include "tests/unit/payload_support.h"

/* xorshift64*, so that a failure can be reproduced. */
static inline uint64_t random_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545F4914F6CDD1D);
}

static inline uint64_t random_below(uint64_t *state, uint64_t limit)
{
    return (random_next(state) >> 16) % limit;
}

static inline void list_push(struct sparse *list, uint64_t position, uint64_t *seed)
{
    uint32_t bits = (uint32_t)(random_next(seed) >> 32) & 0xBF7FFFFFu; /* finite, both signs */

    assert_true(list->count < list->capacity);
    list->position[list->count] = (uint32_t)position;
    memcpy(&list->value[list->count], &bits, sizeof(bits));
    list->count++;
}

/* Draws exactly `take` of `size` positions, beginning at `base`. Each set is equally likely. */
static inline void list_sample(
    struct sparse *list, uint64_t base, uint64_t size, uint64_t take, uint64_t *seed)
{
    for (uint64_t j = 0; j < size && take > 0; j++) {
        if (random_below(seed, size - j) < take) {
            list_push(list, base + j, seed);
            take--;
        }
    }
    assert_int_equal(take, 0);
}

#endif
