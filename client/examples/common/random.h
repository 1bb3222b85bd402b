/* A small seeded generator (splitmix64, Steele, Lea and Flood 2014): the same numbers everywhere.
 */
#ifndef EXAMPLE_RANDOM_H
#define EXAMPLE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

struct random {
    uint64_t state;
};

/* Starts a generator. Different `stream` numbers under one seed give unrelated sequences. */
struct random random_start(uint64_t seed, uint64_t stream);

/* The next 64 bits. */
uint64_t random_next(struct random *random);

/* A number in [-limit, limit), a multiple of limit * 2^-23. */
float random_symmetric(struct random *random, float limit);

/* Puts the `count` entries of `order` into random order (Fisher and Yates). count <= 2^32. */
void random_shuffle(struct random *random, size_t *order, size_t count);

#endif
