#include "tests/bench/perf/data.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char *const data_names[] = {[DATA_NORMAL] = "normal",
    [DATA_LAPLACE] = "laplace",
    [DATA_LAYERED] = "layered",
    [DATA_SORTED] = "sorted",
    [DATA_CONSTANT] = "constant",
    [DATA_MOSTLY_ZERO] = "zeros",
    [DATA_HOT_BLOCK] = "hot-block",
    [DATA_COUNT] = NULL};

const char *const data_dtype_names[] = {
    [DTYPE_F32] = "f32", [DTYPE_F16] = "f16", [DTYPE_BF16] = "bf16", [DTYPE_COUNT] = NULL};

/* splitmix64 (Steele, Lea and Flood 2014) */
static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Above 0 and at most 1. */
static float uniform(uint64_t *state)
{
    return (float)((next(state) >> 40) + 1) * 0x1p-24f;
}

/* Box and Muller (1958). */
static void fill_normal(float *x, uint64_t n, uint64_t *state)
{
    for (uint64_t i = 0; i < n; i += 2) {
        const float radius = sqrtf(-2 * logf(uniform(state)));
        const float angle = 6.2831853f * uniform(state);

        x[i] = radius * cosf(angle);
        if (i + 1 < n) {
            x[i + 1] = radius * sinf(angle);
        }
    }
}

static void fill_laplace(float *x, uint64_t n, uint64_t *state)
{
    for (uint64_t i = 0; i < n; i++) {
        const float magnitude = -logf(uniform(state));

        x[i] = (next(state) & 1u) != 0 ? magnitude : -magnitude;
    }
}

/* Multiplies stretch `s` of 16 by factors[s % 4]. */
static void scale_stretches(float *x, uint64_t n, const float factors[4])
{
    for (uint64_t i = 0; i < n; i++) {
        x[i] *= factors[(i * 16 / n) % 4];
    }
}

static void fill_mostly_zero(float *x, uint64_t n, uint64_t *state)
{
    for (uint64_t i = 0; i < n; i++) {
        const bool zero = next(state) % 1000 != 0;

        x[i] = zero ? 0.0f : uniform(state) - 0.5f;
    }
}

static void fill_hot_block(float *x, uint64_t n, uint64_t *state)
{
    const uint64_t length = n / 16;
    const uint64_t first = next(state) % (n - length + 1);

    fill_normal(x, n, state);
    for (uint64_t i = first; i < first + length; i++) {
        x[i] *= 1000;
    }
}

void data_fill(float *x, uint64_t n, enum distribution distribution, uint64_t seed)
{
    static const float deviations[4] = {1, 0.001f, 0.1f, 0.01f};
    uint64_t state = seed;

    switch (distribution) {
    case DATA_LAPLACE: fill_laplace(x, n, &state); break;
    case DATA_MOSTLY_ZERO: fill_mostly_zero(x, n, &state); break;
    case DATA_HOT_BLOCK: fill_hot_block(x, n, &state); break;
    case DATA_LAYERED:
        fill_normal(x, n, &state);
        scale_stretches(x, n, deviations);
        break;
    case DATA_SORTED:
    case DATA_CONSTANT:
        for (uint64_t i = 0; i < n; i++) {
            x[i] = distribution == DATA_SORTED ? (float)(i + 1) / (float)n : 1.0f;
        }
        break;
    default: fill_normal(x, n, &state); break;
    }
}

static uint16_t half_from_f32(float value)
{
    uint32_t bits;
    uint32_t exponent;

    memcpy(&bits, &value, sizeof(bits));
    exponent = bits >> 23 & 0xffu;
    if (exponent <= 112) {
        return (uint16_t)(bits >> 16 & 0x8000u);
    }
    if (exponent >= 143) {
        return (uint16_t)((bits >> 16 & 0x8000u) | 0x7bffu); /* the largest */
    }
    return (uint16_t)((bits >> 16 & 0x8000u) | (exponent - 112) << 10 | (bits >> 13 & 0x3ffu));
}

void data_store(void *out, enum dtype dtype, const float *x, uint64_t n)
{
    uint16_t *half = out;

    if (dtype == DTYPE_F32) {
        memcpy(out, x, n * sizeof(*x));
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        half[i] = dtype == DTYPE_F16 ? half_from_f32(x[i]) : bf16_from_f32(x[i]);
    }
}

uint64_t data_share(uint64_t n, double density)
{
    const uint64_t k = (uint64_t)llround((double)n * density);

    return k > 0 ? k : 1;
}

/* Entry i of k lies somewhere in its own k-th of the fibre. */
static void fill_positions(
    uint32_t *position, uint64_t base, uint64_t length, uint64_t k, uint64_t *state)
{
    for (uint64_t i = 0; i < k; i++) {
        const uint64_t first = length * i / k;
        const uint64_t end = length * (i + 1) / k;

        position[i] = (uint32_t)(base + first + next(state) % (end - first));
    }
}

bool data_list(struct sparse *list, uint64_t n, uint64_t length, uint64_t k, uint64_t seed)
{
    const uint64_t fibres = n / length;
    const uint64_t count = fibres * k;
    uint64_t state = seed;

    *list = (struct sparse){.position = malloc(count * sizeof(*list->position)),
        .value = malloc((count + 1) * sizeof(*list->value)),
        .count = count,
        .capacity = count};
    if (list->position == NULL || list->value == NULL) {
        return false;
    }
    for (uint64_t f = 0; f < fibres; f++) {
        fill_positions(list->position + f * k, f * length, length, k, &state);
    }
    fill_normal(list->value, count, &state);
    return true;
}

void data_list_free(struct sparse *list)
{
    free(list->position);
    free(list->value);
    *list = (struct sparse){0};
}

uint64_t data_read(const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    uint64_t word;
    uint64_t all = 0;

    for (size_t i = 0; i + sizeof(word) <= size; i += sizeof(word)) {
        memcpy(&word, at + i, sizeof(word));
        all ^= word;
    }
    return all;
}

void *data_map(size_t size)
{
    int fd = memfd_create("adtopk-perf", MFD_CLOEXEC);
    void *memory = MAP_FAILED;

    if (fd < 0) {
        return NULL;
    }
    /* posix_fallocate() and not a touch: without memory it is an error here, no signal later. */
    if (posix_fallocate(fd, 0, (off_t)size) == 0) {
        memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    }
    (void)close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

void data_unmap(void *memory, size_t size)
{
    if (memory != NULL) {
        (void)munmap(memory, size);
    }
}
