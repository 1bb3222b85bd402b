#include "tests/bench/perf/data.h"
#include "kernels/base/convert.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/bench/perf/machine.h"

const char *const data_names[] = {[DATA_NORMAL] = "normal",
    [DATA_LAPLACE] = "laplace",
    [DATA_LAYERED] = "layered",
    [DATA_SORTED] = "sorted",
    [DATA_CONSTANT] = "constant",
    [DATA_MOSTLY_ZERO] = "zeros",
    [DATA_HOT_BLOCK] = "hot-block",
    [DATA_QUANTISED] = "quantised",
    [DATA_COUNT] = NULL};

const char *const data_dtype_names[] = {
    [DTYPE_F32] = "f32", [DTYPE_F16] = "f16", [DTYPE_BF16] = "bf16", [DTYPE_COUNT] = NULL};

#define STRETCHES 16 /* parts of a tensor that may differ in scale */

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

/* From -1 to 1, most often near 0. */
static float triangle(uint64_t *state)
{
    const float one = uniform(state);

    return one - uniform(state);
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

/* The first element of stretch s, 0..STRETCHES. */
static uint64_t stretch(uint64_t n, unsigned s)
{
    return n * s / STRETCHES;
}

static void scale_stretch(float *x, uint64_t n, unsigned s, float factor)
{
    for (uint64_t i = stretch(n, s); i < stretch(n, s + 1); i++) {
        x[i] *= factor;
    }
}

static void fill_layered(float *x, uint64_t n, uint64_t *state)
{
    static const float deviations[4] = {1, 0.001f, 0.1f, 0.01f};

    fill_normal(x, n, state);
    for (unsigned s = 0; s < STRETCHES; s++) {
        scale_stretch(x, n, s, deviations[s % 4]);
    }
}

/* To multiples of 1/4. */
static void quantise(float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        x[i] = rintf(x[i] * 4) / 4;
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
    const unsigned hot = (unsigned)(next(state) % STRETCHES);

    fill_normal(x, n, state);
    scale_stretch(x, n, hot, 1000);
}

void data_fill(float *x, uint64_t n, enum distribution distribution, uint64_t seed)
{
    uint64_t state = seed;

    switch (distribution) {
    case DATA_LAPLACE: fill_laplace(x, n, &state); break;
    case DATA_MOSTLY_ZERO: fill_mostly_zero(x, n, &state); break;
    case DATA_HOT_BLOCK: fill_hot_block(x, n, &state); break;
    case DATA_LAYERED: fill_layered(x, n, &state); break;
    case DATA_SORTED:
    case DATA_CONSTANT:
        for (uint64_t i = 0; i < n; i++) {
            x[i] = distribution == DATA_SORTED ? (float)(i + 1) / (float)n : 1.0f;
        }
        break;
    default: fill_normal(x, n, &state); break;
    }
    if (distribution == DATA_QUANTISED) {
        quantise(x, n);
    }
}

static bool is_still(enum distribution distribution)
{
    return distribution == DATA_SORTED || distribution == DATA_CONSTANT ||
           distribution == DATA_MOSTLY_ZERO;
}

void data_turn(void *gradient, const void *base, size_t element, uint64_t n,
    enum distribution distribution, uint64_t turn)
{
    for (unsigned s = 0; s < STRETCHES; s++) {
        const uint64_t first = stretch(n, s) * element;
        const uint64_t length = stretch(n, s + 1) * element - first;
        uint64_t state = turn;
        uint64_t distance = length > 0 ? next(&state) % (length / element) * element : 0;
        char *to = (char *)gradient + first;
        const char *from = (const char *)base + first;

        distance = is_still(distribution) ? 0 : distance;
        memcpy(to, from + distance, length - distance);
        memcpy(to + length - distance, from, distance);
    }
}

/* The mean square of stretch s. */
static double mean_square(const float *x, uint64_t n, unsigned s)
{
    const uint64_t first = stretch(n, s);
    const uint64_t end = stretch(n, s + 1);
    double sum = 0;

    for (uint64_t i = first; i < end; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    return end > first ? sum / (double)(end - first) : 0;
}

/*
 * A walk with steps of deviation d stays inside +-T for (T / d)^2 turns on average; one element in
 * 1 / density leaves at every turn, so T^2 = mean(d^2) / density. In between it is distributed as a
 * triangle over +-T. Where a thousand turns do not reach T, the triangle has their variance.
 */
void data_residual(float *x, const float *base, uint64_t n, enum distribution distribution,
    double density, bool global)
{
    const double turns = 1000;
    double square[STRETCHES];
    double mean = 0;
    uint64_t state = n;

    for (unsigned s = 0; s < STRETCHES; s++) {
        square[s] = is_still(distribution) ? 0 : mean_square(base, n, s);
        mean += square[s] / STRETCHES;
    }
    for (unsigned s = 0; s < STRETCHES; s++) {
        const double threshold = sqrt((global ? mean : square[s]) / density);
        const float width = (float)fmin(threshold, sqrt(6 * turns * square[s]));

        for (uint64_t i = stretch(n, s); i < stretch(n, s + 1); i++) {
            x[i] = width * triangle(&state);
        }
    }
    if (distribution == DATA_QUANTISED) {
        quantise(x, n);
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
        half[i] = dtype == DTYPE_F16 ? half_from_f32(x[i]) : convert_to_bf16(x[i]);
    }
}

uint64_t data_share(uint64_t n, double density)
{
    const uint64_t k = (uint64_t)llround((double)n * density);

    return k > 0 ? k : 1;
}

static double gap(uint64_t *state)
{
    return -log((double)uniform(state));
}

/* k of `length` positions, as independent elements would be selected: the gaps between them are
 * exponential and rounded down, which makes them geometric. */
static void fill_positions(
    uint32_t *position, uint64_t base, uint64_t length, uint64_t k, uint64_t *state)
{
    uint64_t again = *state;
    double all = 0;
    double at = 0;

    for (uint64_t i = 0; i <= k; i++) {
        all += gap(state);
    }
    for (uint64_t i = 0; i < k; i++) {
        at += gap(&again);
        position[i] =
            (uint32_t)(base + i +
                       (uint64_t)fmin(at / all * (double)(length - k + 1), (double)(length - k)));
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
    int fd = -1;
    void *memory = MAP_FAILED;

    /* The kernel reserves shared memory until it kills somebody, so ask. */
    if (size < machine_available()) {
        fd = memfd_create("adtopk-perf", MFD_CLOEXEC);
    }
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
