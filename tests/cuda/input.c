#include "tests/cuda/input.h"
#include "kernels/base/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/chunks.h"

uint64_t input_next(struct input *input)
{
    uint64_t z = input->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t input_below(struct input *input, uint64_t bound)
{
    return (input_next(input) >> 11) % bound;
}

static double input_unit(struct input *input)
{
    return ((double)(input_next(input) >> 11) + 0.5) * 0x1p-53;
}

/* The sum of four uniform numbers is as good as a normal one here. */
static float input_normal(struct input *input)
{
    double sum = -2;
    for (int i = 0; i < 4; i++) {
        sum += input_unit(input);
    }
    return (float)sum;
}

static float input_value(struct input *input, enum input_kind kind, uint64_t i, uint64_t n)
{
    switch (kind) {
    case INPUT_CONSTANT: return 0.125f;
    case INPUT_MOSTLY_ZERO: return input_below(input, 50) == 0 ? input_normal(input) : 0;
    case INPUT_SORTED: return (float)i / (float)n;
    case INPUT_TIES: return (float)input_below(input, 4) - 2;
    case INPUT_HOT_BLOCK: return input_normal(input) * (i / 300 == n / 700 ? 1000.0f : 1.0f);
    default: return input_normal(input);
    }
}

void input_fill(
    struct input *input, enum input_kind kind, enum dtype dtype, uint64_t n, void *element)
{
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t bits = (uint32_t)input_next(input);
        const float value = input_value(input, kind, i, n);
        if (dtype == DTYPE_F32 && kind == INPUT_BITS) {
            memcpy((float *)element + i, &bits, sizeof bits);
        } else if (dtype == DTYPE_F32) {
            ((float *)element)[i] = value;
        } else if (kind == INPUT_BITS) {
            ((uint16_t *)element)[i] = (uint16_t)bits;
        } else {
            ((uint16_t *)element)[i] =
                dtype == DTYPE_F16 ? convert_to_f16(value) : convert_to_bf16(value);
        }
    }
}

uint64_t input_size(struct input *input, uint64_t most)
{
    const double size = exp(input_unit(input) * log((double)most));
    const uint64_t near = chunk_count((uint64_t)size) * CHUNK + input_below(input, 3) - 1;
    const uint64_t drawn = input_below(input, 4) == 0 ? near : (uint64_t)ceil(size);
    return drawn > most ? most : drawn > 0 ? drawn : 1;
}

struct launch input_launch(struct input *input)
{
    struct launch launch = {.blocks = 1 + (unsigned)input_below(input, INPUT_BLOCKS),
        .resident = 1 + (unsigned)input_below(input, LAUNCH_RESIDENT),
        .order = (enum launch_order)input_below(input, LAUNCH_ORDERS),
        .seed = input_next(input)};
    return launch;
}

void *input_memory(uint64_t bytes, int filled)
{
    const uint64_t size = (bytes + 15) / 16 * 16 + 16;
    void *const memory = launch_memory(size);
    if (memory == NULL) {
        abort();
    }
    return memset(memory, filled, size);
}

void input_free(void *memory)
{
    launch_free(memory);
}
