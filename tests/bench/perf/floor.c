#include "tests/bench/perf/floor.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/convert.h"
#include "tests/bench/perf/clock.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define AHEAD 1024 /* elements: 4 KB of the residual */
#define LINE 16    /* elements of the residual in a cache line */

enum prefetch { PREFETCH_NONE, PREFETCH_READ, PREFETCH_WRITE };

#define INLINE static inline __attribute__((always_inline))

INLINE float load(const void *g, enum dtype dtype, uint64_t i)
{
    switch (dtype) {
    case DTYPE_F16: return convert_f16(((const uint16_t *)g)[i]);
    case DTYPE_BF16: return convert_bf16(((const uint16_t *)g)[i]);
    default: return ((const float *)g)[i];
    }
}

INLINE void add_tail(float *r, const void *g, enum dtype dtype, uint64_t first, uint64_t n)
{
    for (uint64_t i = first; i < n; i++) {
        r[i] += load(g, dtype, i);
    }
}

static void add_plain(float *r, const void *g, enum dtype dtype, uint64_t n)
{
    switch (dtype) { /* one vectorised loop each */
    case DTYPE_F16: add_tail(r, g, DTYPE_F16, 0, n); break;
    case DTYPE_BF16: add_tail(r, g, DTYPE_BF16, 0, n); break;
    default: add_tail(r, g, DTYPE_F32, 0, n); break;
    }
}

#if defined(__x86_64__)

#define WIDE __attribute__((target("avx2,f16c,prfchw")))

WIDE INLINE __m256 load8(const void *g, enum dtype dtype, uint64_t i)
{
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)g + i));

    switch (dtype) {
    case DTYPE_F16: return _mm256_cvtph_ps(half);
    case DTYPE_BF16: return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    default: return _mm256_loadu_ps((const float *)g + i);
    }
}

WIDE INLINE void add_lines(
    float *r, const void *g, enum dtype dtype, uint64_t n, enum prefetch prefetch)
{
    uint64_t i = 0;

    for (; i + LINE <= n; i += LINE) {
        if (prefetch != PREFETCH_NONE) { /* beyond the end it is harmless */
            __builtin_prefetch((const char *)g + (i + AHEAD) * (dtype == DTYPE_F32 ? 4 : 2), 0);
            if (prefetch == PREFETCH_WRITE) {
                __builtin_prefetch(r + i + AHEAD, 1);
            } else {
                __builtin_prefetch(r + i + AHEAD, 0);
            }
        }
        for (uint64_t j = i; j < i + LINE; j += 8) {
            _mm256_storeu_ps(r + j, _mm256_add_ps(_mm256_loadu_ps(r + j), load8(g, dtype, j)));
        }
    }
    add_tail(r, g, dtype, i, n);
}

WIDE INLINE void add_wide(
    float *r, const void *g, enum dtype dtype, uint64_t n, enum prefetch prefetch)
{
    switch (dtype) {
    case DTYPE_F16: add_lines(r, g, DTYPE_F16, n, prefetch); break;
    case DTYPE_BF16: add_lines(r, g, DTYPE_BF16, n, prefetch); break;
    default: add_lines(r, g, DTYPE_F32, n, prefetch); break;
    }
}

WIDE static void add_avx2_none(float *r, const void *g, enum dtype dtype, uint64_t n)
{
    add_wide(r, g, dtype, n, PREFETCH_NONE);
}

WIDE static void add_avx2_read(float *r, const void *g, enum dtype dtype, uint64_t n)
{
    add_wide(r, g, dtype, n, PREFETCH_READ);
}

WIDE static void add_avx2_write(float *r, const void *g, enum dtype dtype, uint64_t n)
{
    add_wide(r, g, dtype, n, PREFETCH_WRITE);
}

/* Every processor with AVX2 has F16C. */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") != 0;
}

#endif

INLINE void add_blocks(
    float *r, const void *g, enum dtype dtype, uint64_t n, enum prefetch prefetch)
{
    for (uint64_t i = 0; i < n; i += LINE) {
        if (prefetch == PREFETCH_READ) {
            __builtin_prefetch(r + i + AHEAD, 0);
        } else if (prefetch == PREFETCH_WRITE) {
            __builtin_prefetch(r + i + AHEAD, 1);
        }
        add_tail(r, g, dtype, i, i + LINE < n ? i + LINE : n);
    }
}

static void add_vector(float *r, const void *g, enum dtype dtype, uint64_t n)
{
#if defined(__x86_64__)
    if (has_avx2()) {
        add_avx2_none(r, g, dtype, n);
        return;
    }
#endif
    add_blocks(r, g, dtype, n, PREFETCH_NONE);
}

static void add_prefetch(float *r, const void *g, enum dtype dtype, uint64_t n)
{
#if defined(__x86_64__)
    if (has_avx2()) {
        add_avx2_read(r, g, dtype, n);
        return;
    }
#endif
    add_blocks(r, g, dtype, n, PREFETCH_READ);
}

static void add_prefetchw(float *r, const void *g, enum dtype dtype, uint64_t n)
{
#if defined(__x86_64__)
    if (has_avx2()) {
        add_avx2_write(r, g, dtype, n);
        return;
    }
#endif
    add_blocks(r, g, dtype, n, PREFETCH_WRITE);
}

const struct floor_loop floor_loops[FLOOR_LOOPS] = {
    {"r+=g plain", add_plain},
    {"r+=g avx2", add_vector},
    {"r+=g prefetch", add_prefetch},
    {"r+=g prefetchw", add_prefetchw},
};

bool floor_sample(struct floor_race *race, float *r, const void *g, enum dtype dtype, uint64_t n,
    const float *start)
{
    for (unsigned i = 0; i < FLOOR_LOOPS; i++) {
        uint64_t begin;

        if (start != NULL) {
            memcpy(r, start, n * sizeof(*r));
        }
        begin = clock_ns();
        floor_loops[i].add(r, g, dtype, n);
        if (!series_add(&race->time[i], clock_us_between(begin, clock_ns()))) {
            return false;
        }
    }
    return true;
}

unsigned floor_fastest(const struct floor_race *race)
{
    struct summary best = {0};
    unsigned fastest = 0;

    for (unsigned i = 0; i < FLOOR_LOOPS; i++) {
        struct summary summary;

        if (race->time[i].count == 0 || !series_summarise(&race->time[i], &summary)) {
            return 0;
        }
        if (i == 0 || summary.median < best.median) {
            best = summary;
            fastest = i;
        }
    }
    return fastest;
}

enum adtopk_status floor_report(
    struct perf *perf, struct row *row, const struct floor_race *race, struct error *err)
{
    const unsigned fastest = floor_fastest(race);
    struct row floor = *row;

    row->floor_name = floor_loops[fastest].name;
    row->floor = &race->time[fastest];
    floor.variant = row->floor_name;
    floor.input = "";
    floor.density = NAN;
    floor.time = row->floor;
    floor.floor_name = row->floor_name;
    floor.floor = row->floor;
    floor.paired = true;
    return perf_row(perf, &floor, err);
}

void floor_free(struct floor_race *race)
{
    for (unsigned i = 0; i < FLOOR_LOOPS; i++) {
        series_free(&race->time[i]);
    }
}
