#include "random.h"

struct random random_start(uint64_t seed, uint64_t stream)
{
    struct random random = {seed};
    random.state = random_next(&random) ^ (stream * 0xD1342543DE82EF95u);
    random.state = random_next(&random);
    return random;
}

uint64_t random_next(struct random *random)
{
    random->state += 0x9E3779B97F4A7C15u;
    uint64_t z = random->state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

float random_symmetric(struct random *random, float limit)
{
    int32_t centred = (int32_t)(random_next(random) >> 40) - (1 << 23);
    return limit * ((float)centred / (float)(1 << 23));
}

void random_shuffle(struct random *random, size_t *order, size_t count)
{
    for (size_t left = count; left > 1; left--) {
        size_t pick = (size_t)(((random_next(random) >> 32) * (uint64_t)left) >> 32);
        size_t last = order[left - 1];
        order[left - 1] = order[pick];
        order[pick] = last;
    }
}
